"""Marks of padding, the samples that are repeated to give every rank the same count, and batches without padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from wdsdist.errors import ArgumentError
from wdsdist.samples.collate import Ragged

PADDING = "__padding__"
"""The field of samples and the column of batches that mark padding."""


def unpadded(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch without its padding and without the column of marks, so that each sample counts once.

    A batch that has only padding becomes a batch without samples. Columns may be tensors, arrays, lists and `Ragged`
    columns on any device, and dicts of these. A tuple or list of columns keeps its form. Packed rows keep their shape,
    and the ``labels`` of padding become -100.

    Args:
        batch: a batch of a data set with ``mark_padding=True``.

    Raises:
        ArgumentError: the batch has no column ``"__padding__"``, or has packed rows without ``labels``.

    >>> batch = {"__key__": ["a", "b", "a"], "cls": torch.tensor([1, 2, 1])}
    >>> unpadded({**batch, "__padding__": torch.tensor([False, False, True])})
    {'__key__': ['a', 'b'], 'cls': tensor([1, 2])}
    """
    if not isinstance(batch, Mapping) or PADDING not in batch:
        kind = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ArgumentError(
            f"the batch has no column {PADDING!r} but {kind}: pass mark_padding=True to StreamingDataset, and let "
            f"collate_fn keep that field of the samples",
            argument="batch",
        )
    keep = ~torch.as_tensor(batch[PADDING], dtype=torch.bool, device="cpu")
    rest = {name: column for name, column in batch.items() if name != PADDING}
    if keep.dim() == 2:
        if "labels" not in batch:
            raise ArgumentError(
                "rows keep their shape without padding: ask PackedRows for labels, which makes the labels of padding "
                '-100, or leave out the tokens that batch["__padding__"] marks',
                argument="batch",
            )
        return rest
    return rest if bool(keep.all()) else {name: _kept(column, keep) for name, column in rest.items()}


def _kept(column: Any, keep: torch.Tensor) -> Any:
    """Return the rows of a column to keep; a value whose length is not the batch size is returned unchanged."""
    if isinstance(column, (torch.Tensor, np.ndarray)):
        rows = keep.to(column.device) if isinstance(column, torch.Tensor) else keep.numpy()
        return column[rows] if column.shape[:1] == keep.shape else column
    if isinstance(column, Ragged):
        return Ragged.of([column.parts[row] for row in torch.nonzero(keep).flatten().tolist()])
    if isinstance(column, Mapping):
        return {name: _kept(inner, keep) for name, inner in column.items()}
    if not isinstance(column, (list, tuple)):
        return column
    if hasattr(column, "_fields"):
        return type(column)(*(_kept(inner, keep) for inner in column))
    # A list as long as the batch has a value for each sample, unless it is made of columns itself.
    if len(column) == len(keep) and not all(_has_rows(inner, len(keep)) for inner in column):
        return type(column)(value for value, is_kept in zip(column, keep.tolist(), strict=True) if is_kept)
    return type(column)(_kept(inner, keep) for inner in column)


def _has_rows(value: Any, rows: int) -> bool:
    """Return whether a value is a column of a batch, as ``default_collate`` makes of a list in each sample."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return tuple(value.shape[:1]) == (rows,)
    if isinstance(value, Mapping):
        return bool(value) and all(_has_rows(inner, rows) for inner in value.values())
    if isinstance(value, (list, tuple)):
        is_strings = len(value) == rows and all(isinstance(inner, str) for inner in value)
        return is_strings or (bool(value) and all(_has_rows(inner, rows) for inner in value))
    return isinstance(value, Ragged) and len(value) == rows
