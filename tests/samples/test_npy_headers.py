"""`.npy` members whose headers lie: the array that numpy reads, or an error that names shard and member."""

from __future__ import annotations

import ast
import contextlib
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.tars import npy_bytes, plain_tar
from wdsdist import StreamingDataLoader, StreamingDataset, index
from wdsdist.errors import SampleError

COPIES = 3  # in one batch: alike, so that they would be stacked without a look at each


def headed(shape: str, descr: str = "'<f4'", fortran: str = "False", data: bytes = b"", version: int = 1) -> bytes:
    """Return a `.npy` file with any header at all."""
    header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n".encode()
    length = struct.pack("<H", len(header)) if version == 1 else struct.pack("<I", len(header))
    return b"\x93NUMPY" + bytes((version, 0)) + length + header + data


def dataset(folder: Path, member: bytes) -> StreamingDataset:
    content = plain_tar((f"{number}.npy", member) for number in range(COPIES))
    path = folder / "x.tar"
    path.write_bytes(content)
    path.with_name("x.tar.wdsindex").unlink(missing_ok=True)
    index(path)
    return StreamingDataset(folder, decode=True, shuffle=False, num_replicas=1, rank=0)


def batch(data: StreamingDataset) -> torch.Tensor:
    (found,) = StreamingDataLoader(data, batch_size=COPIES, num_workers=0)
    column: torch.Tensor = found["npy"]
    return column


@pytest.mark.parametrize(
    "member",
    [
        headed("(True, 3)", data=bytes(12)),
        headed("(1000000000000,)", data=bytes(8)),
        headed("(2.0,)", data=bytes(8)),
        headed("(2,)", "'<f4', 'more': 1", data=bytes(8)),
        headed("(" * 300 + ")" * 300),
        headed("(2,)", data=bytes(8), version=9),
        b"\x93NUMPY",
        b"",
    ],
)
def test_a_header_that_lies_is_an_error_that_names_shard_and_member(tmp_path: Path, member: bytes) -> None:
    data = dataset(tmp_path, member)
    with pytest.raises(SampleError, match=r"^x\.tar: member 0\.npy: "):
        batch(data)
    with pytest.raises(SampleError, match=r"^x\.tar: member 2\.npy: "):
        data[2]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 3), np.float32),
        np.float64(3),
        np.array([(1, 2.5)], [("ä", "i4"), ("b", "f8")]),
        np.array(["one", "two"]),
        np.zeros(3, "S0"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_odd_arrays_are_as_numpy_has_them(tmp_path: Path, array: Any) -> None:
    found = dataset(tmp_path, npy_bytes(array))[1]["npy"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.asarray(array).dtype.newbyteorder("=")


lengths = st.integers(-3, 5) | st.sampled_from([2**31, 2**32, 2**62, 2**63, 2**64, -(2**63)])
shapes = st.lists(lengths, max_size=4).map(lambda shape: repr(tuple(shape)))
descrs = st.sampled_from(
    ["'<f4'", "'|u1'", "'>i8'", "'|b1'", "'<c8'", "'|O'", "'|S0'", "'<U2'", "'|V3'", "[('a', '<i4', (2,))]", "'<f3'"]
)


@given(shapes, descrs, st.sampled_from(["False", "True", "0"]), st.integers(0, 40), st.sampled_from([1, 2, 3]))
@example("(-2, -3)", "'<f4'", "False", 24, 1)
@example("(4294967296, 4294967296)", "'<f4'", "False", 0, 1)
@example("(2,)", "'|O'", "False", 16, 1)
@example("(0, 4611686018427387904)", "'<f4'", "False", 0, 1)
@example("(0, 4611686018427387904)", "'|u1'", "False", 0, 1)
@example("(2, -2, -2)", "'|u1'", "False", 8, 2)
def test_any_header_gives_the_array_of_numpy_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, shape: str, descr: str, fortran: str, size: int, version: int
) -> None:
    member = headed(shape, descr, fortran, bytes(range(size)), version)
    try:
        expected = np.lib.format.read_array(io.BytesIO(member), allow_pickle=False)
    except Exception:
        expected = None
    if expected is not None and expected.shape != ast.literal_eval(shape):
        expected = None  # numpy multiplied the lengths until they wrapped around
    data = dataset(tmp_path_factory.mktemp("npy"), member)
    if expected is None:
        with pytest.raises(SampleError, match=r"^x\.tar: member 0\.npy: "):
            data[0]
        with pytest.raises(SampleError, match=r"^x\.tar: member 0\.npy: "):
            batch(data)
        return
    if expected.dtype.byteorder == ">":
        expected = expected.astype(expected.dtype.newbyteorder("="))
    found = data[0]["npy"]
    assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    with contextlib.suppress(SampleError):  # of types that torch has not
        batched = batch(data)
        assert batched.shape == (COPIES, *expected.shape)
        if expected.size:  # numpy refuses some empty shapes that torch has
            assert batched.numpy().tobytes() == expected.tobytes() * COPIES
