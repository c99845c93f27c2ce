"""Values to member bytes, by extension: the inverse of `wdsdist.decode`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from wdsdist.errors import ArgumentTypeError


def encode(extension: str, value: Any) -> bytes:
    """Return the bytes of a member; the last part of its extension says how, and bytes stay as they are.

    Raises `ArgumentTypeError` for a value that its extension has no bytes for.

    >>> encode("cls", 7), encode("txt", "ja"), encode("meta.json", {"a": 1}), encode("jpg", b"...")
    (b'7', b'ja', b'{"a":1}', b'...')
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    function = _TABLE.get(extension.lower().rpartition(".")[2])
    if function is None:
        raise ArgumentTypeError(f"a {type(value).__name__} has no bytes as {extension!r}: give bytes")
    try:
        return function(value)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"a {type(value).__name__} has no bytes as {extension!r}: {error}") from error


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("it must be a str")
    return value.encode()


def _integer(value: Any) -> bytes:
    return str(value.__index__() if hasattr(value, "__index__") else int(str(value))).encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


_TABLE: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _integer),
    **dict.fromkeys(("json", "jsn"), _json),
    "npy": _npy,
}
