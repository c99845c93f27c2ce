"""Arrays in the IDX format of MNIST and its kin as samples: one image and its label each.

Source: Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits", file formats.
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SampleError, SourceError
from wdsdist.packing.payloads import Sample, sample_size
from wdsdist.packing.sources.source import Candidate, Contents, FileStamp, Source, SourceOptions
from wdsdist.storage import compression

_NAME = re.compile(r"(?P<prefix>.+)-(?P<role>images|labels)[-.]idx\d-[a-z]+\d*(?P<gz>\.gz)?")
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DIGITS = 6
_MOST_DIMENSIONS = 32
"""As many as any numpy takes."""


@dataclass(frozen=True, slots=True)
class IdxSamples:
    """Some samples of an IDX set; the arrays are read, once in each process, when the samples are."""

    images: FileStamp
    labels: FileStamp | None
    prefix: str
    digits: int
    indices: list[int]

    def __iter__(self) -> Iterator[Sample]:
        images = _load(self.images)
        labels = _load(self.labels) if self.labels else None
        header = _npy_header(images)
        for index in self.indices:
            data = header + images[index].astype(images.dtype.newbyteorder("<")).tobytes()
            key = f"{self.prefix}-{index:0{self.digits}d}"
            if labels is None:
                yield key, [("npy", data)]
            else:
                yield key, [("cls", str(labels[index]).encode()), ("npy", data)]


def find(candidate: Candidate, options: SourceOptions) -> Source | None:
    """Return the IDX set that a path names, or nothing where it names none."""
    path = candidate.path
    if path is None:
        return None
    if path.is_file():
        match = _NAME.fullmatch(path.name)
        if match is None:
            return None
        if match["role"] == "labels":
            raise SourceError(f"{path} holds labels only: name the file of images that they belong to")
        labels = _sets(Candidate(path.parent))[match["prefix"]].get("labels")
        return _source(path.parent / match["prefix"], path, labels, {})
    skipped = {}
    if candidate.entries is not None:
        sets = _sets(candidate)
        if len(sets) > 1:
            raise SourceError(
                f"{path} holds the IDX sets {' and '.join(sorted(sets))}: name one, for instance {path / max(sets)}"
            )
        path = path / next(iter(sets), "")
        others = sum(_NAME.fullmatch(name) is None for name in candidate.entries.texts()) if sets else 0
        skipped = {"file beside the IDX set": others} if others else {}
    else:
        sets = {} if path.exists() else _sets(Candidate(path.parent))
    if path.name not in sets:
        return None
    files = sets[path.name]
    return _source(path, files["images"], files.get("labels"), skipped)


def hint(path: Path) -> str:
    """Say which IDX sets lie where a path was looked for in vain."""
    prefixes = sorted(_sets(Candidate(path.parent)))
    return f" ({path.parent} holds the IDX sets {' and '.join(prefixes)})" if prefixes else ""


def parse(content: bytes, label: str) -> npt.NDArray[Any]:
    """Return the array in the content of an IDX file; ``label`` names it in errors.

    Raises `SourceError` for a header that is none, and for data that is shorter or longer than the header says.

    >>> parse(bytes([0, 0, 0x0B, 1, 0, 0, 0, 2, 0, 1, 1, 0]), "two.idx").tolist()
    [1, 256]
    """
    magic = content[:4]
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 0 < magic[3] <= _MOST_DIMENSIONS:
        raise SourceError(
            f"{label} is no IDX file: it starts with {magic!r}, not with two zeros, a type code and the number of "
            f"dimensions, at most {_MOST_DIMENSIONS}"
        )
    start = 4 + 4 * magic[3]
    if len(content) < start:
        raise SourceError(f"{label} ends within its header, after {len(content)} of {start} bytes: fetch it again")
    dtype, shape = np.dtype(_TYPES[magic[2]]), struct.unpack_from(f">{magic[3]}I", content, 4)
    found, expected = len(content) - start, math.prod(shape) * dtype.itemsize
    size = " x ".join(map(str, shape))
    if 0 in shape[1:]:
        raise SourceError(f"{label} holds no data: its header says {size}: fetch it again")
    if found != expected:
        raise SourceError(
            f"{label} holds {found:,} bytes of data but its header ({size} of {dtype.itemsize} bytes) asks for "
            f"{expected:,}: fetch it again"
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def _source(location: Path, images: Path, labels: Path | None, skipped: dict[str, int]) -> Source:
    files = FileStamp.of(images), FileStamp.of(labels) if labels else None
    shape = _load(files[0]).shape
    if not shape[0]:
        raise SourceError(f"{images} holds no image")
    if files[1] is not None:
        array = _load(files[1])
        if array.ndim != 1 or array.dtype.kind not in "ui":
            raise SourceError(f"{labels} does not hold one whole number for each image: its shape is {array.shape}")
        if len(array) != shape[0]:
            raise SourceError(
                f"{images.name} holds {shape[0]:,} images but {labels.name if labels else ''} {len(array):,} labels: "
                f"they do not belong together"
            )
    digits = max(_DIGITS, len(str(shape[0] - 1)))

    def load(_: Source) -> Contents:
        def take(indices: Int64s) -> IdxSamples:
            return IdxSamples(*files, location.name, digits, indices.tolist())

        # All samples take the same room: keys are equally long, and every label fits in one block.
        sizes = np.full(shape[0], sample_size(next(iter(take(np.zeros(1, np.int64))))), np.int64)
        return Contents(sizes=sizes, take=take, notes={"skipped": skipped} if skipped else {})

    state = hashlib.sha256(b"idx\n")
    for file in filter(None, files):
        state.update(f"{Path(file.path).name}\0{file.size}\0{file.mtime_ns}\n".encode())
    return Source("idx", str(location), state.hexdigest(), load)


def _sets(folder: Candidate) -> dict[str, dict[str, Path]]:
    """Return the files of each set with images in a folder, by their role; of a file and its gzip'd copy, the file."""
    sets: dict[str, dict[str, Path]] = {}
    if folder.path is None or folder.entries is None or b"-images" not in folder.entries.names:
        return sets
    for match in map(_NAME.fullmatch, sorted(filter(_NAME.fullmatch, folder.entries.texts()))):
        if match is not None:
            files = sets.setdefault(match["prefix"], {})
            if match["role"] not in files or not match["gz"]:
                files[match["role"]] = folder.path / match.string
    return {prefix: files for prefix, files in sets.items() if "images" in files}


@functools.lru_cache(maxsize=2)  # the images and the labels of one set
def _load(file: FileStamp) -> npt.NDArray[Any]:
    file.check()
    return parse(_read(file.path), file.path)


def _read(path: str) -> bytes:
    """Read a file, decompressed where its name ends in ``.gz``."""
    try:
        content = Path(path).read_bytes()
        if not path.endswith(".gz"):
            return content
        return compression.unzip(content, compression.most_expanded(len(content)))
    except SampleError as error:
        raise SourceError(f"{path}: {error}: decompress it if it is whole, or fetch it again") from error
    except (EOFError, zlib.error) as error:
        raise SourceError(f"{path} is a damaged gzip file ({error}): fetch it again") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def _npy_header(images: npt.NDArray[Any]) -> bytes:
    """Return what ``np.save`` writes before the data of one image."""
    stream = io.BytesIO()
    one = np.empty(images.shape[1:], images.dtype.newbyteorder("<"))
    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(one))
    return stream.getvalue()
