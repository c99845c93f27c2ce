"""Encoders: functions from a value to the bytes of a member, which packing uses.

A value that is encoded here decodes to an equal value, except the pixels of lossy images.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.codecs import missing_package


def encode(extension: str, value: Any) -> bytes:
    """Return the bytes of a member that holds ``value``.

    Bytes pass unchanged, whatever the extension. Other values:

    - ``txt text transcript``: a str, in UTF-8;
    - ``cls cls2 index inx id``: an integer, in decimal digits;
    - ``json jsn``: any JSON value, with scalars, arrays and tensors as numbers and lists;
    - ``npy``: an array, or what numpy converts to one, ``npz``: a dict of arrays; never objects, which would be
      pickled;
    - ``mp msg``: any msgpack value, ``pth``: what ``torch.save`` writes and ``torch.load(weights_only=True)`` reads;
    - ``jpg jpeg png webp``: a PIL image, or uint8 [height, width] or [height, width, 1, 3 or 4];
    - a final ``gz`` compresses any of them, without a time in the header.

    Args:
        extension: such as ``"cls"`` or ``"seg.png"``.
        value: what decoding the member returns.

    Raises `SampleError` for a value that the extension cannot hold, and for an unknown extension.

    >>> encode("cls", 7), encode("txt", "söt"), encode("meta.json", {"a": [1, None]}), encode("bin", b"raw")
    (b'7', b's\\xc3\\xb6t', b'{"a": [1, null]}', b'raw')
    """
    if not isinstance(extension, str):
        raise ArgumentError(
            f"extension is {extension!r}: it must be a string, such as 'cls' or 'seg.png'", argument="extension"
        )
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    try:
        return _encode(extension.lower(), value)
    except SampleError:
        raise
    except ImportError as error:
        raise SampleError(f"encoding {extension!r} needs a package: pip install {missing_package(error)!r}") from error
    except Exception as error:  # each encoder has its own errors
        kind = type(value).__name__
        raise SampleError(
            f"a {kind} value cannot be encoded as {extension!r}: {type(error).__name__}: {error}"
        ) from error


def can_encode(extension: str) -> bool:
    """Return whether values that are not bytes can be encoded for an extension.

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
        f"no encoder makes {name!r} from a {type(value).__name__}: give bytes, or an extension such as txt, cls, json, "
        f"npy or png"
    )


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise SampleError(f"a member of text holds a str, not the {type(value).__name__} {value!r:.100}")
    return value.encode()


def _encode_integer(value: Any) -> bytes:
    is_scalar = hasattr(value, "item") and math.prod(value.shape) == 1  # numpy's or torch's
    number = value.item() if is_scalar else value
    if isinstance(number, str):
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise SampleError(f"a class or index is an integer, not the {type(value).__name__} {value!r:.100}")
    return str(number).encode()


def _encode_json(value: Any) -> bytes:
    return _TO_JSON.encode(value).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's or torch's
        return value.tolist()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _array(value: Any) -> npt.NDArray[Any]:
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        raise SampleError("numpy has no bfloat16: give value.float(), or the tensor to a field such as pth")
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.hasobject:
        raise SampleError(f"a {type(value).__name__} makes an array of objects, which only a pickle can hold")
    return array


def _encode_npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _array(value), allow_pickle=False)
    return stream.getvalue()


def _encode_npz(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise SampleError(f"an npz member holds a dict of arrays, not a {type(value).__name__}")
    stream = io.BytesIO()
    np.savez(stream, **{str(name): _array(entry) for name, entry in value.items()})  # type: ignore[arg-type]
    return stream.getvalue()


def _encode_msgpack(value: Any) -> bytes:
    return bytes(import_module("msgpack").packb(value))


def _encode_pth(value: Any) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


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

_TABLE: dict[str, Callable[[Any], bytes]] = {
    "txt text transcript": _encode_text,
    "cls cls2 index inx id": _encode_integer,
    "json jsn": _encode_json,
    "npy": _encode_npy,
    "npz": _encode_npz,
    "mp msg": _encode_msgpack,
    "pth": _encode_pth,
    "jpg jpeg": _encode_image("JPEG", quality=95),
    "png": _encode_image("PNG"),
    "webp": _encode_image("WEBP", quality=95),
}
_ENCODERS = {extension: encode for names, encode in _TABLE.items() for extension in names.split()}
