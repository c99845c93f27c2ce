"""Columns of raw bytes and of collated values."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import default_collate

from tests.support import tars
from wdsdist.errors import SampleError
from wdsdist.samples.collate import Ragged, collate
from wdsdist.samples.sample_spec import stacked_npy


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_a_ragged_column_gives_back_what_was_packed(strings: list[bytes]) -> None:
    column = Ragged.of(strings)
    assert [bytes(view) for view in column] == strings
    assert [bytes(column[i]) for i in range(len(column))] == strings
    assert [bytes(view) for view in column[1:-1]] == strings[1:-1]
    assert column.data.numpy().tobytes() == b"".join(strings)
    assert column.offsets.dtype == torch.int64
    again = pickle.loads(pickle.dumps(column))
    assert [bytes(view) for view in again] == strings


def test_a_ragged_column_is_indexed_like_a_list() -> None:
    column = Ragged.of([b"a", b"bc"])
    assert bytes(column[-1]) == b"bc"
    assert isinstance(column[0], memoryview)
    with pytest.raises(IndexError):
        column[2]


def test_values_are_collated_as_torch_does() -> None:
    values = [np.full((2, 2), n, np.float32) for n in range(3)]
    batch = collate([{"__key__": str(n), "npy": value, "cls": n} for n, value in enumerate(values)])
    assert torch.equal(batch["npy"], default_collate(values))
    assert torch.equal(batch["cls"], torch.tensor([0, 1, 2]))
    assert batch["__key__"] == ["0", "1", "2"]


def test_tools_that_rebuild_sequences_leave_a_ragged_column_alone() -> None:
    assert not isinstance(Ragged.of([b"a"]), Sequence)


def test_samples_that_are_no_dicts_are_collated_as_torch_does() -> None:
    assert [part.tolist() for part in collate([(1, 2.0), (3, 4.0)])] == [[1, 3], [2.0, 4.0]]
    with pytest.raises(SampleError, match=r"what transform= returned does not stack: .* in sample '0'"):
        collate([object(), object()])


def test_samples_with_different_fields_are_refused_by_name() -> None:
    with pytest.raises(SampleError, match=r"samples 'a' and 'b' do not have the same fields \(png in one only\)"):
        collate([{"__key__": "a", "cls": 1}, {"__key__": "b", "cls": 1, "png": 2}])


@pytest.mark.parametrize("texts", [[None, "b"], ["a", None], [None, None]])
def test_texts_of_which_some_are_missing_are_a_list_whichever_comes_first(texts: list[str | None]) -> None:
    assert collate([{"__key__": "k", "txt": text} for text in texts])["txt"] == texts


def test_a_transform_that_forgets_to_return_the_sample_is_told() -> None:
    with pytest.raises(SampleError, match="transform= returned None: let it return the sample"):
        collate([None, None])


PHOTOS = [np.zeros((4, 5, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)]
RESIZE = r"decode=\{'x': wdsdist\.transforms\.ResizeCenterCrop\(224\)\}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (PHOTOS, rf"uint8 \[4, 5, 3\] in sample 'a' and uint8 \[4, 6, 3\] in 'b'; images .* {RESIZE}"),
        ([torch.zeros(3, 4, 5), torch.zeros(3, 4, 6)], rf"float32 \[3, 4, 5\] in sample 'a' .* {RESIZE}"),
        ([Image.new("RGB", (4, 5)), Image.new("RGB", (4, 6))], rf"RGB image of 4 x 5 pixels in .* {RESIZE}"),
        ([np.zeros((2, 7)), np.zeros((3, 7))], r"pass batches=batching\.TokenBudget\(\.\.\.\) or"),
        ([np.zeros((2, 7)), np.zeros((2, 6))], r"float64 \[2, 6\] in 'b'; make them alike with transform="),
        ([[1, 2], [1, 2, 3]], "list of int, int in sample 'a' and list of int, int, int in 'b'"),
        ([{"a": 1}, {"b": 1}], "dict of a: int in sample 'a' and dict of b: int in 'b'"),
        ([object(), object()], r"it is object in sample 'a' and 1 others \(.*\); make it a number or an array"),
        ([b"x", 1], r"bytes in sample 'a' and int in 'b'; decode it in all, as with decode=\{'x': function\}"),
    ],
)
def test_values_that_do_not_stack_are_an_error_of_two_samples(values: list[Any], message: str) -> None:
    samples = [{"__key__": key, "x": value} for key, value in zip("ab", values, strict=True)]
    with pytest.raises(SampleError, match=rf"field 'x' .*{message}"):
        collate(samples)


@pytest.mark.parametrize("change", [lambda npy: npy[:-1], lambda npy: npy + b"\0"], ids=["cut short", "too long"])
@pytest.mark.parametrize("place", [0, 2])
def test_an_array_of_another_length_than_its_header_says_is_not_stacked(
    change: Callable[[bytes], bytes], place: int
) -> None:
    whole = tars.npy_bytes(np.arange(6))
    parts = [memoryview(change(whole) if number == place else whole) for number in range(4)]
    assert stacked_npy(parts) is None
