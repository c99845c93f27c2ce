"""A listing: the files of a folder or an archive in arrays, grouped into samples.

Files whose paths agree up to the first dot of the base name are one sample, until `cut` applies another key rule, which
only divides these: every rule cuts at a dot. Samples come in the order of their first
files' paths, byte by byte. A file takes some 30 bytes beside its name, so that ten million fit in memory with ease.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, printable
from wdsdist.shards.tar.fields import BLOCK
from wdsdist.shards.tar.member_names import cutter, escaped
from wdsdist.shards.tar.naming import FIRST_DOT
from wdsdist.shards.tar.writer import PLAIN_NAME, SIZE_LIMIT, stored_size

Names = npt.NDArray[np.bytes_]

_CHUNK = 1 << 16  # files that are looked at together: enough for numpy, and little memory


FOLDER, FILE, OTHER = b"dfo"
LINK = 0x80
"""Is added to the type of what a link leads to; a link to nothing is `LINK` and `OTHER`."""

CLUTTER_FOLDERS = frozenset(
    ("__MACOSX", "System Volume Information", "@eaDir", "lost+found", "$RECYCLE.BIN", "$Recycle.Bin", "RECYCLER",
     "#recycle", "@Recycle", "#snapshot", "@Recently-Snapshot")
)  # fmt: skip
"""Folders that systems, archivers and network drives make for themselves, such as of deleted files."""

_NAME = re.compile(rb"[^\0]+")


@dataclass(frozen=True, slots=True)
class FolderEntries:
    """Names and types of the entries of one folder, as the system lists them."""

    names: bytearray
    """A NUL after each name, for no name holds one."""
    types: bytearray
    """`FOLDER`, `FILE` or `OTHER` (devices, pipes, sockets and links to nothing), and `LINK` for links."""

    @classmethod
    def of(cls, folder: bytes) -> FolderEntries:
        """Read a folder. The system notes types with names, so only links are looked up.

        Raises `OSError` for a folder that cannot be read.
        """
        names, types = bytearray(), bytearray()
        with os.scandir(folder) as entries:
            for entry in entries:
                names += entry.name
                names.append(0)
                types.append(_kind(entry))
        return cls(names, types)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Yield names and types."""
        return zip((match[0] for match in _NAME.finditer(self.names)), self.types, strict=True)

    def holds(self, name: str) -> bool:
        """Return whether the folder has an entry with this file name."""
        wanted = os.fsencode(name) + b"\0"
        return self.names.startswith(wanted) or b"\0" + wanted in self.names

    def texts(self) -> Iterator[str]:
        """Yield the names as text."""
        return (os.fsdecode(match[0]) for match in _NAME.finditer(self.names))


def _kind(entry: os.DirEntry[bytes]) -> int:
    try:
        kind = FILE if entry.is_file() else FOLDER if entry.is_dir() else OTHER
    except OSError:
        if not entry.is_symlink():
            raise  # it would be passed over as a device
        kind = OTHER  # a link to itself, or into a folder that may not be entered
    return kind | LINK if entry.is_symlink() else kind


def is_passed_over(folder: bytes) -> bool:
    """Return whether a listing ignores a folder: hidden, or made by an operating system or archiver.

    >>> is_passed_over(b".ipynb_checkpoints"), is_passed_over(b"__MACOSX"), is_passed_over(b"cat")
    (True, True, False)
    """
    return folder[:1] == b"." or os.fsdecode(folder) in CLUTTER_FOLDERS


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path fit for a message: bytes that are no text, and control characters, are written as escapes."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


