"""The specification of samples: which members they have, how those are decoded, and what transforms them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wdsdist._util.file_types import AUDIO_TYPES, IMAGE_TYPES
from wdsdist._util.validation import check_callable, hint
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.arrays import RawArray, stacked_npy
from wdsdist.samples.bad_samples import STRICT, BadSamplePolicy
from wdsdist.samples.codecs import DECODERS, EXPANSION_LIMIT, missing_package, read_npy
from wdsdist.samples.collate import Buffer, Sample, Stacked
from wdsdist.samples.fields import ANY_IMAGE, Fields
from wdsdist.samples.images.decode import image_decoder
from wdsdist.samples.marks import Part, call, is_parted, is_seeded
from wdsdist.samples.media.audio import decode_audio
from wdsdist.storage import compression

Decode = bool | str | Mapping[str, Any] | None
"""What ``decode=`` takes: ``None``, ``True``, an image specification, ``"audio"``, or functions and dtypes by
extension."""
_AUDIO = "audio"

Unzip = Callable[[bytes, int, int], bytes]
"""From gzip, the number of the layer that it is, from 1, and the most bytes that may come out, to what is in it."""


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
        self._is_mapping = isinstance(decode, Mapping)
        self._required: list[str] = []
        self.is_raw = decode is None or decode is False
        if max_pixels is not None and (not isinstance(decode, str) or decode == _AUDIO):
            raise ArgumentError(
                f"max_pixels is {max_pixels!r}, but decode is {decode!r}, which decodes no images itself: give it to "
                f"the transforms that do, as in RandomResizedCrop(224, max_pixels={max_pixels!r})"
            )
        if isinstance(decode, Mapping):
            given = {extension: _function(extension, what) for extension, what in decode.items()}
            self._functions = {name.lower().removesuffix("?"): function for name, function in given.items()}
            self._required = [name.lower() for name in given if not name.endswith("?")]
        elif isinstance(decode, (bool, str)):
            self._functions = dict(DECODERS) if decode else {}
            if decode == _AUDIO:
                self._functions |= dict.fromkeys(AUDIO_TYPES, decode_audio)
            elif isinstance(decode, str):
                self._image = image_decoder(decode, max_pixels=max_pixels)
        elif decode is not None:
            raise ArgumentError(f"decode is {decode!r}: it can be None, True, a string or a mapping")
        self.is_seeded = any(map(is_seeded, self._functions.values()))
        self._is_marked = self.is_seeded or any(map(is_parted, self._functions.values()))
        self.is_light = self._image is None and all(
            isinstance(function, RawArray) or function in (*DECODERS.values(),) for function in self._functions.values()
        )

    @property
    def functions(self) -> list[tuple[str, object]]:
        """The function of each extension, by its place in ``decode=``."""
        return [(f"decode[{name!r}]", function) for name, function in self._functions.items()]

    @property
    def itemsizes(self) -> dict[str, int]:
        """Bytes of an item of each raw array, by extension."""
        arrays = {name: one for name, one in self._functions.items() if isinstance(one, RawArray)}
        return {name: one.dtype.itemsize for name, one in arrays.items()}

    def check_extensions(self, known: Collection[str], fields: Collection[str]) -> None:
        """Check the extensions that ``decode=`` maps: raise `ArgumentError` for one that no sample has, a likely typo.

        It is none where the name ends in ``"?"``, or is a usual extension beside another one that samples have, as in
        functions for all types of images.

        Args:
            known: the extensions of all samples.
            fields: the names of fields that are not those of extensions.
        """
        names = {*fields, *(name for extension in known for name in _spellings(extension))}
        if not names.isdisjoint(IMAGE_TYPES):
            names.add(ANY_IMAGE)
        if not names.isdisjoint(self._required):
            names |= {*DECODERS, *IMAGE_TYPES, *AUDIO_TYPES}
        odd = next((name for name in self._required if name not in names), None)
        if odd is not None:
            raise ArgumentError(
                f"decode names {odd!r}, which no sample has: {hint(odd, sorted(known), 'they have')}; for one that "
                f"only samples to come will have, write '{odd}?'"
            )

    def stacked(self, field: str, extensions: Sequence[str], parts: Sequence[memoryview]) -> Stacked | None:
        """Return the members of a column as one tensor, or ``None`` where each has to be decoded by itself."""
        name = extensions[0].lower()
        if any(extension != extensions[0] for extension in extensions):
            return None
        function = self._find(name, field)
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
        """Return the value of one member; bytes where nothing is known about its extension.

        ``seed`` is passed to functions that were marked with `wdsdist.transforms.seeded`, and ``part`` to those that
        were with `wdsdist.transforms.parted`. ``unzip`` counts what the members of a shard unpack to; by default only
        this one is looked at. ``field`` is the name under which the member is read, by which a mapping decodes what it
        has no function for by extension.

        Raises `SampleError` where the bytes are not what the extension says.
        """
        if self.is_raw:
            return bytes(data)
        name, content, level = extension.lower(), data, 0
        try:
            while True:
                is_zipped = name.endswith(".gz") and len(name) > 3
                function = self._find(name, "" if is_zipped else field)
                if function is not None or not is_zipped:
                    break
                name, level = name[:-3], level + 1
                content = (unzip or _unzip)(bytes(content), level, EXPANSION_LIMIT)
            if not getattr(function, "reads_views", False):  # of most others, a copy is a small part of the work
                content = bytes(content)
            if function is not None:
                return call(function, content, seed, part) if self._is_marked else function(content)
            value = None if self._image is None else self._image(name, bytes(content))
            return content if value is None else value
        except SampleError:
            raise
        except Exception as error:  # of no name here, by which its traceback would hold the data in a circle
            raise decode_error(extension.lower(), data, error) from error

    def function(self, field: str, extensions: Sequence[str]) -> Callable[[memoryview], Any] | None:
        """Return the function of bytes that decodes all members of a column, or ``None`` where there is no such one."""
        name = extensions[0].lower()
        if self._is_marked or name.endswith(".gz") or any(extension != extensions[0] for extension in extensions):
            return None
        function = self._find(name, field)
        if function is None:
            return None if self._image else bytes
        return function if getattr(function, "reads_views", False) else lambda data: function(bytes(data))

    def _find(self, name: str, field: str = "") -> Callable[..., Any] | None:
        kind = name.rpartition(".")[2]
        found = self._functions.get(name) or self._functions.get(kind)
        if found is None and self._is_mapping:
            found = self._functions.get(field) or (self._functions.get(ANY_IMAGE) if kind in IMAGE_TYPES else None)
        return found

    def is_same_for_parts(self, extension: str, field: str) -> bool:
        """Return whether all parts of a record have one value of a member: its function has no mark."""
        name = extension.lower()
        while self._is_marked and name:
            function = self._find(name, field)
            if is_seeded(function) or is_parted(function):
                return False
            name = name[:-3] if name.endswith(".gz") else ""
        return True


def decode_error(name: str, data: Buffer, error: Exception) -> SampleError:
    """Return the error, with its cause, of a member that does not decode: each decoder raises errors of its own."""
    if isinstance(error, SampleError):
        return error
    if isinstance(error, ImportError):
        found = SampleError(f"decoding {name!r} needs a package: pip install {missing_package(error)!r}")
    else:
        found = SampleError(f"{len(data):,} bytes do not decode as {name!r}: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def _function(extension: object, what: Any) -> Callable[..., Any]:
    if isinstance(extension, str):
        if isinstance(what, (np.dtype, torch.dtype)) or (isinstance(what, type) and issubclass(what, np.generic)):
            return RawArray.of(extension, what)
        if callable(what):
            return what  # type: ignore[no-any-return]
    raise ArgumentError(
        f"decode maps {extension!r} to {what!r}: it maps extensions to functions of bytes, or to dtypes of raw arrays"
    )


def _spellings(extension: str) -> Iterator[str]:
    """Yield the names by which a mapping decodes members: the extension, its last part, and both without ``.gz``."""
    while extension:
        yield extension
        yield extension.rpartition(".")[2]
        extension = extension[:-3] if extension.endswith(".gz") else ""


def _unzip(data: bytes, level: int, most: int) -> bytes:
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
        """Whether members are left as they are."""
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
