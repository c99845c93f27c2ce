"""Describe members as people look at them: as data for a page, and as pictures.

A description is a dict with a ``kind``: ``image``, ``array``, ``tokens``, ``number``, ``text``, ``json``, ``audio``,
``video``, ``bytes`` or ``error``; its strings have no markup. Nothing is unpickled, and nothing that is cut is read
beyond its limit. Every picture is encoded again from pixels, so that nothing else of a member reaches a browser.
"""

from __future__ import annotations

import codecs
import functools
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra
from wdsdist._util.file_types import IMAGE_TYPES, RARE_IMAGE_TYPES, extension_of
from wdsdist.curation.fields import INTEGERS, JSON, array_layout
from wdsdist.errors import SampleError, WdsdistError
from wdsdist.samples.codecs import DECODERS, missing_package, read_npy
from wdsdist.samples.images.decode import EncodedImage, Pixels
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
    **dict.fromkeys(INTEGERS, "number"),
    **dict.fromkeys(JSON, "json"),
    **dict.fromkeys(("mp", "msg", "npz"), "tree"),
    **dict.fromkeys(("pkl", "pickle", "pyd", "pth", "pt"), "pickle"),
    **dict.fromkeys(("txt", "text", "transcript"), "text"),
    **{name: name for name in ("npy", "gz")},
}
"""How a member is described, by the last part of its extension."""

_MOST_BYTES = 64 << 20
"""Bytes of a member that is read whole; only the header of a larger one is shown."""
_SNIFFED, _NPY_HEADER = 4096, 16 << 10
_DIGITS = 300
_DEEPEST = 12
_LOSSY = (b"\xff\xd8\xff", b"RIFF")
"""Beginnings of formats whose pictures lose nothing more to speak of as a JPEG."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a member is shown."""

    text: int
    """Bytes of a text."""
    nodes: int
    """Values of a JSON tree."""
    tokens: int
    bytes: int
    side: int
    """Pixels of the longest side of a picture."""


TILE = Limits(text=700, nodes=80, tokens=40, bytes=48, side=320)
PAGE = Limits(text=200_000, nodes=5_000, tokens=4_096, bytes=1_024, side=1_600)


@dataclass(frozen=True, slots=True)
class Style:
    """Facts about a data set that its bytes do not tell."""

    classes: tuple[str, ...] = ()
    """The names of classes, by number."""
    dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    """Dtypes of the rows of raw arrays, by extension."""

    @classmethod
    def of(cls, manifest: Manifest) -> Style:
        """Return what a data set notes of its classes and arrays."""
        notes = manifest.extra.get("arrays") or {}
        dtypes = {name: np.dtype((note["dtype"], tuple(note["shape"][1:]))) for name, note in notes.items()}
        return cls(tuple(map(str, manifest.extra.get("classes") or ())), dtypes)


def members(
    reader: MemberReader, sample: StoredSample, limits: Limits, style: Style
) -> Iterator[tuple[StoredMember, Description]]:
    """Yield the members of a sample with their descriptions."""
    for each in sample.members:
        yield each, member(each.extension, each.size, functools.partial(reader.read, sample, each), limits, style)


def member(extension: str, size: int, read: Read, limits: Limits, style: Style) -> Description:
    """Describe one member of so many bytes, whatever the case of its extension; a fault of it is a description too."""
    try:
        return _member(extension.lower(), size, read, limits, style)
    except WdsdistError as error:
        return {"kind": "error", "message": str(error)}
    except ImportError as error:
        return {"kind": "error", "message": f"shown with a package: pip install {missing_package(error)!r}"}
    except Exception as error:  # each decoder has its own errors; the page shows them in place of the value
        return {"kind": "error", "message": f"does not decode as {extension}: {type(error).__name__}: {error}"}


