"""Describe members and decoded values as people look at them: as data for a page, strings without markup.

A description is a dict with a ``kind``: ``image``, ``array``, ``tokens``, ``number``, ``text``, ``json``, ``audio``,
``video``, ``arrays``, ``bytes`` or ``error``. Nothing is unpickled, and nothing that is cut is read beyond its limit.
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.file_types import IMAGE_TYPES, RARE_IMAGE_TYPES, extension_of
from wdsdist._util.npy_header import NPY_PREFIX, npy_header_length, npy_layout
from wdsdist.diagnostics.view import pictures
from wdsdist.errors import SampleError, WdsdistError
from wdsdist.samples.codecs import DECODERS, missing_package, read_npy
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.samples.member_reader import MemberReader, StoredMember, StoredSample
    from wdsdist.shards.manifest import Manifest

Description = dict[str, Any]
Read = Callable[[int, int], bytes]
"""Returns the bytes of a member from the first up to the second offset."""

MEDIA = {
    "mp4": "video/mp4", "m4v": "video/mp4", "mov": "video/mp4", "webm": "video/webm", "ogv": "video/ogg",
    "mp3": "audio/mpeg", "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "oga": "audio/ogg",
    "opus": "audio/ogg", "m4a": "audio/mp4", "aac": "audio/aac",
}  # fmt: skip
"""Media that browsers play, by the last part of an extension."""

_KINDS = {
    **{name: media.partition("/")[0] for name, media in MEDIA.items()},
    **dict.fromkeys((*IMAGE_TYPES, *RARE_IMAGE_TYPES, "ico", "tga"), "image"),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "number"),
    **dict.fromkeys(("json", "jsn"), "json"),
    **dict.fromkeys(("mp", "msg", "cbor"), "tree"),
    **dict.fromkeys(("pkl", "pickle", "pyd", "pth", "pt"), "pickle"),
    **dict.fromkeys(("txt", "text", "transcript"), "text"),
    **{name: name for name in ("npy", "npz", "gz")},
}
"""How a member is described, by the last part of its extension."""

_MOST_BYTES = 64 << 20
"""Bytes of a member that is read whole; only the header of a larger one is shown."""
_MOST_UNPACKED = 64 << 20
_MOST_PICTURED = 256 << 20
"""Bytes of a member from which a picture is made, at most."""
_SNIFFED = 4096
_DIGITS = 300
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a member is shown."""

    text: int
    """Bytes of a text."""
    nodes: int
    """Values of a JSON tree."""
    tokens: int
    bytes: int


TILE = Limits(text=700, nodes=80, tokens=40, bytes=48)
PAGE = Limits(text=200_000, nodes=5_000, tokens=4_096, bytes=1_024)


@dataclass(frozen=True, slots=True)
class Style:
    """Facts about a data set that its bytes do not tell."""

    classes: tuple[str, ...] = ()
    """The names of classes, by number."""
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """Dtypes of the rows of raw arrays, by extension."""
    max_pixels: int | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Style:
        """Return what a data set notes of its classes and arrays."""
        notes = manifest.extra.get("arrays") or {}
        dtypes = {name: np.dtype((note["dtype"], tuple(note["shape"][1:]))) for name, note in notes.items()}
        return cls(tuple(map(str, manifest.extra.get("classes") or ())), dtypes)


def member(extension: str, size: int, read: Read, limits: Limits, style: Style) -> Description:
    """Describe one member; a fault of it is a description too.

    Args:
        extension: of the member, in any case.
        size: bytes of the member.
        read: reads its bytes.
        limits: how much is shown.
        style: facts about the data set.

    >>> member("cls", 1, lambda start, stop: b"3"[start:stop], TILE, Style(classes=("ant", "bee", "cat", "dog")))
    {'kind': 'number', 'text': '3', 'label': 'dog'}
    """
    try:
        return _member(extension.lower(), size, read, limits, style)
    except WdsdistError as error:
        return {"kind": "error", "message": str(error)}
    except ImportError as error:
        return {"kind": "error", "message": f"shown with a package: pip install {missing_package(error)!r}"}
    except Exception as error:  # each decoder has its own errors; the page shows them in place of the value
        return {"kind": "error", "message": f"does not decode as {extension}: {type(error).__name__}: {error}"}


def kind_of(extension: str, size: int, read: Read, style: Style) -> str:
    """Return the kind of a member, from its extension, or else from its first bytes.

    >>> kind_of("seg.png", 9, lambda start, stop: b"", Style()), kind_of("x", 2, lambda start, stop: b"hi", Style())
    ('image', 'text')
    """
    name = extension.lower()
    last = name.rpartition(".")[2]
    if name in style.dtypes or last in style.dtypes:
        return "raw"
    if last in _KINDS:
        return _KINDS[last]
    start = read(0, min(size, _SNIFFED))
    if extension_of(start) in (*IMAGE_TYPES, *RARE_IMAGE_TYPES):
        return "image"
    return "text" if _is_text(start) else "bytes"


