"""Arrays in the IDX format of MNIST and its kin as samples: one image and its label each.

Source: Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits", file formats.
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist._util.files import mapped
from wdsdist.errors import SampleError, SourceError
from wdsdist.packing.members import Sample, Samples, sample_size
from wdsdist.packing.options import Options
from wdsdist.packing.sources.source import Candidate, Contents, FileStamp, Source
from wdsdist.samples.encoders import encode
from wdsdist.storage import compression

_NAME = re.compile(r"(?P<prefix>.+)-(?P<role>images|labels)[-.]idx\d-[a-z]+\d*(?P<gz>\.gz)?")
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def _samples(
    images: FileStamp, labels: FileStamp | None, prefix: str, digits: int, indices: list[int]
) -> Iterator[Sample]:
    """Yield some samples; the arrays are read once in each process."""
    pixels, numbers = _load(images), _load(labels) if labels else None
    stored = pixels.dtype.newbyteorder("<")
    for index in indices:
        data = encode("npy", pixels[index].astype(stored))
        label = [] if numbers is None else [("cls", str(numbers[index]).encode())]
        yield f"{prefix}-{index:0{digits}d}", [*label, ("npy", data)]


def find(candidate: Candidate, options: Options) -> Source | None:
    """Return the IDX set that a path names: the prefix of its files, such as ``mnist/train``, or one of these files."""
    path = candidate.path
    if any("-images" in name for name in candidate.names or ()) and (sets := _sets(path)):
        problem = f"{path} holds the IDX sets {' and '.join(sorted(sets))}"
        raise SourceError(f"{problem}: name one, for instance {path / max(sets)}")
    if (match := _NAME.fullmatch(path.name)) is not None and path.is_file():
        path = path.with_name(match["prefix"])
    elif path.exists():
        return None
    files = _sets(path.parent).get(path.name)
    return None if files is None else _source(path, files)


def parse(content: bytes, label: str) -> npt.NDArray[Any]:
    """Return the array in the content of an IDX file; ``label`` names it in errors.

    Raises `SourceError` for content with another header, for data that is shorter or longer than the header says, and
    for an array without values.

    >>> parse(bytes([0, 0, 0x0B, 1, 0, 0, 0, 2, 0, 1, 1, 0]), "two.idx").tolist()
    [1, 256]
    """
    try:
        zeros, code, dimensions = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        array = np.frombuffer(content, _TYPES.get(code, f"code {code}"), offset=4 + 4 * dimensions).reshape(shape)
        if zeros or not shape or not array.size:
            raise ValueError(f"it starts with {content[:4]!r} and has the shape {shape}")
    except (struct.error, TypeError, ValueError) as error:
        raise SourceError(f"{label} is not an IDX file, or not a whole one ({error}): fetch it again") from error
    return array


def _source(location: Path, files: dict[str, Path]) -> Source:
    stamps = {role: FileStamp.of(path) for role, path in files.items()}
    images, labels = stamps["images"], stamps.get("labels")
    count = len(_load(images))
    if labels is not None and (_load(labels).shape != (count,) or _load(labels).dtype.kind not in "ui"):
        problem = f"{labels.path} does not hold one whole number for each of the {count:,} images"
        raise SourceError(f"{problem} of {files['images'].name}: its shape is {_load(labels).shape}")
    digits = max(6, len(str(count - 1)))

    def take(indices: Int64s) -> Samples:
        return Samples(_samples, (images, labels, location.name, digits, indices.tolist()))

    # All samples take the same room: keys are equally long, and every label fits in one block.
    size = sample_size(next(iter(take(np.zeros(1, np.int64)))))
    contents = Contents(sizes=np.full(count, size, np.int64), take=take)
    state = "".join(f"{Path(file.path).name}\0{file[1:]}\n" for file in (images, labels) if file)
    return Source("idx", str(location), state, lambda: contents)


def _sets(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files of each set with images in a folder, by their role; of a file and its gzip'd copy, the file."""
    sets: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob("*-*idx*"), key=lambda path: path.suffix != ".gz"):  # the file replaces its copy
        if match := _NAME.fullmatch(path.name):
            sets.setdefault(match["prefix"], {})[match["role"]] = path
    return {prefix: files for prefix, files in sets.items() if "images" in files}


@functools.lru_cache(maxsize=2)  # the images and the labels of one set
def _load(file: FileStamp) -> npt.NDArray[Any]:
    file.check()
    try:
        content = bytes(mapped(Path(file.path)))
        if file.path.endswith(".gz"):
            content = compression.unzip(content, compression.most_expanded(len(content)))
    except (SampleError, EOFError, zlib.error, OSError) as error:
        raise SourceError(f"{file.path} cannot be read ({error}): fetch it again, or decompress it") from error
    return parse(content, file.path)
