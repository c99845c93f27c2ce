"""What Python makes, as samples: a data set with random access, an iterable, or the name of one in a module.

A map-style ``torch.utils.data.Dataset``, a list, and their kin are asked for items by the process that writes them. An
iterable, such as a generator, is read once and in order, without knowing how many samples will come. What items hold is
known only once they are made, so a few are made beforehand: they tell one source from another, and of a data set how
large a sample is.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import itertools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wdsdist._util.pools import Carried, apart
from wdsdist.curation.tables import is_dataset
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.packing.payloads import Payload, Sample, broken, numbered, sample_size
from wdsdist.packing.sources.source import (
    READERS_NOTES,
    Candidate,
    Contents,
    Encode,
    OnError,
    Source,
    SourceOptions,
    Stream,
    wrong_key,
)
from wdsdist.packing.sources.table import of_dataset
from wdsdist.samples import encoders
from wdsdist.shards.tar.member_names import is_text, split_name

_PATH = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAMED = re.compile(rf"(?P<module>{_PATH}):(?P<attribute>{_PATH})")
_NAMED_KEYS = 8
"""Of a mapping, those that an error names."""
LOOKS = 64
"""Items that are made beforehand: their mean size is within a few percent of that of most data sets."""

_GOLDEN = (5**0.5 - 1) / 2
LOOKED_AT_BYTES = 16 << 20
"""Of an iterable, whose first samples wait in memory until they are written."""


class Items(Protocol):
    """Items that can be asked for by number, as ``torch.utils.data.Dataset`` has them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Made = Items | Iterable[Any] | Callable[[], Items | Iterable[Any]]
"""What `find` takes for a source, but for its name in a module."""


def find(candidate: Candidate, options: SourceOptions) -> Source | Stream | None:
    """Return what an object gives, or ``None`` for a string or path that names no object.

    An object is a data set with ``__len__`` and ``__getitem__``, which is a table if `is_dataset` says so; any other
    iterable; a function without parameters that returns one of them; or the name of one of these,
    ``module:attribute``. A file of that name is preferred.

    >>> find(Candidate([{"txt": "hello"}]), SourceOptions()).location, find(Candidate("photos/train"), SourceOptions())
    ('list', None)
    """
    location: str | None = None
    made: Any = candidate.given
    if isinstance(made, (str, os.PathLike)):
        match = _NAMED.fullmatch(made) if isinstance(made, str) and not Path(made).exists() else None
        if match is None:
            return None
        location, made = match[0], named_object(match["module"], match["attribute"])
    function = _function(options.encode)
    location = location or _name(made)
    if inspect.isroutine(made) or inspect.isclass(made) or isinstance(made, functools.partial):
        try:
            made = made()
        except Exception as error:
            raise SourceError(f"calling {location} failed: {type(error).__name__}: {error}") from error
    if isinstance(made, Mapping):
        keys = ", ".join(map(repr, itertools.islice(made, _NAMED_KEYS)))
        raise ArgumentError(
            f"{location} is a mapping, not a list of samples: pass its values(), or the one of these that is to be "
            f"packed: {keys}"
        )
    if function is None and options.kind is None and is_dataset(made):
        return of_dataset(made, location, options)
    is_frame = hasattr(made, "__arrow_c_stream__") and hasattr(made, "columns")  # a Series may hold samples
    if isinstance(made, (bytes, bytearray)) or (function is None and is_frame):
        what = "bytes: a path is a str" if isinstance(made, (bytes, bytearray)) else "a table"
        raise ArgumentError(
            f"{location} is {what}; to pack rows, write them to a Parquet file and name that, or give a list of samples"
        )
    if hasattr(made, "__len__") and hasattr(made, "__getitem__") and not _is_torch_iterable(made):
        return _dataset(made, location, function, options.on_error)
    if isinstance(made, Iterable):
        return _stream(made, location, function, options.on_error)
    is_named = isinstance(candidate.given, (str, os.PathLike))
    raise ArgumentError(
        f"{location if is_named else 'source'} is {made!r:.100}, which can be neither iterated over nor asked for "
        f"items by number: name a folder, a file or a URL, or give a data set, which has __len__ and __getitem__, or "
        f"an iterable of samples"
    )


