"""What Python makes, as samples: a data set with random access, or an iterable.

A map-style ``torch.utils.data.Dataset``, a list, and their kin are asked for items by the process that writes them. An
iterable, such as a generator, is read once and in order, without knowing how many samples will come. What items hold is
known only once they are made, so a few are made beforehand: they identify the source, and show how large a sample of a
data set is and of what type arrays are.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wdsdist._util.pools import Carried, run_in_subprocess
from wdsdist._util.validation import check_callable
from wdsdist.errors import ArgumentError, SourceError, given
from wdsdist.packing.members import Payload, Sample, Samples, broken, check_extensions, check_key, numbered, sample_size
from wdsdist.packing.options import Encode, OnError, Options
from wdsdist.packing.sources.source import READERS_NOTES, Contents, Source
from wdsdist.packing.sources.table import of_dataset
from wdsdist.packing.tables.table import is_dataset
from wdsdist.samples import encoders

LOOKS = 64
"""Items that are made beforehand: their mean size is within a few percent of the mean of most data sets."""
LOOKED_AT_BYTES = 16 << 20
"""Most bytes of an iterable's first samples, which wait in memory until they are written."""
_GOLDEN = (5**0.5 - 1) / 2


def find(made: Any, options: Options) -> Source | None:
    """Return the source of the samples of a Python data set or iterable; ``None`` for a string or path.

    An object is a data set with ``__len__`` and ``__getitem__``, which is a table if `is_dataset` says so, or any other
    iterable.

    >>> find([{"txt": "hello"}], Options()).location, find("photos/train", Options())
    ('list', None)
    """
    if isinstance(made, (str, os.PathLike)):
        return None
    check_callable("encode", function := options.encode)
    location = _name(made)
    if function is None and options.kind is None and is_dataset(made):
        return of_dataset(made, location, options)
    encoder = ItemEncoder(location, function, options.on_error, learns=True)
    # Torch gives data sets that can only be iterated over a ``__getitem__`` that raises.
    torch_data = sys.modules.get("torch.utils.data")
    is_iterable = torch_data is not None and isinstance(made, torch_data.IterableDataset)
    if hasattr(made, "__len__") and hasattr(made, "__getitem__") and not is_iterable and not inspect.isclass(made):
        return _dataset(made, encoder)
    if isinstance(made, Iterable):
        return _stream(made, encoder)
    raise ArgumentError(
        f"source is {made!r:.100}, which can be neither iterated over nor asked for items by number: name a "
        f"folder, a file or a URL, or give a data set, which has __len__ and __getitem__, or an iterable of samples",
        argument="source",
    )


def _name(source: object) -> str:
    """Name an object as its author would: by its function, or by its class."""
    if inspect.isgenerator(source):
        return f"generator {source.__qualname__}"
    module, name = type(source).__module__, type(source).__qualname__
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


