"""Marks of padding, the samples that are repeated so that ranks are even, and batches without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wdsdist.errors import ArgumentError
from wdsdist.samples.collate import Ragged

PADDING = "__padding__"
"""The field of samples and the column of batches that tell what is padding."""


def marks(padding: npt.NDArray[np.bool_]) -> torch.Tensor:
    """Return the column of a batch whose samples are padding or not, bool [batch]."""
    return torch.from_numpy(padding.copy())


def unpadded(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch without its padding, and without the column that marks it, so that each sample counts once.

    The batch of a rank that has only padding becomes one of no samples. Columns may be tensors, arrays, lists and
    `Ragged` columns, and dicts, lists and tuples of those, on any device. Packed rows keep their shape: there the
    ``labels`` of padding are -100.

    Args:
        batch: of a data set with ``mark_padding=True``.

    Raises:
        ArgumentError: the batch has no column ``"__padding__"``, or is of packed rows without ``labels``.

    >>> batch = {"__key__": ["a", "b", "a"], "cls": torch.tensor([1, 2, 1])}
    >>> unpadded({**batch, "__padding__": torch.tensor([False, False, True])})
    {'__key__': ['a', 'b'], 'cls': tensor([1, 2])}
    """
    if not isinstance(batch, Mapping) or PADDING not in batch:
        found = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ArgumentError(
            f"the batch has no column {PADDING!r} but {found}: pass mark_padding=True to StreamingDataset, and let "
            f"collate_fn keep that field of the samples"
        )
    keep = ~torch.as_tensor(batch[PADDING], dtype=torch.bool, device="cpu")
    rest = {name: column for name, column in batch.items() if name != PADDING}
    if keep.dim() == 2:
        if "labels" not in batch:
            raise ArgumentError(
                "rows keep their shape without padding: pass labels=True to the loader, which makes those of padding "
                '-100, or leave out the tokens that batch["__padding__"] marks'
            )
        return rest
    return rest if bool(keep.all()) else {name: _rows(column, keep) for name, column in rest.items()}


def _rows(column: Any, keep: torch.Tensor) -> Any:
    """Return the rows of a column, or of those inside it; what has not as many rows as the batch stays as it is."""
    if isinstance(column, torch.Tensor):
        return column[keep.to(column.device)] if column.shape[:1] == keep.shape else column
    if isinstance(column, np.ndarray):
        return column[keep.numpy()] if column.shape[:1] == keep.shape else column
    if isinstance(column, Ragged):
        return Ragged.of([column.parts[row] for row in torch.nonzero(keep).flatten().tolist()])
    if isinstance(column, Mapping):
        return {name: _rows(inner, keep) for name, inner in column.items()}
    if not isinstance(column, (list, tuple)):
        return column
    is_record = hasattr(column, "_fields")
    # A list as long as the batch has a value for each sample, such as boxes, unless it is made of columns itself.
    if len(column) == len(keep) and not is_record and not all(_is_column(inner, len(keep)) for inner in column):
        made = [value for value, kept in zip(column, keep.tolist(), strict=True) if kept]
    else:
        made = [_rows(inner, keep) for inner in column]
    return type(column)(*made) if is_record else type(column)(made)


def _is_column(value: Any, rows: int) -> bool:
    """Whether a value has a row for each sample, as what ``default_collate`` makes of lists in samples has."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return tuple(value.shape[:1]) == (rows,)
    if isinstance(value, Ragged):
        return len(value) == rows
    if isinstance(value, Mapping):
        return bool(value) and all(_is_column(inner, rows) for inner in value.values())
    if isinstance(value, (list, tuple)):
        texts = len(value) == rows and all(isinstance(inner, str) for inner in value)
        return texts or (bool(value) and all(_is_column(inner, rows) for inner in value))
    return False
