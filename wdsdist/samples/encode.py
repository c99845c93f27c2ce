"""Values to member bytes: the other direction of `wdsdist.samples.decode`, by the same table of extensions.

The last part of the extension decides, in lower case: the value of ``seg.npy`` is an array. What is encoded here
decodes to an equal value, but for the pixels of lossy images. Nothing is ever pickled.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist.errors import EncodeError

_INSTALL = {"msgpack": "msgpack", "cbor2": "cbor2", "PIL": "wdsdist[images]"}


def encode(extension: str, value: Any) -> bytes:
    """Return the bytes of a member that holds ``value``.

    Bytes are passed through, whatever the extension. Of the rest,

    - ``txt text transcript`` hold a str, in UTF-8;
    - ``cls cls2 index inx id`` an integer, in decimal digits;
    - ``json jsn`` whatever JSON can hold, numpy's scalars and arrays as numbers and lists;
    - ``npy`` an array or what numpy makes one of, ``npz`` a dict of them; never objects, which would be pickled;
    - ``mp msg`` what msgpack can hold, ``cbor`` what CBOR can hold, ``pth`` what ``torch.save`` writes and
      ``torch.load(weights_only=True)`` reads, ``ten tb`` a list of arrays;
    - ``jpg jpeg png webp`` a PIL image, or uint8 [height, width] or [height, width, 1, 3 or 4];
    - ``gz`` after any of them compresses it, with no time in its header.

    Args:
        extension: such as ``"cls"`` or ``"seg.png"``.
        value: what `wdsdist.samples.decode` is to return.

    Raises `EncodeError` for a value that the extension cannot hold, and for an unknown extension.

    >>> encode("cls", 7), encode("txt", "söt"), encode("meta.json", {"a": [1, None]}), encode("bin", b"raw")
    (b'7', b's\\xc3\\xb6t', b'{"a": [1, null]}', b'raw')
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    name = extension.lower()
    try:
        return _encode(name, value)
    except EncodeError:
        raise
    except ImportError as error:
        package = _INSTALL.get(str(error.name), str(error.name))
        raise EncodeError(f"encoding {extension!r} needs a package: pip install {package!r}") from error
    except Exception as error:  # each encoder has its own errors; one sort leaves here
        what = f"{type(value).__name__} value"
        raise EncodeError(f"a {what} cannot be encoded as {extension!r}: {type(error).__name__}: {error}") from error


def can_encode(extension: str) -> bool:
    """Say whether values that are not bytes can be encoded for an extension.

    >>> can_encode("seg.npy"), can_encode("json.gz"), can_encode("flac")
    (True, True, False)
    """
    name = extension.lower()
    return name.rpartition(".")[2] in _TABLE or (name.endswith(".gz") and can_encode(name[:-3]))


def _encode(name: str, value: Any) -> bytes:
    function = _TABLE.get(name.rpartition(".")[2])
    if function is not None:
        return function(value)
    if name.endswith(".gz") and len(name) > 3:
        return gzip.compress(_encode(name[:-3], value), mtime=0)
    raise EncodeError(
        f"nothing is known about how a {type(value).__name__} becomes {name!r}: give bytes, or an extension such as "
        f"txt, cls, json, npy or png"
    )


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise EncodeError(f"a text member holds a str, not the {type(value).__name__} {value!r:.100}")
    return value.encode()


def _integer(value: Any) -> bytes:
    number = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 else value
    if isinstance(number, str):
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise EncodeError(f"a class or index is an integer, not the {type(value).__name__} {value!r:.100}")
    return str(number).encode()


def _json(value: Any) -> bytes:
    return _TO_JSON.encode(value).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _array(value: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.hasobject:
        raise EncodeError(f"a {type(value).__name__} makes an array of objects, which only a pickle can hold")
    return array


def _npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _array(value), allow_pickle=False)
    return stream.getvalue()


def _npz(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise EncodeError(f"an npz member holds a dict of arrays, not a {type(value).__name__}")
    stream = io.BytesIO()
    np.savez(stream, **{str(name): _array(part) for name, part in value.items()})  # type: ignore[arg-type]
    return stream.getvalue()


def _msgpack(value: Any) -> bytes:
    import msgpack

    return bytes(msgpack.packb(value))


def _cbor(value: Any) -> bytes:
    import cbor2

    return bytes(cbor2.dumps(value))


def _pth(value: Any) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _tenbin(value: Any) -> bytes:
    from webdataset import tenbin

    return bytes(tenbin.encode_buffer([_array(part) for part in value]))


def _image(kind: str, **settings: Any) -> Callable[[Any], bytes]:
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
        raise EncodeError(
            f"an image is a PIL image or uint8 [height, width] or [height, width, 1, 3 or 4], not {pixels.dtype} "
            f"{list(pixels.shape)}"
        )
    return pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


_TO_JSON = json.JSONEncoder(ensure_ascii=False, default=_plain)

_TABLE: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _integer),
    **dict.fromkeys(("json", "jsn"), _json),
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys(("mp", "msg"), _msgpack),
    "cbor": _cbor,
    "pth": _pth,
    **dict.fromkeys(("ten", "tb"), _tenbin),
    **dict.fromkeys(("jpg", "jpeg"), _image("JPEG", quality=95)),
    "png": _image("PNG"),
    "webp": _image("WEBP", quality=95),
}