def array_of(extension: str, data: bytes, style: Style) -> npt.NDArray[Any]:
    """Return the array in a member: of a ``.npy`` file, or raw if its dtype is known.

    Raises `SampleError` and ``ValueError`` if it holds no array.
    """
    dtype = style.dtypes.get(extension.lower()) or style.dtypes.get(extension.lower().rpartition(".")[2])
    if dtype is None:
        return read_npy(data)
    if len(data) % dtype.itemsize:
        raise SampleError(f"{len(data):,} bytes are no whole number of {dtype} items of {dtype.itemsize} bytes")
    return np.frombuffer(data, dtype)


def picture(
    reader: MemberReader, place: StoredSample, member: StoredMember, side: int, style: Style
) -> tuple[bytes, str]:
    """Return the picture of an image or array in a member, as bytes and media type.

    Raises `SampleError` and ``ValueError`` if it has no picture, and what reading the member raises.
    """
    if member.size > _MOST_PICTURED:
        raise SampleError(f"{member.size:,} bytes are more than the {_MOST_PICTURED:,} that are shown")
    name, data = member.extension.lower(), reader.read(place, member)
    if name.endswith(".gz"):
        name, data = name.removesuffix(".gz"), compression.unzip(data, _MOST_UNPACKED)
    if kind_of(name, len(data), lambda start, stop: data[start:stop], style) in ("npy", "raw"):
        return pictures.of_array(array_of(name, data, style), side)
    return pictures.of_image(data, side, max_pixels=style.max_pixels)


def _member(name: str, size: int, read: Read, limits: Limits, style: Style) -> Description:
    if not size:
        return {"kind": "bytes", "hex": "", "note": "empty"}
    kind = kind_of(name, size, read, style)
    if kind in ("image", "audio", "video"):
        return {"kind": kind}
    if kind == "text":
        return _text(read(0, min(size, limits.text)), size)
    if kind in ("bytes", "pickle"):
        note = "a pickle, which is not loaded" if kind == "pickle" else ""
        return {"kind": "bytes", "hex": read(0, min(size, limits.bytes)).hex(" "), "note": note}
    if kind == "npy" and size > _MOST_BYTES:
        return _header_only(read(0, min(size, 1 << 14)))
    if size > _MOST_BYTES:
        return {"kind": "bytes", "hex": "", "note": f"{size:,} bytes, more than the {_MOST_BYTES:,} that are decoded"}
    if kind == "gz":
        data = compression.unzip(read(0, size), _MOST_UNPACKED)
        return _member(name.removesuffix(".gz"), len(data), lambda start, stop: data[start:stop], limits, style)
    return _decoded(kind, name, read(0, size), limits, style)


def _decoded(kind: str, name: str, data: bytes, limits: Limits, style: Style) -> Description:
    if kind == "number":
        return _number(data, style.classes if name == "cls" else ())
    if kind in ("npy", "raw"):
        return _array(array_of(name, data, style), limits)
    if kind == "npz":
        return {"kind": "arrays", "arrays": _headers_of_npz(data)}
    if kind == "json":
        return _tree(_parsed(data), limits)
    return _tree(DECODERS[name.rpartition(".")[2]](data), limits)


def _text(data: bytes, size: int) -> Description:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) == size)
        note = ""
    except UnicodeDecodeError:
        text, note = data.decode("utf-8", "replace"), "not UTF-8"
    found: Description = {"kind": "text", "text": text, "is_cut": len(data) < size}
    return {**found, "note": note} if note else found


def _number(data: bytes, classes: tuple[str, ...]) -> Description:
    value = int(data[:_DIGITS])
    found = {"kind": "number", "text": str(value)}
    return {**found, "label": classes[value]} if 0 <= value < len(classes) else found


def _parsed(data: bytes) -> Any:
    # Numbers stay as they are written: a float or an integer of a browser could change them.
    return json.loads(data, parse_int=_Literal, parse_float=_Literal, parse_constant=_Literal)


class _Literal(str):
    """A number of JSON as it was written."""

    __slots__ = ()


def _tree(value: Any, limits: Limits) -> Description:
    """Describe a tree of values; a list of integers is one of token ids."""
    if isinstance(value, list) and len(value) > 1 and all(_is_integer(one) for one in value):
        numbers = [str(one) for one in value[: limits.tokens]]
        return {"kind": "tokens", "count": len(value), "ids": numbers, "dtype": "list"}
    left = [limits.nodes]
    return {"kind": "json", "tree": _node(value, left, limits.text, 0), "is_cut": left[0] < 0}


