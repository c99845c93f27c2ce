"""Codecs: member bytes to values and back, by the extension table that WebDataset tools share.

The last part of the extension decides, in lower case: ``seg.npy`` is an array. A trailing ``.gz`` is unpacked first.
Nothing here runs code from the data: pickles are never loaded or written, and ``.pth`` only as plain tensors. What is
encoded here decodes to an equal value, but for the pixels of lossy images.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import math
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.npy_header import NPY_PREFIX, npy_header_length, npy_layout
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.storage import zip_entries

EXPANSION_LIMIT = 1 << 30
"""Bytes that one compressed member may unpack to: a few kilobytes of zeros must not fill the memory."""

_INSTALL = {"msgpack": "msgpack", "cbor2": "cbor2", "PIL": "wdsdist[images]"}


def encode(extension: str, value: Any) -> bytes:
    """Return the bytes of a member that holds ``value``.

    Bytes are passed through, whatever the extension. Of the rest,

    - ``txt text transcript`` hold a str, in UTF-8;
    - ``cls cls2 index inx id`` an integer, in decimal digits;
    - ``json jsn`` whatever JSON can hold, scalars, arrays and tensors as numbers and lists;
    - ``npy`` an array or what numpy makes one of, ``npz`` a dict of them; never objects, which would be pickled;
    - ``mp msg`` what msgpack can hold, ``cbor`` what CBOR can hold, ``pth`` what ``torch.save`` writes and
      ``torch.load(weights_only=True)`` reads, ``ten tb`` a list of arrays;
    - ``jpg jpeg png webp`` a PIL image, or uint8 [height, width] or [height, width, 1, 3 or 4];
    - ``gz`` after any of them compresses it, with no time in its header.

    Args:
        extension: such as ``"cls"`` or ``"seg.png"``.
        value: what decoding the member is to return.

    Raises `SampleError` for a value that the extension cannot hold, and for an unknown extension.

    >>> encode("cls", 7), encode("txt", "söt"), encode("meta.json", {"a": [1, None]}), encode("bin", b"raw")
    (b'7', b's\\xc3\\xb6t', b'{"a": [1, null]}', b'raw')
    """
    if not isinstance(extension, str):
        raise ArgumentError(f"extension is {extension!r}: it must be a text, such as 'cls' or 'seg.png'")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    name = extension.lower()
    try:
        return _encode(name, value)
    except SampleError:
        raise
    except ImportError as error:
        raise SampleError(f"encoding {extension!r} needs a package: pip install {missing_package(error)!r}") from error
    except Exception as error:  # each encoder has its own errors; one sort leaves here
        what = f"{type(value).__name__} value"
        raise SampleError(f"a {what} cannot be encoded as {extension!r}: {type(error).__name__}: {error}") from error


def can_encode(extension: str) -> bool:
    """Say whether values that are not bytes can be encoded for an extension.

    >>> can_encode("seg.npy"), can_encode("json.gz"), can_encode("flac")
    (True, True, False)
    """
    name = extension.lower()
    return name.rpartition(".")[2] in _ENCODERS or (name.endswith(".gz") and can_encode(name[:-3]))


def _encode(name: str, value: Any) -> bytes:
    function = _ENCODERS.get(name.rpartition(".")[2])
    if function is not None:
        return function(value)
    if name.endswith(".gz") and len(name) > 3:
        return gzip.compress(_encode(name[:-3], value), mtime=0)
    raise SampleError(
        f"nothing is known about how a {type(value).__name__} becomes {name!r}: give bytes, or an extension such as "
        f"txt, cls, json, npy or png"
    )


def missing_package(error: ImportError) -> str:
    """Return the package to install after an import failed."""
    return _INSTALL.get(str(error.name), str(error.name))


# Text and numbers


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8")


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise SampleError(f"a text member holds a str, not the {type(value).__name__} {value!r:.100}")
    return value.encode()


def _encode_integer(value: Any) -> bytes:
    is_scalar = hasattr(value, "item") and math.prod(value.shape) == 1  # of numpy or torch
    number = value.item() if is_scalar else value
    if isinstance(number, str):
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise SampleError(f"a class or index is an integer, not the {type(value).__name__} {value!r:.100}")
    return str(number).encode()


def _encode_json(value: Any) -> bytes:
    return _TO_JSON.encode(value).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's and torch's
        return value.tolist()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


# Arrays and tensors


def _array(value: Any) -> npt.NDArray[Any]:
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        raise SampleError("numpy has no bfloat16: give value.float(), or the tensor to a field such as pth")
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.hasobject:
        raise SampleError(f"a {type(value).__name__} makes an array of objects, which only a pickle can hold")
    return array


def read_npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array in a ``.npy`` member, which holds no Python objects; what follows it is ignored, as by numpy.

    Raises `SampleError` where the header announces more than follows it, or numbers that are no shape, and
    ``ValueError`` for what is no ``.npy`` file.
    """
    length = npy_header_length(data[:NPY_PREFIX])
    layout = npy_layout(data[:length]) if length <= len(data) else None
    if layout is not None and not layout.is_possible:
        raise SampleError(f"the header announces shape {layout.shape}, which no array has: write the array again")
    if layout is not None and layout.num_bytes > len(data) - length:
        raise SampleError(
            f"the header announces shape {layout.shape} of {layout.dtype}, which takes {layout.num_bytes:,} bytes, but "
            f"{len(data) - length:,} follow it: write the array again"
        )
    return _native(np.lib.format.read_array(io.BytesIO(data), allow_pickle=False))


