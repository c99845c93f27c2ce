"""Batches of samples of different lengths: arrays padded to the longest, or documents packed into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SampleError
from wdsdist.samples.collate import PADDING, Batch, PerSample, Sample, check_alike, make_column

IGNORED = -100
"""The label that losses of torch leave out."""


def pack_rows(
    samples: Sequence[Sample],
    *,
    rows: Int64s,
    starts: Int64s,
    stops: Int64s,
    num_rows: int,
    length: int,
    field: str,
    labels: bool | Literal["next"],
) -> Batch:
    """Return the batch of rows that pieces of samples make.

    Args:
        samples: the sample of each piece; their field ``field`` is an array of tokens, and so may others be, of the
            same length, such as a loss mask.
        rows: int64 [pieces]: the row of each, in increasing order.
        starts, stops: int64 [pieces]: the tokens of its sample.
        num_rows, length: of the batch.
        field: of the tokens.
        labels: whether to add ``labels``: the tokens, but for the first of each piece and padding, which are -100; with
            ``"next"`` at each token the one after it. Tokens of samples that are marked as ``__padding__``, whose marks
            become bool [num_rows, length], are -100 too.

    Returns:
        Each packed field as [num_rows, length], padded with 0; ``position_ids`` and ``document_ids`` int64
        [num_rows, length], of which the latter is -1 for padding; ``cu_seqlens`` int32 [sequences + 1] and
        ``max_seqlen`` over the flattened rows, in which padding is a sequence of its own; every other field, and
        ``__key__``, as a list for each row.

    Raises `SampleError` if a sample has no such array, or another length than the plan was made with.

    >>> samples = [{"__key__": "a", "ids": np.array([1, 2, 3])}, {"__key__": "b", "ids": np.array([4, 5])}]
    >>> where = {"rows": np.array([0, 0]), "starts": np.array([0, 0]), "stops": np.array([3, 2])}
    >>> batch = pack_rows(samples, **where, num_rows=1, length=6, field="ids", labels=True)
    >>> batch["ids"].tolist(), batch["document_ids"].tolist(), batch["cu_seqlens"].tolist()
    ([[1, 2, 3, 4, 5, 0]], [[0, 0, 0, 1, 1, -1]], [0, 3, 5, 6])
    >>> batch["labels"].tolist(), batch["position_ids"].tolist(), batch["__key__"]
    ([[-100, 2, 3, -100, 5, -100]], [[0, 1, 2, 0, 1, 0]], [['a', 'b']])
    """
    sizes = stops - starts
    first = np.searchsorted(rows, rows)  # of the row of each piece
    before = np.cumsum(sizes) - sizes
    begins = rows * length + before - before[first]
    packed = _packed_names(samples, stops, field)
    batch: Batch = {}
    for name in samples[0] if samples else ():
        if name in packed:
            batch[name] = _packed([sample[name] for sample in samples], begins, starts, stops, num_rows, length)
        else:
            listed: list[list[Any]] = [[] for _ in range(num_rows)]
            for row, sample in zip(rows.tolist(), samples, strict=True):
                listed[row].append(sample[name])
            batch[name] = listed
    places = np.repeat(begins - before, sizes) + np.arange(int(sizes.sum()))
    documents = np.full(num_rows * length, -1, np.int64)
    documents[places] = np.repeat(np.arange(len(rows)) - first, sizes)
    positions = np.zeros(num_rows * length, np.int64)
    positions[places] = places - np.repeat(begins, sizes)
    batch["position_ids"] = torch.from_numpy(positions.reshape(num_rows, length))
    batch["document_ids"] = torch.from_numpy(documents.reshape(num_rows, length))
    ends = np.unique(np.concatenate((begins[sizes > 0], (begins + sizes)[sizes > 0], np.arange(num_rows + 1) * length)))
    batch["cu_seqlens"] = torch.from_numpy(ends.astype(np.int32))
    batch["max_seqlen"] = int(np.diff(ends).max())
    repeated = np.zeros(num_rows * length, np.bool_)
    repeated[places] = np.repeat(np.array([bool(sample.get(PADDING)) for sample in samples], np.bool_), sizes)
    if PADDING in batch:
        batch[PADDING] = torch.from_numpy(repeated.reshape(num_rows, length))
    if labels:
        targets = batch[field].to(torch.int64, copy=True).reshape(-1)
        targets[torch.from_numpy((documents < 0) | repeated)] = IGNORED
        targets[torch.from_numpy(begins[sizes > 0])] = IGNORED
        if labels == "next":
            targets = targets.roll(-1)  # no row begins with a target, so nothing passes from one to another
        batch["labels"] = targets.reshape(num_rows, length)
    return batch


def _packed_names(samples: Sequence[Sample], stops: Int64s, field: str) -> set[str]:
    """Return the fields that are packed: the tokens, and every array that has as many items in each sample."""
    if not samples:
        return set()
    for sample, stop in zip(samples, stops.tolist(), strict=True):
        tokens = sample.get(field)
        if not isinstance(tokens, (np.ndarray, torch.Tensor)) or tokens.ndim != 1 or len(tokens) < stop:
            shape = getattr(tokens, "shape", None)
            kind = type(tokens).__name__ if shape is None else f"an array of shape {tuple(shape)}"
            function = "lambda data: np.array(json.loads(data))" if isinstance(tokens, list) else "tokenize"
            decode = "True" if isinstance(tokens, bytes) else f"{{{field!r}: {function}}}"
            remedy = f"decode it, as with decode={decode}"
            if field not in sample:
                kind, remedy = "missing", "name it in fields="
            elif shape:
                remedy = f"let length= name its items, as '{field}.tokens' does, or make it again"
            raise SampleError(
                f"the field {field!r} of sample {sample.get('__key__')!r} is {kind}, but packing needs one dimension "
                f"of at least {stop:,} tokens: {remedy}"
            )
    return {
        name
        for name, value in samples[0].items()
        if isinstance(value, (np.ndarray, torch.Tensor))
        and all(getattr(sample.get(name), "shape", None) == sample[field].shape for sample in samples)
    }


def _packed(
    values: list[Any], begins: Int64s, starts: Int64s, stops: Int64s, num_rows: int, length: int
) -> torch.Tensor:
    # A stretch of a numpy array is copied in a tenth of the time that one of a tensor takes.
    is_numpy = isinstance(values[0], np.ndarray)
    library: Any = np if is_numpy else torch
    flat, convert = library.zeros(num_rows * length, dtype=values[0].dtype), np.asarray if is_numpy else torch.as_tensor
    for value, begin, start, stop in zip(values, begins.tolist(), starts.tolist(), stops.tolist(), strict=True):
        flat[begin : begin + stop - start] = convert(value[start:stop])
    return torch.as_tensor(flat).reshape(num_rows, length)


def padded(samples: Sequence[Any], *, pad: float = 0) -> Batch:
    """Return the columns of a batch, its arrays padded to the longest.

    Args:
        samples: dicts; their arrays of one dimension or more may differ in the first one.
        pad: the value that fills arrays up.

    Returns:
        For each field of arrays a tensor [batch, longest, ...], and the lengths as ``"<field>.length"``, int64
        [batch]; every other field as without padding.

    Raises:
        SampleError: the samples are not dicts, or their arrays differ in dtype or in a further dimension.

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
            batch[name] = PerSample(values)
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
