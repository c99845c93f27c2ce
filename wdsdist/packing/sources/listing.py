"""A listing: the files of a folder or an archive in arrays, grouped into samples by a key rule.

Folders come in the order of their paths, byte by byte, and the samples of a folder in the order of their keys. A file
takes some 30 bytes beside its name, so that ten million fit in memory.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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
        entry = os.fsencode(name) + b"\0"
        return self.names.startswith(entry) or b"\0" + entry in self.names

    def texts(self) -> Iterator[str]:
        """Yield the names as text."""
        return (os.fsdecode(match[0]) for match in _NAME.finditer(self.names))


def _kind(entry: os.DirEntry[bytes]) -> int:
    try:
        kind = FILE if entry.is_file() else FOLDER if entry.is_dir() else OTHER
    except OSError:
        return OTHER | LINK  # such as a link to itself; looking it up says what is wrong
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
    """The files that lie directly in one folder."""

    problems: dict[bytes, str] = field(default_factory=dict)
    """What is wrong with a file, by its name."""
    _numbers: array[int] = field(default_factory=lambda: array("q"))  # three of each file
    _names: bytearray = field(default_factory=bytearray)  # with a NUL after each, which no name holds

    def add(self, name: bytes, size: int, *, mtime_ns: int = 0, position: int = 0) -> None:
        """Add a file: its name has a key and an extension. ``position`` is where an archive holds it."""
        self._names += name + b"\0"
        self._numbers.extend((size, mtime_ns, position))

    @property
    def is_empty(self) -> bool:
        """Whether no file lies directly in it."""
        return not self._names

    def has_only(self, extensions: re.Pattern[bytes]) -> bool:
        """Return whether all its files have extensions that match a pattern."""
        return all(extensions.search(name) for name in self._names.split(b"\0")[:-1])

    def sorted(self, path: bytes) -> tuple[Names, Int64s]:
        """Return the sorted names of all files, and int64 [files, 3]: sizes, times and positions of them.

        The folder is empty then. If files have the same name, the first one stays, with a problem that names the
        ``path`` of the folder.
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
        for name in set(names[again].tolist()):
            advice = "leave its sample out with on_error='skip', or remove one"
            self.problems[name] = f"{shown(path + name)} is there twice: {advice}"
        names, order = np.delete(names, again), np.delete(order, again)
        return names, np.frombuffer(self._numbers, np.int64).reshape(-1, 3)[order]


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Files in the order of their samples; ``n`` files in ``s`` samples and ``f`` folders."""

    folder_bytes: bytearray
    """The paths of the folders, UTF-8, each with a slash at its end (the outermost one is empty), one after another."""
    folder_ends: Int64s
    """int64 [f + 1]: where each folder's path starts in ``folder_bytes``, and its end."""
    folder_files: Int64s
    """int64 [f + 1]: the first file of each folder, and ``n``."""
    name_bytes: bytearray
    """The names of the files within their folders, one after another."""
    name_ends: Int64s
    """int64 [n + 1]: where each name starts in ``name_bytes``, and its end."""
    sizes: Int64s
    """int64 [n]: bytes of each file."""
    positions: Int64s
    """int64 [n]: where an archive holds each file; 0 for files of a folder."""
    extension_ids: npt.NDArray[np.int32]
    """int32 [n]: each file's index in ``extensions``."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    sample_files: Int64s
    """int64 [s + 1]: the first file of each sample, and ``n``."""
    problems: Mapping[int, str]
    """What is wrong with a file, by its number: its sample cannot be packed."""
    digest: str
    """A digest of all paths, sizes and times."""
    key_rule: str = FIRST_DOT

    @property
    def num_samples(self) -> int:
        return len(self.sample_files) - 1

    def folder(self, number: int) -> str:
        """Return the path of a folder, with a slash at its end."""
        return _text(self.folder_bytes[self.folder_ends[number] : self.folder_ends[number + 1]])

    def folders_of(self, files: Int64s) -> Int64s:
        """int64: the number of the folder that each of some files is in."""
        return np.searchsorted(self.folder_files, files, side="right") - 1

    def name(self, file: int) -> str:
        """Return a file's name within its folder."""
        return _text(self.name_bytes[self.name_ends[file] : self.name_ends[file + 1]])

    def path(self, file: int) -> str:
        """Return a file's path from the outermost folder; bytes that are no UTF-8 are surrogates in it."""
        return self.folder(int(self.folders_of(np.array([file]))[0])) + self.name(file)

    def key(self, sample: int) -> str:
        """Return the key of a sample, as it stands in the shards."""
        return self.member_name(int(self.sample_files[sample]))[0]

    def member_name(self, file: int) -> tuple[str, str]:
        """Return the key and the extension of the member that a file becomes."""
        extension = self.extensions[self.extension_ids[file]]
        key = self.path(file)[: -len(extension) - 1]
        return key if self.key_rule == FIRST_DOT else escaped(key), extension

    def extensions_of(self, sample: int) -> tuple[str, ...]:
        """Return the extensions of a sample, in lower case and in order."""
        ids = self.extension_ids[slice(*self.sample_files[sample : sample + 2].tolist())]
        return tuple(sorted(self.extensions[number].lower() for number in ids.tolist()))

    def samples_of(self, files: Int64s) -> Int64s:
        """int64: the sample that each of some files is in."""
        return np.searchsorted(self.sample_files, files, side="right") - 1

    def stored_sizes(self, *, has_label: bool) -> Int64s:
        """int64 [samples]: bytes that each sample takes in a tar, with the ``cls`` that a label becomes.

        Samples with a problem have some size: their names may be no text.
        """
        if not self.num_samples:
            return np.empty(0, np.int64)
        stored = self.sizes + BLOCK
        stored += -self.sizes % BLOCK
        bad = set(self.samples_of(np.array(list(self.problems), np.int64)).tolist())
        odd = self._odd()
        for file, sample in zip(odd.tolist(), self.samples_of(odd).tolist(), strict=True):
            if sample not in bad:
                stored[file] = stored_size(".".join(self.member_name(file)), int(self.sizes[file]))
        samples = np.add.reduceat(stored, self.sample_files[:-1])
        if has_label:
            plain = 2 * BLOCK  # of a header and a number of a few digits
            samples += plain
            for sample in set(self.samples_of(odd).tolist()) - bad:
                samples[sample] += stored_size(f"{self.key(sample)}.cls", 1) - plain
        return samples

    def _odd(self) -> Int64s:
        """int64: the files that may need more than a plain tar header, or would with ``.cls`` behind their names."""
        if self.key_rule != FIRST_DOT:
            return np.arange(len(self.sizes))  # escapes make names longer
        counts = np.diff(self.folder_files)
        lengths = np.diff(self.name_ends) + np.repeat(np.diff(self.folder_ends), counts)
        folders = np.array([not self.folder(number).isascii() for number in range(len(counts))], np.bool_)
        odd = (lengths > PLAIN_NAME - len(".cls")) | (self.sizes >= SIZE_LIMIT) | np.repeat(folders, counts)
        odd |= np.maximum.reduceat(np.frombuffer(self.name_bytes, np.uint8), self.name_ends[:-1]) > 127
        return np.flatnonzero(odd)


