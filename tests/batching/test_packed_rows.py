"""Packed rows against a plain loop, and errors for what cannot be packed."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.batching.collation import IGNORED, pack_rows
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.collate import unpadded

pieces = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=8)


@given(st.lists(pieces, min_size=1, max_size=4), st.sampled_from([False, True, "next"]))
def test_rows_are_those_of_a_plain_loop(listed: list[list[tuple[int, int]]], labels: bool | Literal["next"]) -> None:
    length = max(sum(size for size, _ in row) for row in listed) + 1
    samples: list[dict[str, Any]] = []
    rows, starts, stops = [], [], []
    for row, of_row in enumerate(listed):
        for size, start in of_row:
            number = len(samples)
            tokens = np.arange(start + size, dtype=np.int32) + 100 * (number + 1)
            mask = torch.from_numpy((tokens % 2).astype(np.uint8))
            samples.append({"__key__": f"k{number}", "ids": tokens, "mask": mask, "note": str(number)})
            rows.append(row)
            starts.append(start)
            stops.append(start + size)
    where = {name: np.array(one, np.int64) for name, one in (("rows", rows), ("starts", starts), ("stops", stops))}
    batch = pack_rows(samples, **where, num_rows=len(listed), length=length, field="ids", labels=labels)
    ends = {0, *((np.arange(len(listed)) + 1) * length).tolist()}
    for row in range(len(listed)):
        at = 0
        numbers = [number for number, other in enumerate(rows) if other == row]
        assert batch["__key__"][row] == [f"k{number}" for number in numbers]
        assert batch["note"][row] == [str(number) for number in numbers]
        for document, number in enumerate(numbers):
            values = samples[number]["ids"][starts[number] : stops[number]].tolist()
            part = slice(at, at + len(values))
            assert batch["ids"][row, part].tolist() == values
            assert batch["mask"][row, part].tolist() == [value % 2 for value in values]
            assert batch["position_ids"][row, part].tolist() == list(range(len(values)))
            assert batch["document_ids"][row, part].tolist() == [document] * len(values)
            if labels:
                targets = [*values[1:], IGNORED] if labels == "next" else [IGNORED, *values[1:]]
                assert batch["labels"][row, part].tolist() == targets[: len(values)]
            at += len(values)
            ends |= {row * length + at - len(values), row * length + at} if values else set()
        assert batch["document_ids"][row, at:].tolist() == [-1] * (length - at)
        assert not labels or batch["labels"][row, at:].tolist() == [IGNORED] * (length - at)
    assert batch["cu_seqlens"].tolist() == sorted(ends)
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["ids"].dtype == torch.int32
    assert batch["max_seqlen"] == np.diff(sorted(ends)).max()


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ({"ids": b"bytes"}, "bytes.*decode=True"), ({"ids": np.zeros((2, 2))}, r"shape \(2, 2\)"),
        ({"ids": np.zeros(2)}, r"shape \(2,\).*length="), ({"ids": [1, 2]}, "list.*json.loads"),
        ({}, "missing.*fields="),
    ],
)  # fmt: skip
def test_a_field_that_is_no_array_of_the_planned_length_is_refused(field: dict[str, Any], found: str) -> None:
    where = {"rows": np.array([0]), "starts": np.array([0]), "stops": np.array([3])}
    with pytest.raises(SampleError, match=f"'ids' of sample 'k' is .*{found}"):
        pack_rows([{"__key__": "k", **field}], **where, num_rows=1, length=8, field="ids", labels=False)


def test_tokens_of_repeated_samples_are_marked_and_are_no_targets() -> None:
    samples = [{"ids": np.arange(1, 4), "__padding__": False}, {"ids": np.arange(4, 6), "__padding__": True}]
    where = {"rows": np.array([0, 0]), "starts": np.array([0, 0]), "stops": np.array([3, 2])}
    batch = pack_rows(samples, **where, num_rows=1, length=6, field="ids", labels=True)
    assert batch["__padding__"].tolist() == [[False, False, False, True, True, False]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, -100, -100]]
    assert "__padding__" not in unpadded(batch)
    assert unpadded(batch)["labels"] is batch["labels"]
    with pytest.raises(ArgumentError, match="ask PackedRows for labels"):
        unpadded(pack_rows(samples, **where, num_rows=1, length=6, field="ids", labels=False))