def _member(name: str, size: int, read: Read, limits: Limits, style: Style) -> Description:
    if not size:
        return {"kind": "bytes", "hex": "", "note": "empty"}
    kind = kind_of(name, size, read, style)
    if kind in ("image", "audio", "video"):
        return {"kind": kind}
    if kind == "text":
        data = read(0, min(size, limits.text))
        about: Description = {"kind": "text", "is_cut": len(data) < size}
        try:
            return {**about, "text": codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) == size)}
        except UnicodeDecodeError:
            return {**about, "text": data.decode("utf-8", "replace"), "note": "not UTF-8"}
    if kind in ("bytes", "pickle"):
        note = "a pickle, which is not loaded" if kind == "pickle" else ""
        return {"kind": "bytes", "hex": read(0, min(size, limits.bytes)).hex(" "), "note": note}
    if kind == "npy" and size > _MOST_BYTES:
        layout = array_layout(memoryview(read(0, min(size, _NPY_HEADER))), size)
        return {"kind": "array", "dtype": str(layout.dtype), "shape": list(layout.shape), "has_picture": False}
    if size > _MOST_BYTES:
        return {"kind": "bytes", "hex": "", "note": f"{size:,} bytes, more than the {_MOST_BYTES:,} that are decoded"}
    data = read(0, size)
    if kind == "gz":
        unpacked = compression.unzip(data, _MOST_BYTES)
        name = name.removesuffix(".gz")
        return _member(name, len(unpacked), lambda start, stop: unpacked[start:stop], limits, style)
    value: Any
    if kind == "number":
        value = int(data[:_DIGITS])
    elif kind in ("npy", "raw"):
        value = array_of(name, data, style)
    else:
        value = json.loads(data) if kind == "json" else DECODERS[name.rpartition(".")[2]](data)
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value.item()
    if isinstance(value, np.ndarray):
        about = {"kind": "array", "dtype": str(value.dtype), "shape": list(value.shape)}
        if value.dtype.kind in "biuf" and value.size:
            about |= {"least": _shown(value.min()), "most": _shown(value.max())}
        first = [] if value.dtype.hasobject or value.ndim > 1 else value.reshape(-1)[: limits.tokens].tolist()
        if value.dtype.kind in "iu" and value.ndim == 1:
            return {**about, "kind": "tokens", "count": len(value), "ids": list(map(str, first))}
        if first:
            about["values"] = list(map(_shown, first))
        return {**about, "has_picture": has_picture(value.shape, value.dtype)}
    if isinstance(value, str):
        return {"kind": "text", "text": value[: limits.text], "is_cut": len(value) > limits.text}
    if isinstance(value, int | float):
        about = {"kind": "number", "text": _shown(value)}
        is_class = name == "cls" and type(value) is int and 0 <= value < len(style.classes)
        return {**about, "label": style.classes[int(value)]} if is_class else about
    if isinstance(value, list) and len(value) > 1 and all(type(item) is int for item in value):  # token ids
        return {"kind": "tokens", "count": len(value), "ids": list(map(str, value[: limits.tokens])), "dtype": "list"}
    left = [limits.nodes]
    return {"kind": "json", "tree": _node(value, left, limits.text, 0), "is_cut": left[0] < 0}


def kind_of(extension: str, size: int, read: Read, style: Style) -> str:
    """Return the kind of a member, from its extension, or else from its first bytes."""
    name = extension.lower()
    last = name.rpartition(".")[2]
    if name in style.dtypes or last in style.dtypes:
        return "raw"
    if last in _KINDS:
        return _KINDS[last]
    start = read(0, min(size, _SNIFFED))
    if extension_of(start) in (*IMAGE_TYPES, *RARE_IMAGE_TYPES):
        return "image"
    try:
        string = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return "bytes"
    return "text" if all(letter in "\t\n\r\f\x1b" or letter >= " " for letter in string) else "bytes"


def array_of(extension: str, data: bytes, style: Style) -> npt.NDArray[Any]:
    """Return the array in a member: of a ``.npy`` file, or raw if its dtype is known.

    Raises `SampleError` and ``ValueError`` if it holds no array.
    """
    dtype = style.dtypes.get(extension.lower()) or style.dtypes.get(extension.lower().rpartition(".")[2])
    if dtype is None:
        return read_npy(data)
    if len(data) % dtype.itemsize:
        raise SampleError(f"{len(data):,} bytes are not a whole number of {dtype} items of {dtype.itemsize} bytes")
    return np.frombuffer(data, dtype)


