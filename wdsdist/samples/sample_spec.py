"""The specification of samples: which members they have, how members are decoded, and what transforms samples.

Members that hold numbers alone, ``.npy`` files and raw arrays of a known type, become one tensor at once if all of a
column have one size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from wdsdist._util.file_types import AUDIO_TYPES, IMAGE_TYPES, last_part
from wdsdist._util.npy_header import npy_header
from wdsdist._util.validation import check_callable, hint
from wdsdist.errors import ArgumentError, ExtraMissingError, SampleError
from wdsdist.samples.bad_samples import STRICT, BadSamplePolicy
from wdsdist.samples.codecs import AUDIO, DECODERS, EXPANSION_LIMIT, IMAGE_FORMS, missing_package, read_npy
from wdsdist.samples.collate import Buffer, Stacked
from wdsdist.samples.fields import ANY_IMAGE, Fields
from wdsdist.samples.marks import Part, caller, is_seeded

Decode = bool | str | Mapping[str, Any] | None
"""What ``decode=`` takes: ``None``, ``True``, a form of images, ``"audio"``, or functions and dtypes by extension."""

Unzip = Callable[[bytes, int, int], bytes]
"""Unpacks gzip data; takes the number of the gzip layer, from 1, and the most bytes that may come out."""


@dataclass(frozen=True, slots=True)
class RawArray:
    """Decodes members that are arrays without a header; ``decode={"bin": np.uint16}`` makes one.

    >>> RawArray.of("bin", "<u2")(b"\\1\\0\\2\\0")
    array([1, 2], dtype=uint16)
    """

    dtype: np.dtype[Any]
    """The dtype of an element, in any byte order."""
    row: tuple[int, ...] = ()
    """The shape of a row; the number of rows follows from the bytes."""
    reads_views: ClassVar[bool] = True

    @classmethod
    def of(cls, extension: str, dtype: Any) -> RawArray:
        """Make a decoder of anything numpy or torch calls a dtype; a sub-array dtype is the type of a row.

        Raises `ArgumentError` for an object that is not a dtype, and for dtypes that are not numbers.
        """
        try:
            named = np.dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
        except TypeError as error:
            raise ArgumentError(
                f"decode maps {extension!r} to {dtype!r}: {error} by numpy; give a function of the bytes, "
                f"such as one that returns torch.frombuffer(bytearray(data), dtype={dtype!r})"
            ) from error
        base, row = named.subdtype or (named, ())
        if base.kind not in "biufc":
            raise ArgumentError(f"decode maps {extension!r} to {dtype!r}: it must be a dtype of numbers")
        return cls(base, row)

    @classmethod
    def noted(cls, note: Any) -> RawArray:
        """Return the decoder of a field whose type `wdsdist.pack` noted in ``index.json``.

        Raises `ArgumentError` for a note that is damaged.
        """
        try:
            dtype, (_, *row) = np.dtype(str(note["dtype"])), note["shape"]
            if dtype.kind in "biufc" and all(isinstance(size, int) and size > 0 for size in row):
                return cls(dtype, tuple(row))
        except (TypeError, ValueError, KeyError, SyntaxError):
            pass
        raise ArgumentError(f"index.json notes {note!r:.200} as the type of an array: pack the data again")

    def __call__(self, data: Buffer) -> npt.NDArray[Any]:
        """Return the array in a member's bytes, in this machine's byte order."""
        if len(data) % self._step:
            raise SampleError(f"{len(data):,} bytes are not a multiple of the {self._step:,} of one row")
        array: npt.NDArray[Any] = np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="))
        return array.reshape(-1, *self.row)

    @property
    def _step(self) -> int:
        return self.dtype.itemsize * math.prod(self.row)  # not numpy's, which is slower than all the rest

    def stacked(self, parts: Sequence[memoryview]) -> Stacked | None:
        """Decode a column of raw arrays of one size to one stacked tensor; ``None`` if each decodes alone."""
        size = len(parts[0])
        dtype = torch_dtype(self.dtype)
        if dtype is None or not self._step or size % self._step or any(len(part) != size for part in parts):
            return None
        return Stacked(parts, dtype, (len(parts), size // self._step, *self.row))


def stacked_npy(parts: Sequence[memoryview]) -> Stacked | None:
    """Return ``.npy`` members that have the same header as one tensor, or ``None`` if headers differ."""
    first = parts[0]
    size = len(first)
    if any(len(part) != size for part in parts):
        return None
    length, layout = npy_header(first)
    if layout is None or layout.is_fortran or not layout.is_possible:
        return None
    header = first[:length]
    if any(part[:length] != header for part in parts):
        return None
    dtype = torch_dtype(layout.dtype)
    # A shape without elements may hold numbers that torch cannot count with.
    if dtype is None or not layout.num_bytes or size - length != layout.num_bytes:
        return None
    return Stacked([part[length:] for part in parts], dtype, (len(parts), *layout.shape))


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return torch's name of a dtype, or ``None`` without one, as for another byte order."""
    if not dtype.isnative or dtype.kind not in "biufc":
        return None
    named = getattr(torch, dtype.name, None)
    return named if isinstance(named, torch.dtype) else None


