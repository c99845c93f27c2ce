"""Batches taken apart and put together: whatever they are made of comes back equal, and bulk is never pickled."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from wdsdist.loader.ipc.envelope import seal, unseal
from wdsdist.samples.collate import Ragged, Stacked, collate

Pair = namedtuple("Pair", ["first", "second"])

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


class Marked(torch.Tensor):
    """What detection data sets hold: a tensor with a meaning."""


@dataclass
class Boxes:
    corners: torch.Tensor
    names: list[str]


def travel(batch: Any) -> Any:
    rest, pieces = seal(batch)
    return unseal(rest, [np.frombuffer(bytearray().join(piece), np.uint8) for piece in pieces])


def strides_that_matter(tensor: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 4), max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.integers(1, 2),
)
def test_a_tensor_of_any_dtype_shape_and_layout_arrives(
    dtype: torch.dtype, shape: list[int], order: Any, step: int
) -> None:
    dimensions = list(range(len(shape)))
    order.shuffle(dimensions)
    tensor = (torch.arange(int(np.prod(shape))) % 5).reshape(shape).to(dtype).permute(dimensions)[..., ::step] \
        if shape else torch.tensor(3).to(dtype)  # fmt: skip
    found = travel({"x": [tensor]})["x"][0]
    assert equal(found, tensor)
    if step == 1 and tensor.numel():
        assert strides_that_matter(found) == strides_that_matter(tensor)


@given(st_numpy.arrays(st_numpy.scalar_dtypes(), st_numpy.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_an_array_arrives(array: Any) -> None:
    np.testing.assert_array_equal(travel([array])[0], array)


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_a_raw_column_arrives(strings: list[bytes]) -> None:
    column = travel({"x": Ragged.of(strings)})["x"]
    assert [bytes(view) for view in column] == strings
    assert column.offsets.tolist() == Ragged.of(strings).offsets.tolist()
    assert column.data.numpy().tobytes() == b"".join(strings)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_a_view_of_memory_keeps_its_format_and_shape(shape: tuple[int, ...]) -> None:
    view = memoryview(np.arange(6, dtype=np.float32).reshape(shape))
    found = travel([view, view[::-1]])
    assert found == [view, view[::-1]]
    assert [(each.format, each.shape) for each in found] == [("f", shape)] * 2


def test_pieces_arrive_as_a_tensor() -> None:
    images = [torch.arange(24).reshape(2, 4, 3).permute(2, 0, 1) + n for n in range(3)]
    pieces = Stacked.of(images)
    assert pieces is not None
    found = travel({"x": pieces})["x"]
    assert torch.equal(found, torch.stack(images))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pieces.tensor(), found)
    assert pieces.tensor().stride() == found.stride()


def test_what_holds_tensors_arrives_as_it_was() -> None:
    sparse = torch.eye(3).to_sparse()
    parameter = torch.nn.Parameter(torch.ones(2))
    batch = {
        "tuple": (torch.arange(3), "text"),
        "named": Pair(torch.arange(2), 7),
        "object": Boxes(torch.zeros(2, 4), ["a", "b"]),
        "parameter": parameter,
        "sparse": sparse,
        "subclass": torch.arange(4).as_subclass(Marked),
        "grad": torch.ones(3, requires_grad=True),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "view": memoryview(b"abc"),
        "strided view": memoryview(b"abcdef")[::2],
        "none": None,
    }
    found = travel(batch)
    assert equal(found["tuple"][0], batch["tuple"][0])
    assert isinstance(found["named"], Pair)
    assert equal(found["object"].corners, batch["object"].corners)
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert equal(found["parameter"].data, parameter.data)
    assert equal(found["sparse"].to_dense(), sparse.to_dense())
    assert type(found["subclass"]) is Marked
    assert found["subclass"].tolist() == [0, 1, 2, 3]
    assert found["grad"].requires_grad
    assert found["conjugate"].tolist() == [1 - 2j]
    assert bytes(found["view"]) == b"abc"
    assert bytes(found["strided view"]) == b"ace"


@pytest.mark.parametrize(
    "bulk",
    [
        torch.zeros(1 << 16),
        torch.zeros(1 << 8, 1 << 9)[:, ::2],
        torch.zeros(1 << 16).as_subclass(Marked),
        torch.nn.Parameter(torch.zeros(1 << 16)),
        torch.eye(1 << 12).to_sparse(),
        np.zeros(1 << 16),
        Ragged.of([bytes(1 << 16)]),
        Stacked([memoryview(bytes(1 << 16))], torch.uint8, (1, 1 << 16)),
        memoryview(bytes(1 << 16)),
    ],
)
def test_bulk_is_not_pickled(bulk: Any) -> None:
    rest, pieces = seal({"deep": [{"x": (bulk,)}]})
    assert len(rest) < 1000
    assert sum(len(part) for piece in pieces for part in piece) >= 1 << 15


def test_two_names_of_one_tensor_are_one_tensor_on_arrival() -> None:
    tensor = torch.arange(4)
    found = travel([tensor, tensor])
    found[0][0] = 9
    assert found[1][0] == 9


def test_tensors_on_arrival_can_be_written() -> None:
    found = travel(collate([{"x": np.zeros(3)}, {"x": np.ones(3)}], deferred=True))
    found["x"] += 1
    assert found["x"].tolist() == [[1, 1, 1], [2, 2, 2]]