def _is_integer(value: Any) -> bool:
    if isinstance(value, _Literal):
        return value.lstrip("-").isdecimal()
    return isinstance(value, int) and not isinstance(value, bool)


def _node(value: Any, left: list[int], most_text: int, depth: int) -> list[Any]:
    """Return a value as ``[kind, content, total]``: kinds are ``object``, ``list``, ``text`` and ``plain``."""
    left[0] -= 1
    if isinstance(value, (Mapping, list, tuple)) and depth < _DEEPEST:
        names = value if isinstance(value, Mapping) else None
        shown: list[Any] = []
        for key, one in enumerate(value) if names is None else names.items():
            if left[0] <= 0:
                left[0] = -1
                break
            node = _node(one, left, most_text, depth + 1)
            shown.append(node if names is None else [str(key)[:_DIGITS], node])
        return ["list" if names is None else "object", shown, len(value)]
    if isinstance(value, str) and not isinstance(value, _Literal):
        return ["text", value[:most_text], len(value)]
    if value is None or isinstance(value, bool):
        return ["plain", json.dumps(value), 0]
    return ["plain", _shown(value), 0]


def _shown(value: Any) -> str:
    if isinstance(value, _Literal):
        return str(value)[:_DIGITS]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value):,} bytes"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    return repr(value)[:_DIGITS]


def _array(array: npt.NDArray[Any], limits: Limits) -> Description:
    found: Description = {"kind": "array", "dtype": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind in "biuf" and array.size:
        found |= {"least": _shown_number(array.min()), "most": _shown_number(array.max())}
    if array.dtype.kind in "iu" and array.ndim == 1:
        return {
            **found, "kind": "tokens", "count": len(array), "ids": [str(one) for one in array[: limits.tokens].tolist()]
        }  # fmt: skip
    if array.ndim < 2 and not array.dtype.hasobject:
        found["values"] = [_shown_number(one) for one in array.reshape(-1)[: limits.tokens]]
    return {**found, "has_picture": pictures.has_picture(array.shape, array.dtype)}


def _shown_number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _header_only(data: bytes) -> Description:
    layout = npy_layout(data[: npy_header_length(data[:NPY_PREFIX])])
    if layout is None:
        raise SampleError("it has no header of a .npy file")
    return {"kind": "array", "dtype": str(layout.dtype), "shape": list(layout.shape), "has_picture": False}


def _headers_of_npz(data: bytes) -> list[dict[str, Any]]:
    """Return name, dtype and shape of each array in an ``.npz`` file, from the headers alone."""
    found = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist()[:100]:
            start = b""
            if entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile reads these in pieces
                with archive.open(entry) as stream:
                    start = stream.read(10_012)
            layout = npy_layout(start)
            what = {"dtype": str(layout.dtype), "shape": list(layout.shape)} if layout else {"dtype": "?", "shape": []}
            found.append({"name": entry.filename.removesuffix(".npy"), **what})
    return found


def _is_text(data: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return all(letter in "\t\n\r\f\x1b" or letter >= " " for letter in text)


def value(field_name: str, found: Any, limits: Limits, style: Style) -> Description:
    """Describe an entry of a sample as training gets it: decoded and transformed, pictures inlined as data URLs."""
    if isinstance(found, (bytes, bytearray, memoryview)):
        data = bytes(found)
        described = member(field_name, len(data), lambda start, stop: data[start:stop], limits, style)
        if described["kind"] == "image":
            return {**described, "url": data_url(*pictures.of_image(data, pictures.TILE, max_pixels=style.max_pixels))}
        if described["kind"] in ("audio", "video"):
            return {"kind": "bytes", "hex": "", "note": f"{described['kind']}, {len(data):,} bytes"}
        return described
    if isinstance(found, str):
        return {"kind": "text", "text": found[: limits.text], "is_cut": len(found) > limits.text}
    if hasattr(found, "detach"):  # a tensor, looked at without importing torch
        found = found.detach().cpu()
        found = (found.float() if str(found.dtype) == "torch.bfloat16" else found).numpy()
    elif hasattr(found, "getbands"):  # an image of Pillow
        found = np.asarray(found)
    if isinstance(found, np.ndarray) and found.ndim:
        described = _array(found, replace(limits, tokens=min(limits.tokens, 64)))
        if described.get("has_picture"):
            described["url"] = data_url(*pictures.of_array(found, pictures.TILE))
        return described
    if isinstance(found, (int, float, np.generic)) or (isinstance(found, np.ndarray) and not found.ndim):
        number = found.item() if hasattr(found, "item") else found
        if isinstance(number, int) and not isinstance(number, bool):
            return _number(str(number).encode(), style.classes if field_name == "cls" else ())
        return {"kind": "number", "text": _shown_number(number)}
    return _tree(found, limits)


def data_url(content: bytes, kind: str) -> str:
    """Return content as a URL that holds it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
