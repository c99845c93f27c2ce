"""Batches of samples whose arrays differ in length: arrays padded to the longest, with the length of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from wdsdist.errors import SampleError
from wdsdist.samples.collate import Batch, check_alike, make_column


def padded(samples: Sequence[Any], *, pad: float = 0) -> Batch:
    """Return the columns of a batch, its arrays padded to the longest.

    Args:
        samples: dicts; their arrays of one dimension or more may differ in the first one.
        pad: the value that fills arrays up.

    Returns:
        For each field of arrays a tensor [batch, longest, ...], and the lengths as ``"<field>.length"``, int64
        [batch]; every other field as without padding.

    Raises:
        SampleError: the samples are no dicts, or their arrays differ in dtype or in a further dimension.

    >>> batch = padded([{"__key__": "a", "ids": np.array([1, 2, 3])}, {"__key__": "b", "ids": np.array([4])}], pad=-1)
    >>> batch["ids"].tolist(), batch["ids.length"].tolist(), batch["__key__"]
    ([[1, 2, 3], [4, -1, -1]], [3, 1], ['a', 'b'])
    """
    if not all(isinstance(sample, Mapping) for sample in samples):
        raise SampleError("padding needs samples that are dicts: let transform= return them, or pass collate_fn=")
    check_alike(samples)
    batch: Batch = {}
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        if any(value is None for value in values):  # an optional field
            batch[name] = values
        elif all(isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim for value in values):
            batch[name] = _padded(name, values, pad, [sample.get("__key__") for sample in samples])
            batch[f"{name}.length"] = torch.tensor(list(map(len, values)), dtype=torch.int64)
        else:
            batch[name] = make_column(name, values, [str(sample.get("__key__", "?")) for sample in samples])
    return batch


def _padded(name: str, values: list[Any], pad: float, keys: list[Any]) -> torch.Tensor:
    first = values[0]
    for value, key in zip(values, keys, strict=True):
        if value.shape[1:] != first.shape[1:] or value.dtype != first.dtype:
            raise SampleError(
                f"field {name!r} is {first.dtype} {list(first.shape)} in sample {keys[0]!r} and {value.dtype} "
                f"{list(value.shape)} in {key!r}: padding evens out the first dimension alone; make the others alike "
                f"with transform=, or pass collate_fn="
            )
    shape = len(values), max(map(len, values)), *first.shape[1:]
    library: Any = np if isinstance(first, np.ndarray) else torch  # numpy copies rows in a tenth of the time
    filled = library.full(shape, pad, dtype=first.dtype)
    for row, value in zip(filled, values, strict=True):
        row[: len(value)] = value
    return torch.as_tensor(filled)