def first_of_layouts(extension_ids: npt.NDArray[Any], sample_starts: Int64s) -> tuple[Int64s, Int64s]:
    """Return int64: the first sample of each set of extensions, and how many samples have it.

    Args:
        extension_ids: the extension of each member, as a number.
        sample_starts: int64 [samples + 1]: the first member of each sample, and the number of members.

    >>> first_of_layouts(np.array([0, 1, 1, 0, 0]), np.array([0, 2, 4, 5]))
    (array([0, 2]), array([2, 1]))
    """
    # The sum of random numbers stands for a set.
    codes = np.random.default_rng(0).integers(1, 2**63, int(extension_ids.max(initial=0)) + 1, dtype=np.uint64)
    sums = np.add.reduceat(codes[extension_ids], sample_starts[:-1]) if len(sample_starts) > 1 else codes[:0]
    _, first, counts = np.unique(sums, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order], counts[order]


class _ListingBuilder:
    """Fills a listing, folder by folder."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._find_dot = cutter(rule)
        self._folder_bytes = bytearray()
        self._folder_ends, self._folder_files = [0], [0]
        self._name_bytes = bytearray()
        # What grows is the array in the end: lists of arrays would be held twice when they are joined.
        self._name_ends, self._starts, self._extension_ids = array("q", [0]), array("q"), array("i")
        self._sizes, self._positions = bytearray(), bytearray()
        self._extensions: dict[bytes, int] = {}
        self._problems: dict[int, str] = {}
        self._digest = hashlib.sha256(rule.encode())

    def add(self, path: bytes, folder: Folder) -> None:
        """Add the files of one folder."""
        names, numbers = folder.sorted(path)
        base, last = self._folder_files[-1], None
        is_first_dot, problems = self._rule == FIRST_DOT, folder.problems
        if not is_first_dot:  # names in their order may be in another order than their keys
            keys = [self._key(path, name) for name in names.tolist()]
            order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
            names, numbers = names[order], numbers[order]
        self._folder_bytes += path
        self._folder_ends.append(len(self._folder_bytes))
        self._folder_files.append(base + len(names))
        self._digest.update(b"%d %s\n" % (len(names), path))
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK].tolist()
            self._digest.update(b"\n".join(chunk))
            for file, name in enumerate(chunk, base + start):
                key, _, extension = name.partition(b".")
                if not is_first_dot:
                    key = self._key(path, name)
                    extension = name[len(key) + 1 :]
                if key != last:
                    self._starts.append(file)
                    last = key
                self._extension_ids.append(self._extensions.setdefault(extension, len(self._extensions)))
                self._name_bytes += name
                self._name_ends.append(len(self._name_bytes))
                if problems and name in problems:
                    self._problems[file] = problems[name]
        sizes, mtimes, positions = (column.astype("<i8").tobytes() for column in numbers.T)
        self._digest.update(sizes)
        self._digest.update(mtimes)
        self._sizes += sizes
        self._positions += positions

    def _key(self, path: bytes, name: bytes) -> bytes:
        """Return the key in a name. Raises `ArgumentError` if the rule finds none."""
        text = _text(name)
        dot = self._find_dot(text)
        if dot <= 0:
            raise ArgumentError(
                f"key is {self._rule!r}, which finds no key in {shown(path + name)}: give another rule", argument="key"
            )
        return text[:dot].encode("utf-8", "surrogateescape")

    def finish(self) -> Listing:
        """Return the listing; the builder is of no use then."""
        self._digest.update(repr(sorted(self._problems.items())).encode("utf-8", "surrogatepass"))
        self._starts.append(self._folder_files[-1])
        return Listing(
            folder_bytes=self._folder_bytes,
            folder_ends=np.array(self._folder_ends, np.int64),
            folder_files=np.array(self._folder_files, np.int64),
            name_bytes=self._name_bytes,
            name_ends=np.frombuffer(self._name_ends, np.int64),
            sizes=np.frombuffer(self._sizes, np.int64),
            positions=np.frombuffer(self._positions, np.int64),
            extension_ids=np.frombuffer(self._extension_ids, np.int32),
            extensions=tuple(map(_text, self._extensions)),
            sample_files=np.frombuffer(self._starts, np.int64),
            problems=self._problems,
            digest=self._digest.hexdigest(),
            key_rule=self._rule,
        )


def list_samples(folders: dict[bytes, Folder], root: bytes = b"", rule: str = FIRST_DOT) -> Listing:
    """Return the samples of folders, given by their paths with a slash at their ends; the folders are taken out.

    Paths in the listing start from ``root``, one of the folders. Raises `ArgumentError` for a name in which the key
    rule finds no key.

    >>> folders = {b"": Folder(), b"a/": Folder()}
    >>> for folder in folders.values():
    ...     folder.add(b"2.jpg", 10)
    ...     folder.add(b"2.cls", 10)
    >>> listing = list_samples(folders)
    >>> [listing.key(sample) for sample in range(listing.num_samples)], listing.path(2)
    (['2', 'a/2'], 'a/2.cls')
    """
    builder = _ListingBuilder(rule)
    for path in sorted(path for path in folders if path.startswith(root)):
        folder = folders.pop(path)
        if not folder.is_empty:
            builder.add(path[len(root) :], folder)
    return builder.finish()


def _text(path: bytes | bytearray) -> str:
    return path.decode("utf-8", "surrogateescape")
