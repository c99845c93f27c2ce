"""Member bytes to values, by the extension table that WebDataset tools share.

The last part of the extension decides, in lower case: ``seg.npy`` is an array. A trailing ``.gz`` is unpacked first.
Nothing here runs code from the data: pickles are never loaded, and ``.pth`` only as plain tensors.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from wdsdist.errors import ArgumentError, ArgumentTypeError, DecodeError
from wdsdist.samples.arrays import RawArray, read_npy, stacked_npy
from wdsdist.samples.collate import Stacked
from wdsdist.samples.images.decode import image_decoder
from wdsdist.samples.images.transforms import is_seeded
from wdsdist.storage import compression

Decode = bool | str | Mapping[str, Any] | None
"""What ``decode=`` takes: ``None``, ``True``, an image specification, or functions and dtypes by extension."""

Unzip = Callable[[bytes, int, int], bytes]
"""From gzip, the number of the layer that it is, from 1, and the most bytes that may come out, to what is in it."""

_EXPANSION_LIMIT = 1 << 30
"""Bytes that one compressed member may unpack to: a few kilobytes of zeros must not fill the memory."""

_INSTALL = {"msgpack": "msgpack", "cbor2": "cbor2", "PIL": "wdsdist[images]"}


class Decoder:
    """Decodes members as ``decode=`` asks; made once, used in every worker.

    >>> Decoder(True)("cls", b"7"), Decoder(True)("json", b'{"a": 1}'), Decoder(None)("txt", b"raw")
    (7, {'a': 1}, b'raw')
    >>> Decoder({"txt": len, "bin": np.uint16})("txt", b"four")
    4

    Raises `ArgumentError` for an image specification that does not exist, and for ``max_pixels`` without one.
    """

    def __init__(self, decode: Decode, *, max_pixels: int | None = None) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._image: Callable[[str, bytes], Any] | None = None
        self.is_raw = decode is None or decode is False
        if max_pixels is not None and not isinstance(decode, str):
            raise ArgumentError(
                f"max_pixels is {max_pixels!r}, but decode is {decode!r}, which decodes no images itself: give it to "
                f"the transforms that do, as in RandomResizedCrop(224, max_pixels={max_pixels!r})"
            )
        if isinstance(decode, Mapping):
            self._functions = {str(extension).lower(): _function(extension, what) for extension, what in decode.items()}
        elif isinstance(decode, (bool, str)):
            self._functions = dict(_TABLE) if decode else {}
            if isinstance(decode, str):
                self._image = image_decoder(decode, max_pixels=max_pixels)
        elif decode is not None:
            raise ArgumentTypeError(f"decode is {decode!r}: it can be None, True, a string or a mapping")
        self.is_seeded = any(map(is_seeded, self._functions.values()))
        self.is_light = self._image is None and all(
            isinstance(function, RawArray) or function in (*_TABLE.values(),) for function in self._functions.values()
        )

    def stacked(self, extensions: Sequence[str], parts: Sequence[memoryview]) -> Stacked | None:
        """Return the members of a column as one tensor, or ``None`` where each has to be decoded by itself."""
        name = extensions[0].lower()
        if any(extension != extensions[0] for extension in extensions):
            return None
        function = self._find(name)
        if function is read_npy:
            return stacked_npy(parts)
        return function.stacked(parts) if isinstance(function, RawArray) else None

    def __call__(self, extension: str, data: bytes, seed: int = 0, unzip: Unzip | None = None) -> Any:
        """Return the value of one member; bytes where nothing is known about its extension.

        ``seed`` is passed to functions that were marked with `wdsdist.transforms.seeded`. ``unzip`` counts what the
        members of a shard unpack to; by default only this one is looked at.

        Raises `DecodeError` where the bytes are not what the extension says.
        """
        if self.is_raw:
            return data
        name = extension.lower()
        try:
            return self._decode(name, data, seed, unzip or _unzip)
        except DecodeError:
            raise
        except ImportError as error:
            package = _INSTALL.get(str(error.name), str(error.name))
            raise DecodeError(f"decoding {name!r} needs a package: pip install {package!r}") from error
        except Exception as error:  # each decoder has its own errors; one sort leaves here
            raise DecodeError(
                f"{len(data):,} bytes do not decode as {name!r}: {type(error).__name__}: {error}"
            ) from error

    def _find(self, name: str) -> Callable[..., Any] | None:
        return self._functions.get(name) or self._functions.get(name.rpartition(".")[2])

    def _decode(self, name: str, data: bytes, seed: int, unzip: Unzip, level: int = 1) -> Any:
        function = self._find(name)
        if function is not None:
            return function(data, seed) if self.is_seeded and is_seeded(function) else function(data)
        if name.endswith(".gz") and len(name) > 3:
            return self._decode(name[:-3], unzip(data, level, _EXPANSION_LIMIT), seed, unzip, level + 1)
        if self._image is not None:
            value = self._image(name, data)
            if value is not None:
                return value
        return data


def _function(extension: object, what: Any) -> Callable[..., Any]:
    if isinstance(extension, str):
        if isinstance(what, (np.dtype, torch.dtype)) or (isinstance(what, type) and issubclass(what, np.generic)):
            return RawArray.of(extension, what)
        if callable(what):
            return what  # type: ignore[no-any-return]
    raise ArgumentTypeError(
        f"decode maps {extension!r} to {what!r}: it maps extensions to functions of bytes, or to dtypes of raw arrays"
    )


def _unzip(data: bytes, level: int, most: int) -> bytes:
    return compression.unzip(data, most)


def _check_expansion(size: int, unpacked: int) -> None:
    if unpacked > _EXPANSION_LIMIT:
        raise DecodeError(f"a compressed member of {size:,} bytes unpacks to over {_EXPANSION_LIMIT:,} bytes")


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _npz(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        _check_expansion(len(data), sum(part.file_size for part in archive.infolist()))
    return dict(np.load(io.BytesIO(data), allow_pickle=False))


def _msgpack(data: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(data)


def _cbor(data: bytes) -> Any:
    import cbor2

    return cbor2.loads(data)


def _pth(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _tenbin(data: bytes) -> Any:
    from webdataset import tenbin

    return tenbin.decode_buffer(data)


_TABLE: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": read_npy,
    "npz": _npz,
    **dict.fromkeys(("mp", "msg"), _msgpack),
    "cbor": _cbor,
    "pth": _pth,
    **dict.fromkeys(("ten", "tb"), _tenbin),
}
