"""Files to samples: those whose paths agree up to the first dot of the base name, in the order of their paths.

The rule is the same for a folder and for an archive; they differ only in how the files of one folder are found.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import printable
from wdsdist.packing.sources.listing import Listing, ListingBuilder, Names

_CHUNK = 1 << 16  # names that are held as Python objects together


@dataclass(slots=True)
class Folder:
    """What lies directly in one folder: files that are members of samples, and further folders."""

    folders: list[bytes] = field(default_factory=list)
    """Their names."""
    problems: dict[bytes, str] = field(default_factory=dict)
    """What is wrong with a file, by its name."""
    twins: set[bytes] = field(default_factory=set)
    """Names that an archive holds more than once."""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    places: array[int] = field(default_factory=lambda: array("q"))
    _names: bytearray = field(default_factory=bytearray)  # with a NUL after each, which no name holds

    def add(self, name: bytes, size: int, *, mtime_ns: int | None = None, place: int | None = None) -> None:
        """Add a file: its name has a key and an extension. ``place`` is where an archive holds it.

        All files of a folder have a time, or none has; and so with places.
        """
        self._names += name + b"\0"
        self.sizes.append(size)
        if mtime_ns is not None:
            self.mtimes.append(mtime_ns)
        if place is not None:
            self.places.append(place)

    def sorted(self) -> tuple[Names, Int64s, Int64s, Int64s | None]:
        """Return names, sizes, times and places of all files, in the order of their names; the folder is empty then.

        Of files with the same name, the first one is given, and the name is noted among ``twins``.
        """
        names = self._take_names()
        order = np.argsort(names, kind="stable")
        names = names[order]
        again = np.flatnonzero(names[1:] == names[:-1]) + 1
        if len(again):
            self.twins.update(names[again].tolist())
            names, order = np.delete(names, again), np.delete(order, again)
        sizes = np.frombuffer(self.sizes, np.int64)[order]
        mtimes = np.frombuffer(self.mtimes, np.int64)[order] if self.mtimes else np.zeros(len(order), np.int64)
        places = np.frombuffer(self.places, np.int64)[order] if self.places else None
        return names, sizes, mtimes, places

    def _take_names(self) -> Names:
        ends = np.flatnonzero(np.frombuffer(self._names, np.uint8) == 0)
        bounds = np.append(-1, ends)
        names = np.empty(len(ends), f"S{max(1, int(np.diff(bounds).max(initial=2)) - 1)}")
        for start in range(0, len(names), _CHUNK):
            stop = min(start + _CHUNK, len(names))
            names[start:stop] = bytes(self._names[bounds[start] + 1 : bounds[stop]]).split(b"\0")
        self._names = bytearray()
        return names


def list_samples(open_folder: Callable[[bytes], Folder]) -> Listing:
    """Return the samples of a tree of folders in the order of their first files' paths, byte by byte.

    Args:
        open_folder: gives what lies in a folder, by its path with a slash at its end; that of the outermost is empty.

    >>> def open_folder(path):
    ...     folder = Folder(folders=[] if path else [b"a"])
    ...     folder.add(b"2.jpg", 10)
    ...     folder.add(b"2.cls", 10)
    ...     return folder
    >>> listing = list_samples(open_folder)
    >>> [listing.key(sample) for sample in range(listing.num_samples)], listing.path(2)
    (['2', 'a/2'], 'a/2.cls')
    """
    builder = ListingBuilder()
    todo: list[_Part | bytes] = [b""]
    while todo:
        part = todo.pop()
        if isinstance(part, bytes):
            todo += reversed(_parts(part, open_folder(part)))
        else:
            builder.add(part.path, part.names, part.sizes, part.mtimes, part.places, part.problems)
    return builder.finish()


@dataclass(frozen=True, slots=True)
class _Part:
    """Files of one folder that no other folder stands between."""

    path: bytes
    names: Names
    sizes: Int64s
    mtimes: Int64s
    places: Int64s | None
    problems: dict[int, str]


def _parts(path: bytes, folder: Folder) -> list[_Part | bytes]:
    """Cut the files of a folder where the paths of further folders stand between them, but never within a sample."""
    names, sizes, mtimes, places = folder.sorted()
    cuts: list[tuple[int, bytes]] = []
    for name in sorted(folder.folders, key=lambda name: name + b"/"):
        cut = int(np.searchsorted(names, np.bytes_(name + b"/")))
        # Of `a.jpg`, `a.d/` and `a.txt`, the first and last are one sample, which the folder comes after.
        while 0 < cut < len(names) and _key(names[cut]) == _key(names[cut - 1]):
            cut += 1
        cuts.append((cut, name))
    twins = {name: f"{shown(path + name)} is there twice: remove one of the two" for name in folder.twins}
    problems = {**folder.problems, **twins}
    parts: list[_Part | bytes] = []
    start = 0
    for stop, name in [*cuts, (len(names), b"")]:
        if stop > start:
            run = slice(start, stop)
            wrong = {}
            if problems:
                wrong = {n: problems[one] for n, one in enumerate(names[run].tolist()) if one in problems}
            parts.append(
                _Part(path, names[run], sizes[run], mtimes[run], None if places is None else places[run], wrong)
            )
            start = stop
        if name:
            parts.append(path + name + b"/")
    return parts


def _key(name: bytes) -> bytes:
    return name.partition(b".")[0]


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path fit for a message: bytes that are no text, and control characters, are written as escapes."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