@dataclass(frozen=True, slots=True)
class ItemEncoder:
    """Turns the items of one source into samples.

    Arrays in fields of no known encoding are stored as their numbers, little-endian.

    >>> ItemEncoder("photos")({"cls": 3, "jpg": b"..."}, 5)
    ('000000005', [('cls', b'3'), ('jpg', b'...')])
    >>> ItemEncoder("photos", lambda item: {"__key__": f"a/{item[1]}", "txt": item[0]})(("hello", 7), 5)
    ('a/7', [('txt', b'hello')])
    """

    source: str
    """Its name, for messages."""
    function: Encode | None = None
    on_error: OnError = "raise"
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The type of the arrays of each field, by its name in lower case, as ``index.json`` has it."""
    learns: bool = False
    """Whether the types of arrays are being learnt, from the items that are made beforehand."""

    def __call__(self, item: Any, number: int) -> Sample:
        """Return the sample of one item, its members by extension.

        Raises `SourceError` with the item's number for an item that cannot be a sample.
        """
        name = f"item {number:,} of {self.source}"
        try:
            fields = item if self.function is None else self.function(item)
        except Exception as error:
            raise SourceError(f"encode failed on {name}: {type(error).__name__}: {error}") from error
        if not isinstance(fields, Mapping):
            what = f"{name} is" if self.function is None else f"encode returned for {name}"
            problem = f'{what} a {type(fields).__name__}, not a sample such as {{"jpg": ..., "cls": 3}}'
            raise SourceError(f"{problem}: give {given('encode')}, a function that makes a sample of it")
        key = fields.get("__key__", numbered(number))
        try:
            key = key.removeprefix("./") if isinstance(key, str) else key
            check_key(key)
            names = [name for name in fields if name != "__key__" and name not in READERS_NOTES]
            check_extensions(key, names)
            members: list[tuple[str, Payload]] = [(name, self._encoded(name, fields[name])) for name in names]
        except Exception as error:  # also what Pillow and others raise; one class leaves here
            raise SourceError(f"{name} cannot be packed: {error}") from error
        return key, sorted(members)

    def or_broken(self, item: Any, number: int) -> Sample:
        """Return the sample of an item, or its placeholder if it is left out; an item may be the error in its stead."""
        try:
            if isinstance(item, SourceError):
                raise item
            return self(item, number)
        except SourceError as error:
            if self.on_error == "raise":
                raise
            return broken(numbered(number), error)

    def _encoded(self, name: str, value: Any) -> bytes:
        if value is None:
            raise SourceError(f"field {name!r} is None: leave the field out if there is no value")
        if encoders.encoder_of(name) or not (hasattr(value, "dtype") and hasattr(value, "shape")):
            return encoders.encode(name, value)
        try:
            array = np.ascontiguousarray(encoders.array_of(value))  # a scalar has one row
        except TypeError as error:
            raise SourceError(f"field {name!r}: {error}") from error
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype.kind not in "biufc" or 0 in array.shape[1:]:
            problem = f"field {name!r}: an array of {array.dtype} {list(array.shape)} cannot be stored"
            raise SourceError(f"{problem}: give numbers")
        # The first dimension of each follows from its bytes.
        own: dict[str, Any] = {"dtype": array.dtype.str, "shape": [None, *array.shape[1:]]}
        known = self.arrays.setdefault(name.lower(), own) if self.learns else self.arrays.get(name.lower())
        if known is None:
            raise SourceError(f"field {name!r} holds an array, but not in the first samples: name it {name}.npy")
        if known != own:
            type_name, first = (f"{np.dtype(kind['dtype']).name} {kind['shape']}" for kind in (own, known))
            problem = f"field {name!r} holds {type_name}, but {first} in the first samples"
            raise SourceError(f"{problem}: make all alike, or name it {name}.npy")
        return array.tobytes()


def _looked_at(
    kind: str, length: int | None, samples: list[Sample], encode: ItemEncoder
) -> tuple[int, str, dict[str, Any]]:
    """Return what samples that were made beforehand show of a source of ``length`` items, if that is known.

    That is the mean bytes of a sample in a tar; a digest; and the ``notes`` and ``members`` of `Contents`.
    """
    members_of_all = Counter(extension.lower() for _, members in samples for extension, _ in members)
    state = hashlib.sha256(f"{kind}\0{length}\0{sorted(encode.arrays.items())}\n".encode())
    for key, members in samples:
        for extension, data in members:
            # Items are encoded when they are taken; one that could not be has no bytes.
            content = data if isinstance(data, bytes) else b""
            state.update(f"{key}.{extension}\0{len(content)}\n".encode())
            state.update(content)
    size = math.ceil(sum(map(sample_size, samples)) / len(samples))
    notes = {"arrays": dict(sorted(encode.arrays.items()))} if encode.arrays else {}
    return size, state.hexdigest(), {"notes": notes, "members": members_of_all}


def _samples(dataset: Carried[Any], encode: Carried[ItemEncoder], indices: list[int]) -> Iterator[Sample]:
    """Make some items of a data set."""
    for number in indices:
        try:
            item = dataset.value[number]
        except Exception as error:
            reason = f"item {number:,} of {encode.value.source} cannot be read: {type(error).__name__}: {error}"
            item = SourceError(reason)
            item.__cause__ = error
        yield encode.value.or_broken(item, number)


def _dataset(dataset: Any, encode: ItemEncoder) -> Source:
    """Make a few items of a data set with random access.

    Raises `SourceError` for a data set without items, and for one that gives another item each time.
    """
    length = len(dataset)
    if not length:
        raise SourceError(f"{encode.source} has no items: is it the right data set?")
    # The first, the last, and one somewhere in each stretch between: equal distances could fall in step with the data,
    # such as with classes that take turns.
    numbers = sorted({*(int((n + n * _GOLDEN % 1) * length / LOOKS) for n in range(LOOKS)), length - 1})
    carried = Carried(dataset)
    # Data sets open files when they are first asked for an item, as workers of a DataLoader want it.
    size, digest, about = run_in_subprocess(_look, carried, Carried(encode), numbers, length)
    encoder = Carried(replace(encode, arrays=about["notes"].get("arrays", {}), learns=False))
    contents = Contents(
        sizes=np.full(length, size, np.int64),
        take=lambda indices: Samples(_samples, (carried, encoder, indices.tolist())),
        **about,
        facts={"looked at": f"{len(numbers):,} of {length:,} items, to estimate sizes"},
    )
    return Source("dataset", encode.source, digest, lambda: contents)


def _look(dataset: Carried[Any], encode: Carried[ItemEncoder], numbers: list[int], length: int) -> Any:
    samples = list(_samples(dataset, encode, numbers))
    if repr(next(_samples(dataset, encode, numbers))) != repr(samples[0]):  # errors are equal to themselves alone
        raise SourceError(f"{encode.value.source} gives another item 0 each time: turn random transforms off")
    return _looked_at("dataset", length, samples, encode.value)


def _stream(items: Iterable[Any], encode: ItemEncoder) -> Source:
    """Return the samples of an iterable; its first ones are made beforehand, to identify it.

    Raises `SourceError` for an iterable that gives none, or fails among them.
    """

    def numbered_items() -> Iterator[tuple[int, Any]]:
        number = 0
        try:
            for item in items:
                yield number, item
                number += 1
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"{encode.source} failed at sample {number:,}: {reason}") from error

    rest, first, left = numbered_items(), list[Sample](), LOOKED_AT_BYTES
    looked = (encode.or_broken(item, number) for number, item in rest)
    while len(first) < LOOKS and left > 0 and (sample := next(looked, None)) is not None:
        first.append(sample)
        left -= sample_size(sample)
    if not first:
        raise SourceError(f"{encode.source} gave no samples: was it iterated over before?")
    (_, digest, about), known = _looked_at("iterable", None, first, encode), replace(encode, learns=False)
    contents = Contents(
        sizes=np.empty(0, np.int64),
        take=lambda _: (),
        **about,
        stream=itertools.chain(first, (known.or_broken(item, number) for number, item in rest)),
    )
    return Source("iterable", encode.source, digest, lambda: contents)