def _native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array in this machine's byte order, the only one that torch makes tensors of."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _encode_npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _array(value), allow_pickle=False)
    return stream.getvalue()


def decode_npz(data: bytes, most: int = EXPANSION_LIMIT) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file by name; raise `SampleError` where they have more than ``most`` bytes."""
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream) as archive:
        parts = archive.infolist()
    if sum(part.file_size for part in parts) > most:
        raise SampleError(f"a compressed member of {len(data):,} bytes unpacks to over {most:,} bytes")
    if others := [part.filename for part in parts if part.compress_type not in zip_entries.METHODS]:
        raise SampleError(f"{others[0]!r} in it is compressed in a way that Python cannot read: write the arrays again")
    return {part.filename.removesuffix(".npy"): read_npy(zip_entries.content(stream, part)) for part in parts}


def _encode_npz(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise SampleError(f"an npz member holds a dict of arrays, not a {type(value).__name__}")
    stream = io.BytesIO()
    np.savez(stream, **{str(name): _array(part) for name, part in value.items()})  # type: ignore[arg-type]
    return stream.getvalue()


def _decode_pth(data: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _encode_pth(value: Any) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


# Other containers


def _apply(module: str, function: str, value: Any) -> Any:
    """Call a function of a package that is imported when it is first needed."""
    return getattr(importlib.import_module(module), function)(value)


def _encode_tenbin(value: Any) -> bytes:
    from webdataset import tenbin

    return bytes(tenbin.encode_buffer([_array(part) for part in value]))


# Images, which `images.decode` decodes


def _encode_image(kind: str, **settings: Any) -> Callable[[Any], bytes]:
    """Return the encoder of one image format."""

    def encoded(value: Any) -> bytes:
        from PIL import Image

        image = value if isinstance(value, Image.Image) else Image.fromarray(_pixels(value))
        stream = io.BytesIO()
        image.save(stream, kind, **settings)
        return stream.getvalue()

    return encoded


def _pixels(value: Any) -> npt.NDArray[np.uint8]:
    pixels = _array(value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)):
        raise SampleError(
            f"an image is a PIL image or uint8 [height, width] or [height, width, 1, 3 or 4], not {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    return pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


_TO_JSON = json.JSONEncoder(ensure_ascii=False, default=_plain)

_TABLE: list[tuple[str, Callable[[bytes], Any] | None, Callable[[Any], bytes]]] = [
    ("txt text transcript", _decode_text, _encode_text),
    ("cls cls2 index inx id", int, _encode_integer),
    ("json jsn", json.loads, _encode_json),
    ("npy", read_npy, _encode_npy),
    ("npz", decode_npz, _encode_npz),
    ("mp msg", partial(_apply, "msgpack", "unpackb"), partial(_apply, "msgpack", "packb")),
    ("cbor", partial(_apply, "cbor2", "loads"), partial(_apply, "cbor2", "dumps")),
    ("pth", _decode_pth, _encode_pth),
    ("ten tb", partial(_apply, "webdataset.tenbin", "decode_buffer"), _encode_tenbin),
    ("jpg jpeg", None, _encode_image("JPEG", quality=95)),
    ("png", None, _encode_image("PNG")),
    ("webp", None, _encode_image("WEBP", quality=95)),
]
DECODERS = {extension: decode for names, decode, _ in _TABLE if decode is not None for extension in names.split()}
"""The functions of bytes that ``decode=True`` takes, by extension."""
_ENCODERS = {extension: encode for names, _, encode in _TABLE for extension in names.split()}
