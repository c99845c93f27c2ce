"""A batch without its padding, whatever its columns are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from wdsdist import unpadded
from wdsdist.errors import ArgumentError
from wdsdist.samples.collate import PerSample, Ragged, collate


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


def batch_of(marks: list[bool]) -> dict[str, Any]:
    rows = torch.arange(len(marks))
    return {
        "__key__": [f"k{row}" for row in range(len(marks))],
        "jpg": Ragged.of([b"%d" % row for row in range(len(marks))]),
        "cls": rows,
        "npy": rows.numpy(),
        "json": {"width": rows, "names": [str(row) for row in range(len(marks))]},
        "box": [rows, rows + 10],
        "pair": Pair(rows, rows),
        "scale": torch.tensor(2.0),
        "note": "of the batch",
        "__padding__": torch.tensor(marks),
    }


@pytest.mark.parametrize("marks", [[False, False, True], [True, False], [True, True]])
def test_every_column_keeps_the_rows_that_are_not_padding(marks: list[bool]) -> None:
    found, rows = unpadded(batch_of(marks)), [row for row, mark in enumerate(marks) if not mark]
    assert found.keys() == batch_of(marks).keys() - {"__padding__"}
    assert found["__key__"] == [f"k{row}" for row in rows]
    assert [bytes(one) for one in found["jpg"]] == [b"%d" % row for row in rows]
    assert found["cls"].tolist() == found["npy"].tolist() == found["json"]["width"].tolist() == rows
    assert found["json"]["names"] == [str(row) for row in rows]
    assert [one.tolist() for one in found["box"]] == [rows, [row + 10 for row in rows]]
    assert isinstance(found["pair"], Pair)
    assert found["pair"].high.tolist() == rows
    assert (found["scale"].item(), found["note"]) == (2.0, "of the batch")


def test_a_batch_without_padding_is_not_copied() -> None:
    batch = batch_of([False, False])
    assert all(column is batch[name] for name, column in unpadded(batch).items())


@pytest.mark.parametrize("batch", [{"cls": torch.arange(2)}, (torch.arange(2),), torch.arange(2)])
def test_a_batch_that_is_not_marked_is_refused(batch: Any) -> None:
    with pytest.raises(ArgumentError, match=r"no column '__padding__' but .*: pass mark_padding=True"):
        unpadded(batch)


OPTIONAL = collate([{"json": {"id": number, "tags": ["x", "y"]}} for number in range(2)], lists=("json",))["json"]
COLUMNS: list[tuple[Any, Any, list[Any]]] = [
    ([torch.zeros(count, 4) for count in (2, 0, 3)], [False, False, True], [[[0.0] * 4] * 2, []]),
    ([{"labels": [1] * count} for count in (2, 0, 3)], [False, False, True], [{"labels": [1, 1]}, {"labels": []}]),
    ([("a0", "b0", "c0"), ("a1", "b1", "c1")], [False, True, True], [("a0",), ("a1",)]),  # two texts of each sample
    (OPTIONAL, [False, True], [{"id": 0, "tags": ["x", "y"]}]),
    (PerSample(torch.zeros(2, 3)), [False, True], [[0.0] * 3]),  # each has as many rows as the batch
    ([[1, 2], [3, 4]], [False, True], [[1, 2]]),
    (torch.arange(2), np.array([False, True]), [0]),
]
"""A column, which rows are padding, and what is left."""


@pytest.mark.parametrize(("column", "marks", "rest"), COLUMNS)
def test_a_column_of_any_kind_loses_the_rows_of_padding(column: Any, marks: Any, rest: list[Any]) -> None:
    found = unpadded({"x": column, "__padding__": marks})["x"]
    assert [one.tolist() if isinstance(one, torch.Tensor) else one for one in found] == rest