def _function(encode: Encode | str | None) -> Encode | None:
    if not isinstance(encode, str):
        return encode
    match = _NAMED.fullmatch(encode)
    if match is None:
        raise ArgumentError(f"encode is {encode!r}: it must be a function, or the name of one, module:function")
    function: Encode = named_object(match["module"], match["attribute"])
    return function


def named_object(module: str, attribute: str) -> Any:
    """Import an object. As with ``python -m``, modules in the current folder come first."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # and stays: the module may import its neighbours later
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise NotFoundError(f"there is no module {error.name} in {here}, nor is one installed") from error
        raise SourceError(f"importing {module} failed: {type(error).__name__}: {error}") from error
    try:
        return functools.reduce(getattr, attribute.split("."), found)
    except AttributeError as error:
        raise NotFoundError(f"module {module} ({found.__file__}) has no {attribute}") from error


def _name(source: object) -> str:
    """Name an object as its author would: by its function, or by its class."""
    if inspect.isgenerator(source):
        return f"generator {source.__qualname__}"
    named = source if hasattr(source, "__qualname__") else type(source)
    module = getattr(named, "__module__", None)
    name = str(getattr(named, "__qualname__", type(source).__qualname__))
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def _is_torch_iterable(source: object) -> bool:
    """Return whether an object can only be iterated over, though torch gives it a ``__getitem__`` that raises."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(source, torch_data.IterableDataset)


@dataclass(frozen=True, slots=True)
class ItemEncoder:
    """Turns the items of one source into samples.

    Arrays in fields of no known encoding are stored as their numbers, little-endian; ``arrays`` has their types.

    >>> ItemEncoder.of("photos", None)({"cls": 3, "jpg": b"..."}, 5)
    ('000000005', [('cls', b'3'), ('jpg', b'...')])
    >>> ItemEncoder.of("photos", lambda item: {"__key__": f"a/{item[1]}", "txt": item[0]})(("hello", 7), 5)
    ('a/7', [('txt', b'hello')])
    """

    source: str
    """Its name, for messages."""
    function: Encode | None
    wants_number: bool
    arrays: dict[str, ArrayType] = field(default_factory=dict)
    """The type of the arrays of each field, by its name in lower case."""
    learns: bool = False
    """Whether the types of arrays are being learnt, from the items that are made beforehand."""

    @classmethod
    def of(cls, source: str, function: Encode | None) -> ItemEncoder:
        """Make an encoder; ``function`` gets an item's number too if it has a second parameter that asks for one.

        Raises `ArgumentError` if it is no function.
        """
        if function is not None and not callable(function):
            raise ArgumentError(
                f"encode is {function!r}: it must be a function from an item to a sample dict", argument="encode"
            )
        return cls(source, function, function is not None and _wants_number(function), learns=True)

    def __call__(self, item: Any, number: int) -> Sample:
        """Return the sample of one item, its members by extension.

        Raises `SourceError` with the item's number for an item that cannot be a sample.
        """
        fields = self._fields(item, number)
        key = fields.get("__key__", numbered(number))
        if reason := wrong_key(key):
            raise self._error(number, key, reason)
        key = str(key).removeprefix("./")
        members: list[tuple[str, Payload]] = []
        seen: dict[str, str] = {}
        for name, value in fields.items():
            if name == "__key__" or name in READERS_NOTES:
                continue
            if reason := _wrong_field(key, name, seen):
                raise self._error(number, key, reason)
            try:
                members.append((name, self._encoded(name, value)))
            except Exception as error:  # also what Pillow and others raise; one class leaves here
                is_unknown = self.function is None and not encoders.can_encode(name)
                advice = "; or give encode=, a function that makes a sample of an item" if is_unknown else ""
                advice = ": leave the field out if there is no value" if value is None else advice
                raise self._error(number, key, f"{error}{advice}") from error
        if not members:
            raise self._error(number, key, "it has no members, so that readers would miss it: leave it out")
        return key, sorted(members)

    def _encoded(self, name: str, value: Any) -> bytes:
        if not (hasattr(value, "dtype") and hasattr(value, "shape")) or encoders.can_encode(name):
            return encoders.encode(name, value)
        array: npt.NDArray[Any] = np.ascontiguousarray(value)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        own = ArrayType.of(array)
        known = self.arrays.get(name.lower())
        if known is None and self.learns:
            self.arrays[name.lower()] = known = own
        if known is None:
            raise SourceError(f"field {name!r} holds an array, but not in the first samples: name it {name}.npy")
        if known != own:
            raise SourceError(
                f"field {name!r} holds {own}, but {known} in the first samples: make all alike, or name it {name}.npy"
            )
        return array.tobytes()

    def _fields(self, item: Any, number: int) -> Mapping[str, Any]:
        who = f"item {number:,} of {self.source}"
        if self.function is None:
            if not isinstance(item, Mapping):
                raise SourceError(
                    f'{who} is a {type(item).__name__}, not a sample such as {{"jpg": ..., "cls": 3}}: give encode=, '
                    f"a function that makes a sample of it"
                )
            return item
        try:
            fields = self.function(item, number) if self.wants_number else self.function(item)
        except Exception as error:
            raise SourceError(f"encode failed on {who}: {type(error).__name__}: {error}") from error
        if not isinstance(fields, Mapping):
            raise SourceError(f"encode returned a {type(fields).__name__} for {who}: it must return a dict of members")
        return fields

    def _error(self, number: int, key: Any, reason: str) -> SourceError:
        return SourceError(f"sample {number:,} of {self.source} (key {key!r}) cannot be packed: {reason}")

    def learnt(self) -> tuple[ItemEncoder, dict[str, Any]]:
        """Return the encoder of all further items, and what ``index.json`` says of arrays."""
        notes = {name: {"dtype": one.dtype, "shape": list(one.shape)} for name, one in self.arrays.items()}
        return replace(self, learns=False), notes


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The type of the arrays of one field; the first dimension of each follows from its bytes.

    >>> str(ArrayType.of(np.zeros((5, 3), np.int32)))
    'int32 [None, 3]'
    """

    dtype: str
    """As numpy writes it, such as ``"<i4"``."""
    shape: tuple[int | None, ...]
    """Of each array: ``None`` for the first dimension."""

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> ArrayType:
        """Return the type of an array. Raises `SourceError` for an array of other things than numbers."""
        if array.dtype.kind not in "biufc" or 0 in array.shape[1:]:
            raise SourceError(f"an array of {array.dtype} {list(array.shape)} cannot be stored: give numbers")
        return cls(array.dtype.str, (None, *array.shape[1:]) if array.shape else ())

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype).name} {list(self.shape)}"


def digest(kind: str, length: int | None, samples: Iterable[Sample], arrays: Mapping[str, Any]) -> str:
    """Return the fingerprint of a Python data set or iterable: of its length, if it has one, and some samples."""
    state = hashlib.sha256(f"{kind}\0{length}\0{sorted(arrays.items())}\n".encode())
    for key, members in samples:
        for extension, data in members:
            # Items are encoded when they are taken; one that could not be has no bytes.
            content = data if isinstance(data, bytes) else b""
            state.update(f"{key}.{extension}\0{len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()


def _wants_number(function: Encode) -> bool:
    """Return whether the second positional parameter is for the number: without default, or called ``index``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C do not tell
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "index")


