"""IDX sets as samples, against numpy as the judge."""

from __future__ import annotations

import gzip
import math
import os
import pickle
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

from tests.support.tars import npy_bytes
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.packing.sources import find, idx
from wdsdist.packing.sources.source import Source

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


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


def digits(count: int = 5) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, 4, 3), np.uint8), generator.integers(0, 10, count, np.uint8)


def samples(source: Source) -> dict[str, dict[str, bytes]]:
    taken = pickle.loads(pickle.dumps(source.take(np.arange(len(source)))))
    return {key: dict(members) for key, members in taken}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_set_becomes_arrays_and_classes(tmp_path: Path, suffix: str) -> None:
    images, labels = digits()
    source = find(write_set(tmp_path, "t10k", images, labels, suffix))
    assert (source.kind, len(source), source.location) == ("idx", 5, str(tmp_path / "t10k"))
    assert samples(source) == {
        f"t10k-{number:06}": {"cls": str(label).encode(), "npy": npy_bytes(image)}
        for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True))
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


@pytest.mark.parametrize("code", sorted(CODES))
def test_members_are_what_np_save_writes_little_endian(tmp_path: Path, code: str) -> None:
    images = np.arange(24).reshape(2, 3, 4).astype(f"<{code}")
    source = find(write_set(tmp_path, "x", images))
    assert [members["npy"] for members in samples(source).values()] == [npy_bytes(image) for image in images]


def test_without_labels_there_is_no_class(tmp_path: Path) -> None:
    images, _ = digits()
    assert set(samples(find(write_set(tmp_path, "x", images)))["x-000000"]) == {"npy"}


def test_labels_below_zero_and_of_many_digits_are_decimal(tmp_path: Path) -> None:
    images, _ = digits(2)
    source = find(write_set(tmp_path, "x", images, np.array([-7, 12_345_678], np.int32)))
    assert [members["cls"] for members in samples(source).values()] == [b"-7", b"12345678"]


def test_stored_sizes_are_those_of_the_members_in_a_tar(tmp_path: Path) -> None:
    images, labels = digits()  # npy: 128 + 12 bytes
    assert find(write_set(tmp_path, "x", images, labels)).contents.sizes.tolist() == [2048] * 5


def test_keys_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    source = find(write_set(tmp_path, "x", np.zeros((1_000_001, 1, 1), np.uint8)))
    assert [key for key, _ in source.take(np.array([0, 1_000_000]))] == ["x-0000000", "x-1000000"]


def test_only_what_one_shard_needs_is_taken(tmp_path: Path) -> None:
    taken = find(write_set(tmp_path, "x", *digits(1000))).take(np.array([999, 3]))
    assert [key for key, _ in taken] == ["x-000999", "x-000003"]
    assert len(pickle.dumps(taken)) < 1000