@dataclass(slots=True)
class Folder:
    """What lies directly in one folder: files that are members of samples, and further folders."""

    folders: list[bytes] = field(default_factory=list)
    """Their names."""
    problems: dict[bytes, str] = field(default_factory=dict)
    """What is wrong with a file, by its name."""
    twins: set[bytes] = field(default_factory=set)
    """Names that an archive holds more than once."""
    _numbers: array[int] = field(default_factory=lambda: array("q"))  # three of each file
    _names: bytearray = field(default_factory=bytearray)  # with a NUL after each, which no name holds

    def add(self, name: bytes, size: int, *, mtime_ns: int = 0, place: int = 0) -> None:
        """Add a file: its name has a key and an extension. ``place`` is where an archive holds it."""
        self._names += name + b"\0"
        self._numbers.extend((size, mtime_ns, place))

    @property
    def is_empty(self) -> bool:
        """Whether no file lies directly in it."""
        return not self._names

    def sorted(self) -> tuple[Names, Int64s]:
        """Return names of all files, in their order, and int64 [files, 3]: sizes, times and places of them.

        The folder is empty then. Of files with the same name, the first one is given, and the name is noted among
        ``twins``.
        """
        ends = np.flatnonzero(np.frombuffer(self._names, np.uint8) == 0)
        bounds = np.append(-1, ends)
        names = np.empty(len(ends), f"S{max(1, int(np.diff(bounds).max(initial=2)) - 1)}")
        for start in range(0, len(names), _CHUNK):
            stop = min(start + _CHUNK, len(names))
            names[start:stop] = bytes(self._names[bounds[start] + 1 : bounds[stop]]).split(b"\0")
        self._names = bytearray()
        order = np.argsort(names, kind="stable")
        names = names[order]
        again = np.flatnonzero(names[1:] == names[:-1]) + 1
        if len(again):
            self.twins.update(names[again].tolist())
            names, order = np.delete(names, again), np.delete(order, again)
        return names, np.frombuffer(self._numbers, np.int64).reshape(-1, 3)[order]


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
    places: Int64s
    """int64 [n]: where an archive holds each file; 0 for files of a folder."""
    extension_ids: npt.NDArray[np.int32]
    """int32 [n]: each file's place in ``extensions``."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    sample_files: Int64s
    """int64 [s + 1]: the first file of each sample, and ``n``."""
    odd: Int64s
    """int64: the files that may need more than a plain tar header, or would with ``.cls`` behind their names."""
    problems: Mapping[int, str]
    """What is wrong with a file, by its number: its sample cannot be packed."""
    digest: str
    """Of all paths, sizes and times."""
    key_rule: str = FIRST_DOT
    dots: npt.NDArray[np.int32] | None = None
    """int32 [n]: the place of the dot in each name that ends the key; by default the first."""

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
        return next(self.keys(np.array([sample])))

    def keys(self, samples: Int64s) -> Iterator[str]:
        """Yield the keys of some samples."""
        files = self.sample_files[samples]
        for file, run in zip(files.tolist(), self.runs(files).tolist(), strict=True):
            folder, name = self.folder(run), self.name(file)
            if self.dots is None:
                yield folder + name.partition(".")[0]
            else:
                yield escaped(folder + name[: self.dots[file]])

    def member_name(self, file: int) -> str:
        """Return the name of a file in the tar that it is packed into."""
        if self.dots is None:
            return self.path(file)
        return f"{self.key(int(self.samples_of(np.array(file))))}{self.name(file)[self.dots[file] :]}"

    def layouts(self, samples: Int64s | None = None, *, label: bool = False) -> dict[tuple[str, ...], int]:
        """Count some samples, or all, by their extensions, with the ``cls`` that a ``label`` becomes."""
        codes = np.random.default_rng(0).integers(1, 2**63, len(self.extensions), dtype=np.uint64)
        sums = np.add.reduceat(codes[self.extension_ids], self.sample_files[:-1]) if self.num_samples else codes[:0]
        numbers = np.arange(self.num_samples) if samples is None else samples
        _, first, counts = np.unique(sums[numbers], return_index=True, return_counts=True)
        found = zip(numbers[first].tolist(), counts.tolist(), strict=True)
        return {tuple(sorted({*self.extensions_of(one), *["cls"] * label})): count for one, count in found}

    def extensions_of(self, sample: int) -> tuple[str, ...]:
        """Return the extensions of a sample, in lower case and in order."""
        ids = self.extension_ids[slice(*self.sample_files[sample : sample + 2].tolist())]
        return tuple(sorted(self.extensions[number].lower() for number in ids.tolist()))

    def stored_sizes(self) -> Int64s:
        """int64 [samples]: bytes that each sample takes in a tar."""
        stored = self.sizes + BLOCK
        stored += -self.sizes % BLOCK
        for file in self.odd.tolist():
            if file not in self.problems:
                stored[file] = stored_size(self.member_name(file), int(self.sizes[file]))
        return np.add.reduceat(stored, self.sample_files[:-1]) if self.num_samples else stored

    def samples_of(self, files: Int64s) -> Int64s:
        """int64: the sample that each of some files is in."""
        return np.searchsorted(self.sample_files, files, side="right") - 1

    def repeats(self, kinds: Sequence[int]) -> list[tuple[int, int]]:
        """Return pairs of neighbouring files in one sample that are of one kind.

        ``kinds`` are those of ``extensions``, from 0; of -1, none is a pair.
        """
        of_files = np.array(kinds)[self.extension_ids]
        files = np.flatnonzero(of_files >= 0)
        groups = self.samples_of(files) * len(kinds) + of_files[files]
        order = np.argsort(groups, kind="stable")
        again = np.flatnonzero(groups[order[1:]] == groups[order[:-1]])
        return list(zip(files[order[again]].tolist(), files[order[again + 1]].tolist(), strict=True))


def cut(listing: Listing, rule: str) -> Listing:
    """Return a listing whose names are cut by another key rule than the first dot.

    Raises `ArgumentError` for a name in which the rule finds no key.
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
                raise ArgumentError(
                    f"key is {rule!r}, which finds no key in {listing.path(file)}: give another rule", argument="key"
                )
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
        places=listing.places[new],
        extension_ids=np.frombuffer(ids, np.int32),
        extensions=tuple(numbers),
        sample_files=np.frombuffer(starts, np.int64),
        odd=np.arange(len(listing.sizes)),  # escapes make names longer
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
        # What grows is the array in the end: lists of arrays would be held twice when they are joined.
        self._name_ends, self._starts, self._extension_ids = array("q", [0]), array("q"), array("i")
        self._sizes, self._places = bytearray(), bytearray()
        self._extensions: dict[bytes, int] = {}
        self._odd = array("q")
        self._problems: dict[int, str] = {}
        self._digest = hashlib.sha256()

    def add(self, part: _Part) -> None:
        """Add files of one folder: a sample is wholly in the part, its files in the order of their names."""
        path, names, numbers, problems = part
        base, last = self._folder_files[-1], None
        plain = PLAIN_NAME - len(path) - len(".cls") if path.isascii() else 0
        self._folder_bytes += path
        self._folder_ends.append(len(self._folder_bytes))
        self._folder_files.append(base + len(names))
        self._problems.update((base + number, what) for number, what in problems.items())
        self._digest.update(b"%d %s\n" % (len(names), path))
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK].tolist()
            self._digest.update(b"\n".join(chunk))
            for file, name in enumerate(chunk, base + start):
                key, _, extension = name.partition(b".")
                if key != last:
                    self._starts.append(file)
                    last = key
                self._extension_ids.append(self._extensions.setdefault(extension, len(self._extensions)))
                if len(name) > plain or not name.isascii():
                    self._odd.append(file)
                self._name_bytes += name
                self._name_ends.append(len(self._name_bytes))
        sizes, mtimes, places = (column.astype("<i8").tobytes() for column in numbers.T)
        self._digest.update(sizes)
        self._digest.update(mtimes)
        self._sizes += sizes
        self._places += places

    def finish(self) -> Listing:
        """Return the listing; the builder is of no use then."""
        self._digest.update(repr(sorted(self._problems.items())).encode("utf-8", "surrogatepass"))
        self._starts.append(self._folder_files[-1])
        sizes = np.frombuffer(self._sizes, np.int64)
        return Listing(
            folder_bytes=self._folder_bytes,
            folder_ends=np.array(self._folder_ends, np.int64),
            folder_files=np.array(self._folder_files, np.int64),
            name_bytes=self._name_bytes,
            name_ends=np.frombuffer(self._name_ends, np.int64),
            sizes=sizes,
            places=np.frombuffer(self._places, np.int64),
            extension_ids=np.frombuffer(self._extension_ids, np.int32),
            extensions=tuple(map(_text, self._extensions)),
            sample_files=np.frombuffer(self._starts, np.int64),
            odd=np.union1d(np.frombuffer(self._odd, np.int64), np.flatnonzero(sizes >= SIZE_LIMIT)),
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


class _Part(NamedTuple):
    """Files of one folder that no other folder stands between."""

    path: bytes
    names: Names
    numbers: Int64s
    """int64 [files, 3]: sizes, times and places."""
    problems: dict[int, str]
    """What is wrong with a file, by its place in ``names``."""


def _parts(path: bytes, folder: Folder) -> list[_Part | bytes]:
    """Cut the files of a folder where the paths of further folders stand between them, but never within a sample."""
    names, numbers = folder.sorted()
    cuts: list[tuple[int, bytes]] = []
    for name in sorted(folder.folders, key=lambda name: name + b"/"):
        cut = int(np.searchsorted(names, np.bytes_(name + b"/")))
        # Of `a.jpg`, `a.d/` and `a.txt`, the first and last are one sample, which the folder comes after.
        while 0 < cut < len(names) and _key(names[cut]) == _key(names[cut - 1]):
            cut += 1
        cuts.append((cut, name))
    twins = {
        name: f"{shown(path + name)} is there twice: leave its sample out with on_error='skip', or remove one"
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
            parts.append(_Part(path, names[run], numbers[run], wrong))
            start = stop
        if name:
            parts.append(path + name + b"/")
    return parts


def _key(name: bytes) -> bytes:
    return name.partition(b".")[0]


def _text(path: bytes | bytearray) -> str:
    return path.decode("utf-8", "surrogateescape")
