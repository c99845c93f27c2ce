"""A batch without its padding, whatever its columns are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from wdsdist import unpadded
from wdsdist.errors import ArgumentError
from wdsdist.samples.collate import Ragged, collate


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


def test_marks_may_be_a_list_or_an_array() -> None:
    for marks in ([False, True], np.array([False, True])):
        assert unpadded({"x": torch.arange(2), "__padding__": marks})["x"].tolist() == [0]


@pytest.mark.parametrize("batch", [{"cls": torch.arange(2)}, (torch.arange(2),), torch.arange(2)])
def test_a_batch_that_is_not_marked_is_refused(batch: Any) -> None:
    with pytest.raises(ArgumentError, match=r"no column '__padding__' but .*: pass mark_padding=True"):
        unpadded(batch)


def test_a_list_of_a_value_for_each_sample_loses_those_of_padding() -> None:
    boxes = [torch.zeros(count, 4) for count in (2, 0, 3)]
    targets = [{"boxes": one, "labels": [1] * len(one)} for one in boxes]
    batch = {"boxes": boxes, "targets": targets, "__padding__": [False, False, True]}
    found = unpadded(batch)
    assert [len(one) for one in found["boxes"]] == [2, 0]
    assert [one["labels"] for one in found["targets"]] == [[1, 1], []]


def test_texts_that_were_collated_by_their_place_in_a_list_lose_those_of_padding() -> None:
    captions = [("a0", "b0", "c0"), ("a1", "b1", "c1")]  # two of each sample
    found = unpadded({"captions": captions, "__padding__": [False, True, True]})
    assert found["captions"] == [("a0",), ("a1",)]


def test_an_optional_field_that_all_samples_of_a_batch_have_loses_the_values_of_padding() -> None:
    batch = collate([{"json": {"id": number, "tags": ["x", "y"]}} for number in range(2)], lists=("json",))
    found = unpadded({**batch, "__padding__": [False, True]})
    assert found["json"] == [{"id": 0, "tags": ["x", "y"]}]


def test_lists_of_numbers_as_long_as_the_batch_are_values_of_samples() -> None:
    assert unpadded({"x": [[1, 2], [3, 4]], "__padding__": [False, True]})["x"] == [[1, 2]]