class TestNaming:
    def test_a_set_is_found_by_file_prefix_and_folder(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits())
        by_file = find(tmp_path / "train-images-idx3-ubyte")
        by_prefix = find(tmp_path / "train")
        by_folder = find(tmp_path)
        assert by_file.location == by_prefix.location == by_folder.location == str(tmp_path / "train")
        assert by_file.digest == by_prefix.digest == by_folder.digest

    def test_the_prefix_chooses_among_several(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits(6))
        write_set(tmp_path, "t10k", *digits(3))
        assert len(find(tmp_path / "t10k")) == 3

    def test_a_folder_of_several_must_be_narrowed_down(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits(1200))
        write_set(tmp_path, "t10k", *digits(3), suffix=".gz")
        with pytest.raises(
            SourceError,
            match=r"holds the IDX sets t10k and train: name one, for instance .*/train$",
        ):
            find(tmp_path)

    def test_names_with_a_dot_are_known_too(self, tmp_path: Path) -> None:
        images, _ = digits()
        (tmp_path / "train-images.idx3-ubyte").write_bytes(idx_bytes(images))
        assert len(find(tmp_path)) == 5

    def test_a_file_goes_before_its_zipped_copy(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits(5), suffix=".gz")
        write_set(tmp_path, "train", *digits(6))
        assert len(find(tmp_path)) == len(find(tmp_path / "train")) == 6

    def test_a_file_named_with_a_dot_goes_before_a_zipped_one_too(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", digits(5)[0], suffix=".gz")
        (tmp_path / "train-images.idx3-ubyte").write_bytes(idx_bytes(digits(6)[0]))
        assert len(find(tmp_path / "train")) == 6

    def test_files_beside_the_set_are_counted(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits())
        (tmp_path / "README.md").write_text("notes")
        assert find(tmp_path).notes == {"skipped": {"file beside the IDX set": 1}}

    def test_a_wrong_prefix_is_answered_with_the_right_ones(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits())
        with pytest.raises(NotFoundError, match="holds the IDX sets train"):
            find(tmp_path / "val")

    def test_labels_alone_are_no_source(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits())
        with pytest.raises(SourceError, match="holds labels only"):
            find(tmp_path / "train-labels-idx1-ubyte")

    def test_class_folders_make_no_sense(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match=r"is of the kind .idx.: only sources of the kind .* or folder take it"):
            find(write_set(tmp_path, "train", *digits()), class_folders=True)

    def test_the_fingerprint_follows_each_file(self, tmp_path: Path) -> None:
        write_set(tmp_path, "train", *digits())
        found = [find(tmp_path).digest]
        for role in ("images-idx3", "labels-idx1"):
            os.utime(tmp_path / f"train-{role}-ubyte", ns=(1, 1))
            found.append(find(tmp_path).digest)
        assert len(set(found)) == 3


class TestDamage:
    def check(self, folder: Path, content: bytes, message: str, suffix: str = "") -> None:
        (folder / f"x-images-idx3-ubyte{suffix}").write_bytes(content)
        with pytest.raises(SourceError, match=message):
            find(folder)

    def test_a_truncated_file_is_named_with_both_sizes(self, tmp_path: Path) -> None:
        content = idx_bytes(digits()[0])
        self.check(tmp_path, content[:-7], r"x-images-idx3-ubyte holds 53 bytes of data .* asks for 60")

    def test_trailing_bytes_are_an_error_with_both_sizes(self, tmp_path: Path) -> None:
        self.check(tmp_path, idx_bytes(digits()[0]) + b"??", "holds 62 bytes of data .* asks for 60")

    def test_a_header_that_promises_the_moon_costs_no_memory(self, tmp_path: Path) -> None:
        self.check(tmp_path, b"\0\0\x0e\x03" + b"\xff" * 12, f"holds 0 bytes .* asks for {(2**32 - 1) ** 3 * 8:,}")

    def test_a_compressed_file_that_expands_without_end(
        self, tmp_path: Path, limit_expansion: Callable[..., None]
    ) -> None:
        limit_expansion(1 << 20)
        bomb = gzip.compress(b"\0\0\x08\x01" + (8 << 20).to_bytes(4, "big") + bytes(8 << 20))
        self.check(
            tmp_path, bomb, r"x-images.*\.gz: a compressed member of .* unpacks to over .*: decompress it", ".gz"
        )

    def test_a_truncated_zip_is_an_error(self, tmp_path: Path) -> None:
        content = gzip.compress(idx_bytes(digits(1000)[0]))
        self.check(tmp_path, content[: len(content) // 2], "is a damaged gzip file", ".gz")

    def test_a_zip_that_is_none_is_an_error(self, tmp_path: Path) -> None:
        self.check(tmp_path, idx_bytes(digits()[0]), "is a damaged gzip file", ".gz")

    @pytest.mark.parametrize("magic", [b"", b"\0\0", b"\1\0\x08\3", b"\0\0\x07\3", b"\0\0\x08\0", b"\0\0\x08\x46"])
    def test_another_kind_of_file_is_refused(self, tmp_path: Path, magic: bytes) -> None:
        self.check(tmp_path, magic, "is no IDX file")

    def test_many_images_of_no_pixels_cost_no_memory(self, tmp_path: Path) -> None:
        content = b"\0\0\x08\3" + b"\xff" * 4 + bytes(4) + b"\0\0\0\x1c"
        self.check(tmp_path, content, "x-images-idx3-ubyte holds no data: its header says 4294967295 x 0 x 28: fetch")

    def test_a_file_cut_in_its_header_is_refused(self, tmp_path: Path) -> None:
        self.check(tmp_path, b"\0\0\x08\3\0\0\0\1", "ends within its header, after 8 of 16 bytes")

    def test_as_many_labels_as_images_are_needed(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"holds 5 images but x-labels-idx1-ubyte 4 labels"):
            find(write_set(tmp_path, "x", digits()[0], digits(4)[1]))

    def test_labels_must_be_whole_numbers_in_a_row(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="does not hold one whole number for each image"):
            find(write_set(tmp_path, "x", digits()[0], np.zeros(5, np.float32)))

    def test_a_set_without_images_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="holds no image"):
            find(write_set(tmp_path, "x", np.zeros((0, 28, 28), np.uint8)))

    def test_a_file_that_changes_after_listing_is_noticed(self, tmp_path: Path) -> None:
        source = find(write_set(tmp_path, "x", *digits()))
        write_set(tmp_path, "x", digits(6)[0])
        idx._load.cache_clear()  # as in a process that has not read it yet
        with pytest.raises(SourceError, match="has changed since it was listed"):
            list(source.take(np.arange(1)))


FASHION_MNIST = Path(__file__).parents[3] / "examples" / "data"


def test_fashion_mnist_is_read_as_published() -> None:
    source = find(FASHION_MNIST / "t10k")
    raw = gzip.decompress((FASHION_MNIST / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((FASHION_MNIST / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    images = np.frombuffer(raw, np.uint8, offset=16).reshape(10_000, 28, 28)
    assert len(source) == 10_000
    for number in (0, 123, 9_999):
        [(key, members)] = source.take(np.array([number]))
        assert (key, dict(members)) == (
            f"t10k-{number:06}",
            {"cls": str(labels[number]).encode(), "npy": npy_bytes(images[number])},
        )
    assert math.prod(images.shape) == 7_840_000
