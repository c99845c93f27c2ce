"""The specification of samples: which members they have, how members are decoded, and what transforms samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wdsdist._util.file_types import AUDIO_TYPES, IMAGE_TYPES, last_part
from wdsdist._util.validation import check_callable, hint
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.arrays import RawArray, stacked_npy
from wdsdist.samples.bad_samples import STRICT, BadSamplePolicy
from wdsdist.samples.codecs import DECODERS, EXPANSION_LIMIT, IMAGE_FORMS, load_late, missing_package, read_npy
from wdsdist.samples.collate import Buffer, Sample, Stacked
from wdsdist.samples.fields import ANY_IMAGE, Fields
from wdsdist.samples.marks import Part, call, is_parted, is_seeded

Decode = bool | str | Mapping[str, Any] | None
"""What ``decode=`` takes: ``None``, ``True``, a form of images, ``"audio"``, or functions and dtypes by extension."""
_AUDIO = "audio"

Unzip = Callable[[bytes, int, int], bytes]
"""Unpacks gzip data; takes the number of the gzip layer, from 1, and the most bytes that may come out."""

_Step = Callable[[Buffer, int, "Part | None", Unzip], Any]
"""Decodes the members of one extension: takes the bytes, the seed, the part and what unpacks gzip."""


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
        self._functions: dict[str, Callable[..., Any]] = {}
        self._form = ""  # of images, or "audio"
        self._is_mapping = isinstance(decode, Mapping)
        self._required: list[str] = []
        self._steps: dict[tuple[str, str], _Step] = {}
        self.is_raw = decode is None or decode is False
        if isinstance(decode, Mapping):
            given = {extension: _function(extension, what) for extension, what in decode.items()}
            self._functions = {name.lower().removesuffix("?"): function for name, function in given.items()}
            self._required = [name.lower() for name in given if not name.endswith("?")]
        elif isinstance(decode, (bool, str)):
            self._functions = dict(DECODERS) if decode else {}
            if isinstance(decode, str):
                if decode not in (*IMAGE_FORMS, _AUDIO):
                    raise ArgumentError(
                        f"decode is {decode!r}: as a string it must be one of {', '.join((*IMAGE_FORMS, _AUDIO))}",
                        argument="decode",
                    )
                self._form = decode
            noted = {name: RawArray.noted(note) for name, note in (arrays or {}).items() if decode}
            self._functions = noted | self._functions
        elif decode is not None:
            raise ArgumentError(f"decode is {decode!r}: it can be None, True, a string or a mapping", argument="decode")
        self.is_seeded = any(map(is_seeded, self._functions.values()))
        self.is_light = not self._form and all(
            isinstance(function, RawArray) or function in DECODERS.values() for function in self._functions.values()
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_steps": {}}  # closures, made again when they are needed

    @property
    def functions(self) -> list[tuple[str, object]]:
        """The function of each extension, by its place in ``decode=``."""
        return [(f"decode[{name!r}]", function) for name, function in self._functions.items()]

    @property
    def itemsizes(self) -> dict[str, int]:
        """Bytes of an element of each raw array, by extension."""
        arrays = {name: array for name, array in self._functions.items() if isinstance(array, RawArray)}
        return {name: array.dtype.itemsize for name, array in arrays.items()}

    def check_extensions(self, known: Collection[str], fields: Collection[str]) -> None:
        """Raise `ArgumentError` when ``decode=`` maps an extension that no sample has, which is likely a typo.

        A name that ends in ``"?"`` is allowed, and a usual extension beside another one that samples have, as in
        functions for all types of images.

        Args:
            known: the extensions of all samples.
            fields: the names of fields that are no extensions.
        """
        names = {*fields, *(name for extension in known for name in _spellings(extension))}
        if not names.isdisjoint(IMAGE_TYPES):
            names.add(ANY_IMAGE)
        if not names.isdisjoint(self._required):
            names |= {*DECODERS, *IMAGE_TYPES, *AUDIO_TYPES}
        odd = next((name for name in self._required if name not in names), None)
        if odd is not None:
            raise ArgumentError(
                f"decode names {odd!r}, which no sample has: {hint(odd, sorted(known), 'they have')}; for an extension "
                f"that only later samples have, write '{odd}?'",
                argument="decode",
            )

    def stacked(self, field: str, extensions: Sequence[str], parts: Sequence[memoryview]) -> Stacked | None:
        """Return the members of a column as one tensor, or ``None`` when each has to be decoded by itself."""
        if any(extension != extensions[0] for extension in extensions):
            return None
        function = self._find(extensions[0].lower(), field)
        if function is read_npy:
            return stacked_npy(parts)
        return function.stacked(parts) if isinstance(function, RawArray) else None

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
        try:
            step = self._steps.get((field, extension))
            if step is None:
                step = self._steps[field, extension] = self._resolved(field, extension.lower(), 1)
            return step(data, seed, part, unzip or _unzip)
        except SampleError:
            raise
        except (
            Exception
        ) as error:  # a name for the new error would hold its traceback, and with it the data, in a cycle
            raise _decode_error(extension.lower(), data, error) from error

    def function(self, field: str, extensions: Sequence[str]) -> Callable[[memoryview], Any] | None:
        """Return the function of bytes that decodes all members of a column, or ``None`` without such a function."""
        name = extensions[0].lower()
        if name.endswith(".gz") or any(extension != extensions[0] for extension in extensions):
            return None
        function = bytes if self.is_raw else self._find(name, field) or bytes
        if is_seeded(function) or is_parted(function):
            return None
        return function if getattr(function, "reads_views", False) else lambda data: function(bytes(data))

    def _resolved(self, field: str, name: str, layer: int) -> _Step:
        """Return what decodes the members of an extension in lower case; the gzip ``layer`` counts from 1."""
        is_zipped = not self.is_raw and name.endswith(".gz") and len(name) > 3
        function = None if self.is_raw else self._find(name, "" if is_zipped else field)
        if function is None and is_zipped:
            inner = self._resolved(field, name[:-3], layer + 1)
            return lambda data, seed, part, unzip: inner(unzip(bytes(data), layer, EXPANSION_LIMIT), seed, part, unzip)
        known: Callable[..., Any] = function or bytes
        reads_views = getattr(known, "reads_views", False)
        if is_seeded(known) or is_parted(known):
            return lambda data, seed, part, _: call(known, data if reads_views else bytes(data), seed, part)
        return lambda data, *_: known(data if reads_views else bytes(data))

    def _find(self, name: str, field: str = "") -> Callable[..., Any] | None:
        kind = last_part(name)
        function = self._functions.get(name) or self._functions.get(kind)
        if function is None and self._is_mapping:
            return self._functions.get(field) or (self._functions.get(ANY_IMAGE) if kind in IMAGE_TYPES else None)
        if function is None and self._form == _AUDIO and kind in AUDIO_TYPES:
            return load_late("audio")  # type: ignore[no-any-return]
        if function is None and self._form in IMAGE_FORMS and kind in IMAGE_TYPES:
            return load_late("image")(self._form)  # type: ignore[no-any-return]
        return function


def _decode_error(name: str, data: Buffer, error: Exception) -> SampleError:
    """Return the error of a member that does not decode: each decoder raises errors of its own."""
    if isinstance(error, ImportError):
        return SampleError(f"decoding {name!r} needs a package: pip install {missing_package(error)!r}")
    return SampleError(f"{len(data):,} bytes do not decode as {name!r}: {type(error).__name__}: {error}")


def _function(extension: object, what: Any) -> Callable[..., Any]:
    if isinstance(extension, str):
        if isinstance(what, (np.dtype, torch.dtype)) or (isinstance(what, type) and issubclass(what, np.generic)):
            return RawArray.of(extension, what)
        if callable(what):
            return what  # type: ignore[no-any-return]
    raise ArgumentError(
        f"decode maps {extension!r} to {what!r}: it maps extensions to functions of bytes, or to dtypes of raw arrays",
        argument="decode",
    )


def _spellings(extension: str) -> Iterator[str]:
    """Yield the names by which a mapping decodes members: the extension, its last part, and both without ``.gz``."""
    while extension:
        yield extension
        yield last_part(extension)
        extension = extension[:-3] if extension.endswith(".gz") else ""


def _unzip(data: bytes, layer: int, most: int) -> bytes:
    from wdsdist.storage import compression

    return compression.unzip(data, most)


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

    @property
    def functions(self) -> list[tuple[str, object]]:
        """The functions that the user gave, by the names of their arguments."""
        return [("transform", self.transform), *self.decoder.functions]

    @property
    def is_raw(self) -> bool:
        """Whether members stay bytes."""
        return self.transform is None and self.decoder.is_raw

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self.transform is None and self.decoder.is_light

    @property
    def needs_seeds(self) -> bool:
        """Whether decoding or transforming a sample needs a seed."""
        return is_seeded(self.transform) or self.decoder.is_seeded

    def transformed(self, sample: Sample, seed: int, part: Part | None = None) -> Any:
        """Apply the transform to a sample."""
        if self.transform is None:
            return sample
        return call(self.transform, sample, seed, part) if self._is_marked else self.transform(sample)

    @functools.cached_property
    def _is_marked(self) -> bool:
        return is_seeded(self.transform) or is_parted(self.transform)
