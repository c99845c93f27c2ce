"""A listing: the files of a folder or an archive in arrays, grouped into samples.

Files whose paths agree up to the first dot of the base name are one sample, until `cut` applies another key rule, which
only divides these: every rule cuts at a dot. Samples come in the order of their first
files' paths, byte by byte. A file takes some 30 bytes beside its name, so that ten million fit in memory with ease.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.packing.sources.scan import shown
from wdsdist.shards.tar import (
    BLOCK,
    FIRST_DOT,
    PLAIN_NAME,
    SIZE_LIMIT,
    cutter,
    escaped,
    is_cut_alike,
    stored_size,
)

Names = npt.NDArray[np.bytes_]

_CHUNK = 1 << 16  # files that are looked at together: enough for numpy, and little memory


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


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Files in the order of their samples; ``n`` files in ``s`` samples and ``f`` runs of files in one folder."""

    folder_bytes: bytearray
    """The paths of the folders, UTF-8, each with a slash at its end (the outermost one is empty), one after another."""
    folder_ends: Int64s
    """int64 [f + 1]: where each folder's path starts in ``folder_bytes``, and its end."""
    folder_files: Int64s
    """int64 [f + 1]: the first file of each run, and ``n``."""
    name_bytes: bytearray
    """The names of the files within their folders, one after another."""
    name_ends: Int64s
    """int64 [n + 1]: where each name starts in ``name_bytes``, and its end."""
    sizes: Int64s
    """int64 [n]: bytes of each file."""
    places: Int64s | None
    """int64 [n]: where an archive holds each file; none for files of a folder."""
    extension_ids: npt.NDArray[np.int32]
    """int32 [n]: each file's place in ``extensions``."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    sample_files: Int64s
    """int64 [s + 1]: the first file of each sample, and ``n``."""
    problems: Mapping[int, str]
    """What is wrong with a file, by its number: its sample cannot be packed."""
    digest: str
    """Of all paths, sizes and times."""
    key_rule: str = FIRST_DOT
    dots: npt.NDArray[np.int32] | None = None
    """int32 [n]: the place of the dot in each name that ends the key; by default the first."""

    @property
    def num_files(self) -> int:
        return len(self.sizes)

    @property
    def num_samples(self) -> int:
        return len(self.sample_files) - 1

    def folder(self, run: int) -> str:
        """Return the path of a run's folder, with a slash at its end."""
        return _text(self.folder_bytes[self.folder_ends[run] : self.folder_ends[run + 1]])

    def runs(self, files: Int64s) -> Int64s:
        """int64: the run that each of some files is in."""
        return np.searchsorted(self.folder_files, files, side="right") - 1

    def name(self, file: int) -> str:
        """Return a file's name within its folder."""
        return _text(self.name_bytes[self.name_ends[file] : self.name_ends[file + 1]])

    def path(self, file: int) -> str:
        """Return a file's path from the outermost folder; bytes that are no UTF-8 are surrogates in it."""
        return self.folder(int(self.runs(np.array([file]))[0])) + self.name(file)

    def key(self, sample: int) -> str:
        """Return the key of a sample as it is packed: its files' path up to the dot that the key rule says."""
        file = int(self.sample_files[sample])
        name = self.name(file)
        folder = self.path(file)[: -len(name)]
        return folder + name.partition(".")[0] if self.dots is None else escaped(folder + name[: self.dots[file]])

    def member_name(self, file: int) -> str:
        """Return the name of a file in the tar that it is packed into."""
        if self.dots is None:
            return self.path(file)
        return f"{self.key(int(self.samples_of(np.array(file))))}{self.name(file)[self.dots[file] :]}"

    def compound_groups(self) -> Iterator[list[str]]:
        """Yield the paths of the files of each sample that has an extension such as ``seg.png``."""
        held = np.array([not is_cut_alike(one) for one in self.extensions], np.bool_)[self.extension_ids]
        for sample in np.unique(self.samples_of(np.flatnonzero(held))).tolist():
            yield [self.path(file) for file in range(*self.sample_files[sample : sample + 2].tolist())]

    def stored_sizes(self) -> Int64s:
        """int64 [samples]: bytes that each sample takes in a tar."""
        stored = self.sizes + BLOCK
        stored += -self.sizes % BLOCK
        for file in self.odd_files().tolist():
            if file not in self.problems:
                stored[file] = stored_size(self.member_name(file), int(self.sizes[file]))
        return np.add.reduceat(stored, self.sample_files[:-1]) if self.num_samples else stored

    def samples_of(self, files: Int64s) -> Int64s:
        """int64: the sample that each of some files is in."""
        return np.searchsorted(self.sample_files, files, side="right") - 1

    def odd_files(self, *, spare: int = 0) -> Int64s:
        """int64: the files that may need more than a plain tar header, had their paths ``spare`` more bytes."""
        lengths = np.diff(self.folder_ends)
        if self.dots is not None:
            return np.arange(self.num_files)  # escapes make names longer
        plain_folder = np.array([self.folder(run).isascii() for run in range(len(lengths))], np.bool_)
        found = [np.empty(0, np.int64)]
        for start in range(0, self.num_files, _CHUNK):
            files = np.arange(start, min(start + _CHUNK, self.num_files))
            runs = self.runs(files)
            first, last = int(self.name_ends[start]), int(self.name_ends[files[-1] + 1])
            letters = np.frombuffer(self.name_bytes, np.uint8, last - first, first)
            beyond_ascii = np.maximum.reduceat(letters, self.name_ends[files] - first) > 127
            long = lengths[runs] + np.diff(self.name_ends[start : files[-1] + 2]) + spare > PLAIN_NAME
            found.append(files[beyond_ascii | long | ~plain_folder[runs] | (self.sizes[files] >= SIZE_LIMIT)])
        return np.concatenate(found)


