"""IDX sets as samples, against numpy as the judge."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from tests.support.packing import members
from tests.support.tars import npy_bytes
from wdsdist.errors import SourceError
from wdsdist.packing.sources import find, idx

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
LABELS = np.array([-7, 12_345_678, 0, 3, 9], np.int32)


def idx_bytes(array: npt.NDArray[Any]) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, CODES[array.dtype.str[1:]], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_set(
    folder: Path, prefix: str, images: npt.NDArray[Any], labels: npt.NDArray[Any] | None = None, suffix: str = ""
) -> Path:
    folder.mkdir(exist_ok=True)
    for role, array in (("images-idx3", images), ("labels-idx1", labels)):
        if array is not None:
            content = idx_bytes(array)
            path = folder / f"{prefix}-{role}-ubyte{suffix}"
            path.write_bytes(gzip.compress(content) if suffix else content)
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_set_becomes_arrays_and_classes(tmp_path: Path, suffix: str) -> None:
    source = find(write_set(tmp_path, "t10k", IMAGES, LABELS, suffix) / "t10k")
    assert (source.kind, len(source), source.location) == ("idx", 5, str(tmp_path / "t10k"))
    assert source.contents.sizes.tolist() == [2048] * 5
    assert members(source) == {
        f"t10k-{number:06}": {"cls": str(label).encode(), "npy": npy_bytes(image)}
        for number, (image, label) in enumerate(zip(IMAGES, LABELS.tolist(), strict=True))
    }


@given(
    array=st.sampled_from(sorted(CODES)).flatmap(
        lambda code: numpy_strategies.arrays(
            code,
            numpy_strategies.array_shapes(min_dims=1, max_dims=4),
            elements={"allow_nan": False} if code[0] == "f" else None,
        )
    )
)
def test_every_type_and_shape_is_read_as_numpy_has_it(array: npt.NDArray[Any]) -> None:
    read = idx.parse(idx_bytes(array), "a.idx")
    np.testing.assert_array_equal(read, array)
    assert read.dtype.newbyteorder("=") == array.dtype


def test_a_set_is_found_by_prefix_and_file(tmp_path: Path) -> None:
    write_set(tmp_path, "train", IMAGES, LABELS)
    sources = [find(tmp_path / name) for name in ("train", "train-images-idx3-ubyte", "train-labels-idx1-ubyte")]
    assert {source.location for source in sources} == {str(tmp_path / "train")}
    assert len({source.digest for source in sources}) == 1
    digests = {sources[0].digest}
    for role in ("images-idx3", "labels-idx1"):
        os.utime(tmp_path / f"train-{role}-ubyte", ns=(1, 1))
        digests.add(find(tmp_path / "train").digest)
    assert len(digests) == 3


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images.idx3-ubyte"])
def test_a_file_goes_before_its_zipped_copy(tmp_path: Path, name: str) -> None:
    write_set(tmp_path, "train", IMAGES[:3], suffix=".gz")
    (tmp_path / name).write_bytes(idx_bytes(IMAGES))
    assert len(find(tmp_path / "train")) == 5


def test_a_compressed_file_that_expands_without_end(tmp_path: Path, limit_expansion: Callable[..., None]) -> None:
    limit_expansion(1 << 20)
    bomb = gzip.compress(b"\0\0\x08\x01" + (8 << 20).to_bytes(4, "big") + bytes(8 << 20))
    (tmp_path / "x-images-idx3-ubyte.gz").write_bytes(bomb)
    with pytest.raises(SourceError, match=r"a compressed member of .* unpacks to over"):
        find(tmp_path / "x")


def test_a_pipe_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x-images-idx3-ubyte")
    with pytest.raises(SourceError, match="it is a pipe"):
        find(tmp_path / "x")