class Step:
    """How the members of one field and extension are decoded: unpacked from layers of gzip, and read."""

    def __init__(self, function: Callable[..., Any], layers: int) -> None:
        call = caller(function)
        reads_views = getattr(function, "reads_views", False)  # others take bytes
        self.read: Callable[[Buffer, int, Part | None], Any] = (
            call if reads_views else lambda data, seed, part: call(bytes(data), seed, part)
        )
        """Takes the unpacked bytes, the seed and the part."""
        self.layers = layers
        self.is_raw = function is bytes and not layers
        """Whether members stay bytes."""
        own = function.stacked if isinstance(function, RawArray) else stacked_npy if function is read_npy else None
        self.stacked: Callable[[Sequence[memoryview]], Stacked | None] = (not layers and own) or (lambda parts: None)
        """Decodes a column of members to one stacked tensor; returns ``None`` if each needs a decode of its own."""


class Decoder:
    """Decodes members as ``decode=`` asks; made once, used in every worker.

    >>> Decoder(True)("cls", b"7"), Decoder(True)("json", b'{"a": 1}'), Decoder(None)("txt", b"raw")
    (7, {'a': 1}, b'raw')
    >>> Decoder({"txt": len, "bin": np.uint16})("txt", b"four")
    4

    Raises `ArgumentError` for a form of images that does not exist.
    """

    def __init__(self, decode: Decode, arrays: Mapping[str, Any] | None = None) -> None:
        """Make a decoder; ``arrays`` are the types of raw arrays, by field, that ``index.json`` notes."""
        functions: dict[str, Callable[..., Any]] = {}
        self._required: list[str] = []
        self._steps: dict[tuple[str, str], Step] = {}
        self.is_raw = decode is None or decode is False
        if isinstance(decode, Mapping):
            checked = {extension: _checked(extension, what) for extension, what in decode.items()}
            functions = {name.lower().removesuffix("?"): function for name, function in checked.items()}
            self._required = [name.lower() for name in checked if not name.endswith("?")]
        elif isinstance(decode, (bool, str)):
            if decode:
                functions = {name: RawArray.noted(note) for name, note in (arrays or {}).items()} | DECODERS
            if decode == AUDIO:
                from wdsdist.media.clips import decode_audio

                functions |= dict.fromkeys(AUDIO_TYPES, decode_audio)
            elif decode in IMAGE_FORMS:
                from wdsdist.samples.images.decode import DecodeImage

                functions |= dict.fromkeys(IMAGE_TYPES, DecodeImage(decode))
            elif isinstance(decode, str):
                forms = ", ".join((*IMAGE_FORMS, AUDIO))
                raise ArgumentError(f"decode is {decode!r}: as a string it must be one of {forms}", argument="decode")
        elif decode is not None:
            raise ArgumentError(f"decode is {decode!r}: it can be None, True, a string or a mapping", argument="decode")
        self.functions = functions
        self.is_seeded = any(map(is_seeded, functions.values()))
        self.is_light = all(
            isinstance(function, RawArray) or function in DECODERS.values() for function in functions.values()
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_steps": {}}  # made again when they are needed

    @property
    def itemsizes(self) -> dict[str, int]:
        """Bytes of an element of each raw array, by extension."""
        return {name: each.dtype.itemsize for name, each in self.functions.items() if isinstance(each, RawArray)}

    def check_extensions(self, known: Collection[str], fields: Collection[str]) -> None:
        """Raise `ArgumentError` when ``decode=`` maps an extension that no sample has, which is likely a typo.

        A name that ends in ``"?"`` is allowed. So is a type of images or audio if samples have another type of it that
        is named: functions for all types may be passed.

        Args:
            known: the extensions of all samples.
            fields: the names of fields that are not extensions.
        """
        plain = {*known, *(extension.removesuffix(".gz") for extension in known)}
        names = {*fields, *plain, *map(last_part, plain)}
        if not names.isdisjoint(IMAGE_TYPES):
            names.add(ANY_IMAGE)
        for types in ((ANY_IMAGE, *IMAGE_TYPES), AUDIO_TYPES):
            if not names.intersection(types).isdisjoint(self._required):
                names.update(types)
        odd = next((name for name in self._required if name not in names), None)
        if odd is not None:
            raise ArgumentError(
                f"decode names {odd!r}, which no sample has: {hint(odd, sorted(known), 'they have')}; for an extension "
                f"that only later samples have, write '{odd}?'",
                argument="decode",
            )

    def step(self, field: str, extension: str) -> Step:
        """Return how the members of a field are decoded that have an extension, in any case."""
        step = self._steps.get((field, extension))
        if step is None:
            known, function = self.functions, None
            name, layers = extension.lower(), 0
            while not self.is_raw:
                is_zipped, kind = name.endswith(".gz") and len(name) > 3, last_part(name)
                names = [name, kind, "" if is_zipped else field, ANY_IMAGE if kind in IMAGE_TYPES else ""]
                function = next((known[each] for each in names if each in known), None)
                if function is not None or not is_zipped:
                    break
                name, layers = name[:-3], layers + 1
            step = self._steps[field, extension] = Step(bytes if function is None else function, layers)
        return step

    def __call__(
        self,
        extension: str,
        data: Buffer,
        seed: int = 0,
        unzip: Unzip | None = None,
        *,
        field: str = "",
        part: Part | None = None,
    ) -> Any:
        """Return the value of one member; bytes when nothing decodes its extension.

        Args:
            extension: the extension of the member, in any case.
            data: its bytes.
            seed: passed to functions that `wdsdist.transforms.seeded` marks.
            unzip: unpacks gzip, and counts what the members of a shard unpack to; by default each member counts alone.
            field: the name under which the member is read; a mapping decodes by it what it does not list by extension.
            part: passed to functions that `wdsdist.transforms.parted` marks.

        Raises `SampleError` when the bytes are not what the extension says.
        """
        step, unpacked = self.step(field, extension), data
        try:
            for layer in range(1, step.layers + 1):
                if unzip is None:
                    from wdsdist.storage import compression

                    unpacked = compression.unzip(bytes(unpacked), EXPANSION_LIMIT)
                else:
                    unpacked = unzip(bytes(unpacked), layer, EXPANSION_LIMIT)
            return step.read(unpacked, seed, part)
        except (SampleError, ExtraMissingError):
            raise
        except Exception as error:
            name = extension.lower()
            if isinstance(error, ImportError):
                message = f"decoding {name!r} needs a package: pip install {missing_package(error)!r}"
            else:
                message = f"{len(data):,} bytes do not decode as {name!r}: {type(error).__name__}: {error}"
            raise SampleError(message) from error


def _checked(extension: object, what: Any) -> Callable[..., Any]:
    if isinstance(extension, str):
        if isinstance(what, (np.dtype, torch.dtype)) or (isinstance(what, type) and issubclass(what, np.generic)):
            return RawArray.of(extension, what)
        if callable(what):
            return what  # type: ignore[no-any-return]
    whole = f"; decode={what!r} makes this form of all images" if isinstance(what, str) else ""
    raise ArgumentError(
        f"decode maps {extension!r} to {what!r}: it maps extensions to functions of bytes, or to dtypes of raw arrays"
        f"{whole}",
        argument="decode",
    )


RAW: Final = Decoder(None)
"""Leaves members as they are."""


@dataclass(frozen=True, eq=False)
class SampleSpec:
    """Specification of how samples are read: their fields, decoder and transform, and the policy for bad ones.

    Raises `ArgumentError` for a transform that cannot be called.
    """

    fields: Fields
    decoder: Decoder
    transform: Callable[..., Any] | None = None
    policy: BadSamplePolicy = STRICT

    def __post_init__(self) -> None:
        check_callable("transform", self.transform)
