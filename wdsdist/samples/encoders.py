"""The table of encoders: functions from a value to the bytes of a member, by extension, which packing uses.

A value that is encoded here decodes to an equal value, except the pixels of lossy images.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.file_types import last_part
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
    kind, function = type(value).__name__, encoder_of(extension)
    if function is None:
        raise SampleError(
            f"no encoder makes {extension!r} from a {kind}: give bytes or an array, or an extension such as txt, cls, "
            f"json, npy or png"
        )
    try:
        return function(value)
    except ImportError as error:
        raise SampleError(f"encoding {extension!r} needs a package: pip install {missing_package(error)!r}") from error
    except Exception as error:  # each encoder has its own errors
        reason = f"{type(error).__name__}: {error}"
        raise SampleError(f"a {kind} value cannot be encoded as {extension!r}: {reason}") from error


def encoder_of(extension: str) -> Callable[[Any], bytes] | None:
    """Return the function that encodes values to bytes for an extension; ``None`` for an unknown extension.

    >>> [encoder_of(extension) is not None for extension in ("seg.npy", "json.gz", "flac")]
    [True, True, False]
    """
    name = extension.lower()
    if name.endswith(".gz") and (encoder := encoder_of(name[:-3])):
        return lambda value: gzip.compress(encoder(value), mtime=0)
    return _ENCODERS.get(last_part(name))


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("a member of text holds a str")
    return value.encode()


def _encode_integer(value: Any) -> bytes:
    is_scalar = hasattr(value, "item") and math.prod(value.shape) == 1  # numpy's or torch's
    number = value.item() if is_scalar else int(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError("a class or index is an integer")
    return str(number).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's or torch's
        return value.tolist()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def array_of(value: Any) -> npt.NDArray[Any]:
    """Return a value as an array. Raises `TypeError` for one that only a pickle can hold, and for bfloat16."""
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        raise TypeError("numpy has no bfloat16: give value.float(), or the tensor to a field such as pth")
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError("it makes an array of objects, which only a pickle can hold")
    return array


def _written(write: Callable[[io.BytesIO], Any]) -> bytes:
    """Call an encoder with a file in memory; return the encoded bytes."""
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def _encode_image(value: Any, kind: str, **settings: Any) -> bytes:
    from PIL import Image

    if not isinstance(value, Image.Image):
        pixels = array_of(value)
        pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
        if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
            raise TypeError(
                f"an image is a PIL image or uint8 [height, width] or [height, width, 1, 3 or 4], not {pixels.dtype} "
                f"{list(pixels.shape)}"
            )
        value = Image.fromarray(pixels)
    return _written(lambda stream: value.save(stream, kind, **settings))


_TO_JSON = json.JSONEncoder(ensure_ascii=False, default=_plain)

_TABLE: dict[str, Callable[[Any], bytes]] = {
    "txt text transcript": _encode_text,
    "cls cls2 index inx id": _encode_integer,
    "json jsn": lambda value: _TO_JSON.encode(value).encode(),
    "npy": lambda value: _written(lambda stream: np.save(stream, array_of(value), allow_pickle=False)),
    "npz": lambda value: _written(
        lambda stream: np.savez(stream, **{str(name): array_of(entry) for name, entry in value.items()})  # type: ignore[arg-type]
    ),
    "mp msg": lambda value: bytes(import_module("msgpack").packb(value)),
    "pth": lambda value: _written(lambda stream: import_module("torch").save(value, stream)),
    "jpg jpeg": partial(_encode_image, kind="JPEG", quality=95),
    "png": partial(_encode_image, kind="PNG"),
    "webp": partial(_encode_image, kind="WEBP", quality=95),
}
_ENCODERS = {extension: encode for names, encode in _TABLE.items() for extension in names.split()}