def _node(value: Any, left: list[int], most_text: int, depth: int) -> list[Any]:
    """Return a value as ``[kind, content, total]``: kinds are ``object``, ``list``, ``text`` and ``plain``."""
    left[0] -= 1
    if isinstance(value, (Mapping, list, tuple)) and depth < _DEEPEST:
        is_object = isinstance(value, Mapping)
        shown: list[Any] = []
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            if left[0] <= 0:
                left[0] = -1
                break
            node = _node(item, left, most_text, depth + 1)
            shown.append([str(key)[:_DIGITS], node] if is_object else node)
        return ["object" if is_object else "list", shown, len(value)]
    if isinstance(value, str):
        return ["text", value[:most_text], len(value)]
    if isinstance(value, bytes):
        return ["plain", f"{len(value):,} bytes", 0]
    if isinstance(value, np.ndarray):
        return ["plain", f"{value.dtype} {list(value.shape)}", 0]
    is_word = value is None or isinstance(value, bool)
    return ["plain", json.dumps(value) if is_word else repr(value)[:_DIGITS], 0]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def picture(
    reader: MemberReader, sample: StoredSample, member: StoredMember, limits: Limits, style: Style
) -> tuple[bytes, str]:
    """Return the picture of an image or array in a member, as bytes and media type; an image is upright.

    Values of uint8, bools and floats from 0 to 1 are shown as they are, others from the least to the most.

    Raises `SampleError` and ``ValueError`` for a member that has no picture, is damaged, or has more than 89,478,485
    pixels, and what reading the member raises.
    """
    if member.size > _MOST_BYTES:
        raise SampleError(f"{member.size:,} bytes are more than the {_MOST_BYTES:,} that are shown")
    name, data = member.extension.lower(), reader.read(sample, member)
    if name.endswith(".gz"):
        name, data = name.removesuffix(".gz"), compression.unzip(data, _MOST_BYTES)
    is_array = kind_of(name, len(data), lambda start, stop: data[start:stop], style) in ("npy", "raw")
    extra("PIL", "images", "showing a picture")
    from PIL import Image

    if is_array:
        array = array_of(name, data, style)
        if not has_picture(array.shape, array.dtype):
            raise SampleError(f"an array of shape {list(array.shape)} and dtype {array.dtype} has no picture")
        if array.ndim == 3 and array.shape[2] not in (1, 3, 4):
            array = np.moveaxis(array, 0, 2)
        step = max(1, math.ceil(max(array.shape[:2]) / (4 * limits.side)))  # no more than a screen needs
        pixels = _levels(array[::step, ::step])
        if pixels.ndim == 2 or pixels.shape[2] == 1:
            pixels = np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
        pixels, size = np.ascontiguousarray(pixels[..., :3]), _fitted(pixels.shape[1::-1], limits.side)
    else:
        encoded = EncodedImage(data)
        size = _fitted(encoded.size, limits.side)
        pixels, _ = encoded.decode(*size)
    image, stream = Image.fromarray(pixels), io.BytesIO()
    if image.size != size:
        image = image.resize(size, Image.Resampling.BOX if size[0] * 2 < image.width else Image.Resampling.BILINEAR)
    if data.startswith(_LOSSY) and not is_array:
        image.save(stream, "JPEG", quality=88)
        return stream.getvalue(), "image/jpeg"
    image.save(stream, "PNG", compress_level=3)
    return stream.getvalue(), "image/png"


def _fitted(size: tuple[int, ...], side: int) -> tuple[int, int]:
    """Return the (width, height) at which a picture of a ``size`` is at most ``side`` pixels long and wide."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def has_picture(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array is shown as an image: numbers [height, width], [h, w, 1, 3 or 4] or [1 or 3, h, w]."""
    if dtype.kind not in "buif" or dtype.hasobject:
        return False
    if len(shape) == 3:
        shape = shape[:2] if shape[2] in (1, 3, 4) else shape[1:] if shape[0] in (1, 3) else ()
    return len(shape) == 2 and min(shape) > 1


def _levels(array: npt.NDArray[Any]) -> Pixels:
    """Return numbers as grey levels or colours of 8 bits."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    values = array.astype(np.float64)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if array.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    values = np.nan_to_num((values - low) / ((high - low) or 1.0), nan=0.0, posinf=1.0, neginf=0.0)
    return (values * 255).round().astype(np.uint8)