def cut(listing: Listing, rule: str) -> Listing:
    """Return a listing whose names are cut by another key rule than the first dot.

    Raises ``ValueError`` for a name in which the rule finds no key.
    """
    find_dot = cutter(rule)
    order, dots, starts = array("q"), array("i"), array("q")
    numbers: dict[str, int] = {}
    ids = array("i")
    for sample in range(listing.num_samples):
        files = []
        for file in range(*listing.sample_files[sample : sample + 2].tolist()):
            name = listing.name(file)
            dot = find_dot(name)
            if dot <= 0:
                raise ValueError(f"the key rule {rule!r} finds no key in {listing.path(file)}: give another by --key")
            files.append((name[:dot], name[dot + 1 :], file))
        last = None
        for key, extension, file in sorted(files):
            if key != last:
                starts.append(len(order))
                last = key
            order.append(file)
            dots.append(len(key))
            ids.append(numbers.setdefault(extension, len(numbers)))
    starts.append(len(order))
    new = np.frombuffer(order, np.int64)
    places = {int(file): place for place, file in enumerate(new.tolist()) if file in listing.problems}
    bounds = zip(listing.name_ends[new].tolist(), listing.name_ends[new + 1].tolist(), strict=True)
    return replace(
        listing,
        name_bytes=bytearray().join([listing.name_bytes[start:stop] for start, stop in bounds]),
        name_ends=np.append(0, np.cumsum(np.diff(listing.name_ends)[new])),
        sizes=listing.sizes[new],
        places=None if listing.places is None else listing.places[new],
        extension_ids=np.frombuffer(ids, np.int32),
        extensions=tuple(numbers),
        sample_files=np.frombuffer(starts, np.int64),
        problems={places[file]: what for file, what in listing.problems.items()},
        digest=f"{listing.digest} {rule}",
        key_rule=rule,
        dots=np.frombuffer(dots, np.int32),
    )