def _wrong_field(key: str, field: Any, seen: dict[str, str]) -> str | None:
    """Return why a name cannot be a field, or ``None``; note it in ``seen``."""
    if not isinstance(field, str):
        return f"field {field!r} is no str"
    if field.startswith("__") and field.endswith("__"):
        return f"field {field!r} has the name of an entry that readers add: rename it"
    if field.startswith("."):
        return f"field {field!r} starts with a dot: give the extension alone"
    if not is_text(field) or "\0" in field or split_name(f"{key}.{field}") != (key, field):
        return f"field {field!r} cannot be an extension: it must not be empty or hold a slash, a line break or a NUL"
    other = seen.setdefault(field.lower(), field)
    return None if other is field else f"fields {other!r} and {field!r} differ in case only: readers take both for one"


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """A data set, and how its items become samples."""

    dataset: Any
    encode: ItemEncoder
    on_error: OnError

    def sample(self, number: int) -> Sample:
        """Return one encoded sample, or its placeholder if it is skipped."""
        try:
            return self._sample(number)
        except SourceError as error:
            if self.on_error == "raise":
                raise
            return broken(numbered(number), error)

    def _sample(self, number: int) -> Sample:
        try:
            item = self.dataset[number]
        except Exception as error:
            raise SourceError(
                f"item {number:,} of {self.encode.source} cannot be read: {type(error).__name__}: {error}"
            ) from error
        return self.encode(item, number)


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSamples:
    """Some items of a data set, made when they are iterated over."""

    items: Carried[_Items]
    indices: list[int]

    def __iter__(self) -> Iterator[Sample]:
        return map(self.items.value.sample, self.indices)


