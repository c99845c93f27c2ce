"""The specification of samples: which members they have, how those are decoded, and what transforms them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wdsdist.errors import ArgumentError, ArgumentTypeError, DecodeError, SampleError
from wdsdist.samples.arrays import RawArray, stacked_npy
from wdsdist.samples.codecs import DECODERS, EXPANSION_LIMIT, missing_package, read_npy
from wdsdist.samples.collate import Sample, Stacked
from wdsdist.samples.images.decode import image_decoder
from wdsdist.samples.images.transforms import is_seeded
from wdsdist.storage import compression

Decode = bool | str | Mapping[str, Any] | None
"""What ``decode=`` takes: ``None``, ``True``, an image specification, or functions and dtypes by extension."""

Unzip = Callable[[bytes, int, int], bytes]
"""From gzip, the number of the layer that it is, from 1, and the most bytes that may come out, to what is in it."""

Chosen = tuple[tuple[str, str, int], ...]
"""Of each field: its entry in the sample, its extension, and the member's place in the layout."""


class Fields:
    """Chooses members by the extensions that ``fields=`` names.

    >>> Fields(("jpg;png", "cls")).choose(("cls", "png", "txt"))
    (('jpg', 'png', 1), ('cls', 'cls', 0))
    """

    def __init__(self, fields: Sequence[str] | None) -> None:
        if isinstance(fields, str) or not all(isinstance(field, str) and field for field in fields or ()):
            raise ArgumentTypeError(f"fields is {fields!r}: it must be a list of extensions such as ('jpg;png', 'cls')")
        self._alternatives = [tuple(field.lower().split(";")) for field in fields] if fields is not None else None
        names = [alternatives[0] for alternatives in self._alternatives or ()]
        if len(names) > len(set(names)):
            raise ArgumentError(f"fields is {fields!r}: two of them have the same name, that before the first ';'")
        self._known: dict[tuple[str, ...], Chosen] = {}

    def choose(self, layout: tuple[str, ...]) -> Chosen:
        """Return (entry name, extension, place) for each field; the entry has the name of the first alternative.

        Raises `SampleError` where the layout has none of a field's alternatives.
        """
        chosen = self._known.get(layout)
        if chosen is None:
            # Samples have few layouts; where each has another, none is worth keeping.
            if len(self._known) > 1000:
                self._known.clear()
            chosen = self._known[layout] = tuple(self._chosen(layout))
        return chosen

    def _chosen(self, layout: tuple[str, ...]) -> Iterator[tuple[str, str, int]]:
        if self._alternatives is None:
            yield from ((extension, extension, place) for place, extension in enumerate(layout))
            return
        for names in self._alternatives:
            extension = next((name for name in names if name in layout), None)
            if extension is None:
                raise SampleError(
                    f"has no member {' or '.join(map(repr, names))}: it has {', '.join(sorted(layout)) or 'none'}"
                )
            yield names[0], extension, layout.index(extension)


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
            self._functions = dict(DECODERS) if decode else {}
            if isinstance(decode, str):
                self._image = image_decoder(decode, max_pixels=max_pixels)
        elif decode is not None:
            raise ArgumentTypeError(f"decode is {decode!r}: it can be None, True, a string or a mapping")
        self.is_seeded = any(map(is_seeded, self._functions.values()))
        self.is_light = self._image is None and all(
            isinstance(function, RawArray) or function in (*DECODERS.values(),) for function in self._functions.values()
        )

    @property
    def itemsizes(self) -> dict[str, int]:
        """Bytes of an item of each raw array, by extension."""
        arrays = {name: one for name, one in self._functions.items() if isinstance(one, RawArray)}
        return {name: one.dtype.itemsize for name, one in arrays.items()}

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
            raise DecodeError(f"decoding {name!r} needs a package: pip install {missing_package(error)!r}") from error
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
            return self._decode(name[:-3], unzip(data, level, EXPANSION_LIMIT), seed, unzip, level + 1)
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


@dataclass(frozen=True, eq=False)
class SampleSpec:
    """How the samples of one data set are made: its fields, decoder and transform.

    Raises `ArgumentTypeError` for a transform that cannot be called.
    """

    fields: Fields
    decoder: Decoder
    transform: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.transform is not None and not callable(self.transform):
            raise ArgumentTypeError(f"transform is {self.transform!r}: it must be a function of a sample")

    @property
    def is_raw(self) -> bool:
        """Whether members are left as they are."""
        return self.transform is None and self.decoder.is_raw

    def raw(self) -> SampleSpec:
        """Return a specification of the same members that leaves them as they are."""
        return SampleSpec(self.fields, Decoder(None))

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self.transform is None and self.decoder.is_light

    @property
    def needs_seeds(self) -> bool:
        """Whether what it makes of a sample depends on a seed."""
        return self._transform_is_seeded or self.decoder.is_seeded

    def transformed(self, sample: Sample, seed: int) -> Any:
        """Return what the transform makes of a sample."""
        if self.transform is None:
            return sample
        return self.transform(sample, seed) if self._transform_is_seeded else self.transform(sample)

    @functools.cached_property
    def _transform_is_seeded(self) -> bool:
        return is_seeded(self.transform)
