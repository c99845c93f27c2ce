"""The table of decoders: functions from the bytes of a member to its value, by extension.

It is the usual table of WebDataset readers, without any that runs code from the data: pickles are never read, and
``.pth`` only as plain tensors.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.npy_header import npy_header
from wdsdist.errors import SampleError

EXPANSION_LIMIT = 1 << 30
"""Bytes that one compressed member may unpack to: a few kilobytes of zeros must not fill the memory."""

IMAGE_FORMS = ("rgb8", "rgb", "torchrgb8", "torchrgb", "pil", "pilrgb")
"""The forms of decoded images that ``decode=`` names, as webdataset does."""
AUDIO = "audio"
"""The form in which ``decode=`` decodes recordings."""


def missing_package(error: ImportError) -> str:
    """Return the package to install after an import failed."""
    package = str(error.name)
    return {"PIL": "wdsdist[images]", "av": "wdsdist[media]"}.get(package, package)


def read_npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` member without Python objects; bytes after it are ignored, as numpy ignores them.

    Raises `SampleError` when the header declares more than follows it or an impossible shape, and ``ValueError`` for
    bytes that are not a ``.npy`` file.
    """
    length, layout = npy_header(data)
    if layout is not None and not layout.is_possible:
        raise SampleError(f"the header declares shape {layout.shape}, which no array has: write the array again")
    if layout is not None and layout.num_bytes > len(data) - length:
        raise SampleError(
            f"the header declares shape {layout.shape} of {layout.dtype}, which takes {layout.num_bytes:,} bytes, but "
            f"{len(data) - length:,} follow it: write the array again"
        )
    array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    # torch makes tensors of this machine's byte order alone.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def decode_npz(data: bytes, most: int = EXPANSION_LIMIT) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file by name; raise `SampleError` when they have more than ``most`` bytes."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > most:
            raise SampleError(f"a compressed member of {len(data):,} bytes unpacks to over {most:,} bytes")
        for entry in entries:
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise SampleError(f"{entry.filename!r} in it is neither stored nor deflated: write the arrays again")
        return {entry.filename.removesuffix(".npy"): read_npy(archive.read(entry)) for entry in entries}


def _decode_msgpack(data: bytes) -> Any:
    return import_module("msgpack").unpackb(data)


def _decode_pth(data: bytes) -> Any:
    return import_module("torch").load(io.BytesIO(data), map_location="cpu", weights_only=True)


_TABLE: dict[str, Callable[[bytes], Any]] = {
    "txt text transcript": bytes.decode,
    "cls cls2 index inx id": int,
    "json jsn": json.loads,
    "npy": read_npy,
    "npz": decode_npz,
    "mp msg": _decode_msgpack,
    "pth": _decode_pth,
}
DECODERS: dict[str, Callable[[Any], Any]] = {
    extension: decode for names, decode in _TABLE.items() for extension in names.split()
}
"""The functions of bytes that ``decode=True`` takes, by extension."""