def _dataset(dataset: Any, location: str, encode: Encode | None, on_error: OnError) -> Source:
    """Make a few items of a data set with random access.

    Raises `SourceError` for a data set without items, and for one that gives another item each time.
    """
    length = len(dataset)
    if not length:
        raise SourceError(f"{location} has no items: is it the right data set?")
    items = Carried(_Items(dataset, ItemEncoder.of(location, encode), on_error))
    # Data sets open files when they are first asked for an item, as workers of a DataLoader want it.
    encoder, size, layouts, notes, known = apart(_look, items, length)
    items = Carried(_Items(dataset, replace(encoder, function=items.value.encode.function), on_error))

    def load(_: Source) -> Contents:
        return Contents(
            sizes=np.full(length, size, np.int64),
            take=lambda indices: DatasetSamples(items, indices.tolist()),
            has_exact_sizes=False,
            notes={"arrays": notes} if notes else {},
            layouts=lambda: layouts,
            facts={"looked at": f"{len(_spread(length)):,} of {length:,} items, to estimate sizes"},
        )

    return Source("dataset", location, known, load)


def _spread(length: int) -> list[int]:
    """Return the numbers of the items to look at: the first, the last, and one somewhere in each stretch between.

    Equal distances could fall in step with the data, such as with classes that take turns.
    """
    return sorted({*(int((n + n * _GOLDEN % 1) * length / LOOKS) for n in range(LOOKS)), length - 1})


def _look(
    carried: Carried[_Items], length: int
) -> tuple[ItemEncoder, int, dict[tuple[str, ...], int], dict[str, Any], str]:
    """Return what some items show: the encoder, the mean size, the members, the types of arrays, and a digest."""
    items = carried.value
    looks = [items.sample(number) for number in _spread(length)]
    if items.sample(0) != looks[0]:
        raise SourceError(
            f"{items.encode.source} gives another item 0 each time, so that it could not be packed twice alike: turn "
            f"random transforms off"
        )
    encoder, notes = items.encode.learnt()
    size = math.ceil(sum(map(sample_size, looks)) / len(looks))
    # A function need not pickle: the caller has it.
    return replace(encoder, function=None), size, _layouts(looks), notes, digest("dataset", length, looks, notes)


def _layouts(samples: Iterable[Sample]) -> dict[tuple[str, ...], int]:
    """Count samples by their extensions."""
    return dict(Counter(tuple(extension.lower() for extension, _ in members) for _, members in samples))


def _stream(items: Iterable[Any], location: str, encode: Encode | None, on_error: OnError) -> Stream:
    """Return the samples of an iterable; its first ones are made beforehand, to identify it.

    Raises `SourceError` for an iterable that gives none, or fails among them.
    """
    encoder = ItemEncoder.of(location, encode)
    numbered_items = enumerate(_guarded(items, location))
    looks = _samples(numbered_items, encoder, on_error)
    first: list[Sample] = []
    left = LOOKED_AT_BYTES
    while len(first) < LOOKS and left > 0 and (sample := next(looks, None)) is not None:
        first.append(sample)
        left -= sample_size(sample)
    if not first:
        raise SourceError(f"{location} gave no samples: was it iterated over before?")
    encoder, notes = encoder.learnt()
    samples = itertools.chain(first, _samples(numbered_items, encoder, on_error))
    known = digest("iterable", None, first, notes)
    return Stream(
        "iterable", location, known, samples, {"arrays": notes} if notes else {}, layouts=lambda: _layouts(first)
    )


def _samples(items: Iterable[tuple[int, Any]], encode: ItemEncoder, on_error: OnError) -> Iterator[Sample]:
    for number, item in items:
        try:
            sample = encode(item, number)
        except SourceError as error:
            if on_error == "raise":
                raise
            sample = broken(numbered(number), error)
        yield sample


def _guarded(items: Iterable[Any], source: str) -> Iterator[Any]:
    """Yield the items; name the one at which the iterable raises."""
    number = 0
    try:
        for item in items:
            yield item
            number += 1
    except Exception as error:
        raise SourceError(f"{source} failed at sample {number:,}: {type(error).__name__}: {error}") from error