class _ListingBuilder:
    """Fills a listing, run by run."""

    def __init__(self) -> None:
        self._folder_bytes = bytearray()
        self._folder_ends, self._folder_files = [0], [0]
        self._name_bytes = bytearray()
        # Bytes that grow, and are the arrays in the end: lists of arrays would be held twice when they are joined.
        self._name_ends, self._sizes, self._places = bytearray(8), bytearray(), bytearray()
        self._starts, self._extension_ids = bytearray(), bytearray()
        self._extensions: dict[bytes, int] = {}
        self._problems: dict[int, str] = {}
        self._digest = hashlib.sha256()

    def add(self, part: _Part) -> None:
        """Add files of one folder: a sample is wholly in the part, its files in the order of their names."""
        names, sizes = part.names, part.sizes
        base = self._folder_files[-1]
        self._folder_bytes += part.path
        self._folder_ends.append(len(self._folder_bytes))
        self._folder_files.append(base + len(names))
        self._problems.update((base + number, what) for number, what in part.problems.items())
        self._digest.update(b"%d %s\n" % (len(names), part.path))
        self._sizes += sizes.tobytes()
        if part.places is not None:
            self._places += part.places.tobytes()
        last = b""
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK]
            self._add_names(chunk, last, base + start)
            last = chunk[-1].partition(b".")[0]
        self._digest.update(sizes.astype("<i8").tobytes())
        self._digest.update(part.mtimes.astype("<i8").tobytes())

    def _add_names(self, names: Names, last_key: bytes, base: int) -> None:
        names = np.ascontiguousarray(names)
        letters = names.view(np.uint8).reshape(len(names), -1)
        lengths = np.char.str_len(names)
        dots = (letters == ord(".")).argmax(axis=1)
        listed = names.tolist()
        self._name_ends += (len(self._name_bytes) + np.cumsum(lengths)).astype(np.int64).tobytes()
        self._name_bytes += b"".join(listed)
        self._digest.update(b"\n".join(listed))
        in_key = np.arange(letters.shape[1]) < dots[:, None]
        keys = np.where(in_key, letters, 0)
        new = np.ones(len(names), np.bool_)
        new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        new[0] = names[0].partition(b".")[0] != last_key
        self._starts += (base + np.flatnonzero(new)).tobytes()
        self._extension_ids += self._numbers(letters, dots).tobytes()

    def _numbers(self, letters: npt.NDArray[np.uint8], dots: Int64s) -> npt.NDArray[np.int32]:
        """Number the extensions of some names, new ones after those that are known."""
        width = letters.shape[1]
        places = np.minimum(dots[:, None] + 1 + np.arange(width - int(dots.min())), width)
        padded = np.concatenate([letters, np.zeros((len(letters), 1), np.uint8)], axis=1)
        found = np.ascontiguousarray(np.take_along_axis(padded, places, axis=1))
        extensions = found.view(f"S{found.shape[1]}").reshape(-1)
        if (extensions == extensions[0]).all():  # as in most folders
            number = self._extensions.setdefault(bytes(extensions[0]), len(self._extensions))
            return np.full(len(letters), number, np.int32)
        distinct, inverse = np.unique(extensions, return_inverse=True)
        numbers = [self._extensions.setdefault(one, len(self._extensions)) for one in distinct.tolist()]
        return np.array(numbers, np.int32)[inverse.reshape(-1)]

    def finish(self) -> Listing:
        """Return the listing; the builder is of no use then."""
        self._digest.update(repr(sorted(self._problems.items())).encode("utf-8", "surrogatepass"))
        self._starts += np.int64(self._folder_files[-1]).tobytes()
        return Listing(
            folder_bytes=self._folder_bytes,
            folder_ends=np.array(self._folder_ends, np.int64),
            folder_files=np.array(self._folder_files, np.int64),
            name_bytes=self._name_bytes,
            name_ends=np.frombuffer(self._name_ends, np.int64),
            sizes=np.frombuffer(self._sizes, np.int64),
            places=np.frombuffer(self._places, np.int64) if self._places else None,
            extension_ids=np.frombuffer(self._extension_ids, np.int32),
            extensions=tuple(map(_text, self._extensions)),
            sample_files=np.frombuffer(self._starts, np.int64),
            problems=self._problems,
            digest=self._digest.hexdigest(),
        )


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
    builder = _ListingBuilder()
    todo: list[_Part | bytes] = [b""]
    while todo:
        part = todo.pop()
        if isinstance(part, bytes):
            todo += reversed(_parts(part, open_folder(part)))
        else:
            builder.add(part)
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
    """What is wrong with a file, by its place in ``names``."""


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
    twins = {
        name: f"{shown(path + name)} is there twice: remove one, or leave its sample out with `--on-error skip`"
        for name in folder.twins
    }
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


def _text(path: bytes | bytearray) -> str:
    return path.decode("utf-8", "surrogateescape")
