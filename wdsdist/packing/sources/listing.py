"""A listing: the files of a folder or an archive in arrays, grouped into samples by a key rule.

Folders come in the order of their paths, byte by byte, and the samples of a folder in the order of their keys. A file
takes some 50 bytes beside its name, so that ten million fit in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, printable
from wdsdist.shards.tar import FIRST_DOT
from wdsdist.shards.tar.member_names import cutter, escaped
from wdsdist.shards.tar.reader import BLOCK
from wdsdist.shards.tar.writer import PLAIN_NAME, SIZE_LIMIT, stored_size

_PLAIN_PATH = PLAIN_NAME - len(".cls")
"""Bytes of a path whose sample needs plain tar headers only, also with a ``cls`` member."""

ListedSample = tuple[str, list[tuple[str, bytes | tuple[str, int, int]]]]
"""A key, and its members: the extension, and the path, size and position (0 in a folder) of the file, or the data."""


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path fit for a message: bytes that are not UTF-8, and control characters, are written as escapes."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


def decoded(path: bytes | bytearray) -> str:
    """Return a path as a string; bytes that are not UTF-8 are surrogates in it."""
    return path.decode("utf-8", "surrogateescape")


@dataclass(slots=True)
class Folder:
    """The files that lie directly in one folder."""

    names: bytearray = field(default_factory=bytearray)
    """A NUL after each name, for no name holds one."""
    numbers: array[int] = field(default_factory=lambda: array("q"))
    """Three for each file: its size, its time, and its position."""
    problems: dict[bytes, str] = field(default_factory=dict)
    """What is wrong with a file, by its name."""

    def add(self, name: bytes, size: int, *, mtime_ns: int = 0, position: int = 0) -> None:
        """Add a file: its name has a key and an extension. ``position`` is where an archive holds it."""
        self.names += name + b"\0"
        self.numbers.extend((size, mtime_ns, position))


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Files in the order of their samples; ``n`` files in ``s`` samples and ``f`` folders."""

    folders: list[str]
    """The paths of the ``f`` folders, each with a slash at its end; the outermost one is empty."""
    folder_files: Int64s
    """int64 [f + 1]: the first file of each folder, and ``n``."""
    name_bytes: bytearray
    """The names of the files within their folders, one after another."""
    name_ends: Int64s
    """int64 [n + 1]: where each name starts in ``name_bytes``, and its end."""
    numbers: Int64s
    """int64 [n, 2]: the size of each file, and where an archive holds it; 0 for files of a folder."""
    extension_ids: npt.NDArray[np.int32]
    """int32 [n]: each file's index in ``extensions``."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    sample_files: Int64s
    """int64 [s + 1]: the first file of each sample, and ``n``."""
    odd: Int64s
    """int64: the files that may need more than a plain tar header."""
    problems: Mapping[int, str]
    """What is wrong with a file, by its number: its sample cannot be packed."""
    digest: str
    """A digest of all paths, sizes and times."""
    key_rule: str = FIRST_DOT
    classes: tuple[str, ...] | None = None
    """The outermost folders, if the number of its folder is to be the ``cls`` of each sample."""

    @property
    def num_samples(self) -> int:
        return len(self.sample_files) - 1

    @property
    def sizes(self) -> Int64s:
        """int64 [n]: bytes of each file."""
        return self.numbers[:, 0]

    def folders_of(self, files: Int64s) -> Int64s:
        """int64: the number of the folder that each of some files is in."""
        return np.searchsorted(self.folder_files, files, side="right") - 1

    def samples_of(self, files: Int64s) -> Int64s:
        """int64: the sample that each of some files is in."""
        return np.searchsorted(self.sample_files, files, side="right") - 1

    def path(self, file: int) -> str:
        """Return a file's path from the outermost folder; bytes that are not UTF-8 are surrogates in it."""
        name = self.name_bytes[self.name_ends[file] : self.name_ends[file + 1]]
        return self.folders[int(self.folders_of(np.array([file]))[0])] + decoded(name)

    def key(self, sample: int) -> str:
        """Return the sample key (``__key__``) that the shards will hold."""
        file = int(self.sample_files[sample])
        key = self.path(file)[: -len(self.extensions[self.extension_ids[file]]) - 1]
        return key if self.key_rule == FIRST_DOT else escaped(key)

    def members(self, samples: Int64s) -> Counter[str]:
        """Count how many of some samples have each member, by its extension in lower case."""
        is_chosen = np.zeros(self.num_samples, np.bool_)
        is_chosen[samples] = True
        ids = self.extension_ids[np.repeat(is_chosen, np.diff(self.sample_files))]
        members = Counter[str]() if self.classes is None else Counter(cls=len(samples))
        for extension, count in zip(self.extensions, np.bincount(ids, minlength=len(self.extensions)), strict=True):
            members[extension.lower()] += int(count)
        return +members

    def stored_sizes(self) -> Int64s:
        """int64 [samples], one at least: bytes that each takes in a tar; not exact for a sample with a problem."""
        sizes = np.add.reduceat(self.sizes + BLOCK + -self.sizes % BLOCK, self.sample_files[:-1])
        sizes += 0 if self.classes is None else 2 * BLOCK
        odd = np.setdiff1d(self.samples_of(self.odd), self.samples_of(np.array(list(self.problems), np.int64)))
        for sample, (key, members) in zip(odd.tolist(), self.samples(odd), strict=True):
            lengths = ((name, len(file) if isinstance(file, bytes) else file[1]) for name, file in members)
            sizes[sample] = sum(stored_size(f"{key}.{extension}", size) for extension, size in lengths)
        return sizes

    def samples(self, numbers: Int64s) -> list[ListedSample]:
        """Return some samples, by their numbers, for the process that writes them."""
        firsts, stops = self.sample_files[numbers], self.sample_files[numbers + 1]
        counts, folders = stops - firsts, self.folders_of(firsts).tolist()
        files = np.repeat(stops - np.cumsum(counts), counts) + np.arange(int(counts.sum()))
        bounds = self.name_ends[files].tolist(), self.name_ends[files + 1].tolist()
        rows = zip(*bounds, self.extension_ids[files].tolist(), self.numbers[files].tolist(), strict=True)
        labels = {name: b"%d" % number for number, name in enumerate(self.classes or ())}
        samples: list[ListedSample] = []
        for number, count in zip(folders, counts.tolist(), strict=True):
            folder = self.folders[number]
            members: list[tuple[str, bytes | tuple[str, int, int]]] = []
            for start, stop, extension_id, (size, position) in itertools.islice(rows, count):
                path, extension = folder + self.name_bytes[start:stop].decode(), self.extensions[extension_id]
                members.append((extension, (path, size, position)))
            key = path[: -len(extension) - 1]
            if self.classes is not None:
                members.append(("cls", labels[folder.partition("/")[0]]))
                members.sort(key=lambda member: member[0])
            samples.append((key if self.key_rule == FIRST_DOT else escaped(key), members))
        return samples


def list_samples(folders: dict[bytes, Folder], root: bytes = b"", rule: str = FIRST_DOT) -> Listing:
    """Return the samples of folders, given by their paths with a slash at their ends; the folders are taken out.

    Paths in the listing start from ``root``, one of the folders. If files have the same path, the first one stays, with
    a problem.

    Raises `ArgumentError` for a name in which the key rule finds no key.
    """
    paths, folder_files, extensions, problems = list[str](), [0], dict[bytes, int](), dict[int, str]()
    # What grows is the array in the end: lists of arrays would be held twice when they are joined.
    name_bytes, numbers = bytearray(), bytearray()
    name_ends, starts, extension_ids, odd = array("q", [0]), array("q"), array("i"), array("q")
    digest, is_first_dot, cut = hashlib.sha256(rule.encode()), rule == FIRST_DOT, cutter(rule)
    for folder_path in sorted(path for path in folders if path.startswith(root)):
        folder, path = folders.pop(folder_path), folder_path[len(root) :]
        if not folder.names:
            continue
        names, order = bytes(folder.names).split(b"\0")[:-1], list[int]()
        for number in sorted(range(len(names)), key=names.__getitem__):
            if order and names[order[-1]] == names[number]:
                folder.problems[names[number]] = f"{shown(path + names[number])} is there twice: remove one"
            else:
                order.append(number)
        keys: dict[bytes, bytes] = {}
        for name in [] if is_first_dot else [names[number] for number in order]:
            if (dot := cut(decoded(name))) <= 0:
                raise ArgumentError(
                    f"key is {rule!r}, which finds no key in {shown(path + name)}: give another rule", argument="key"
                )
            keys[name] = decoded(name)[:dot].encode("utf-8", "surrogateescape")
        if keys:  # names in their order may be in another order than their keys
            order.sort(key=lambda number: keys[names[number]])
        ordered = [names[number] for number in order]
        room, last = _PLAIN_PATH - len(path) if is_first_dot and path.isascii() else -1, None
        for file, name in enumerate(ordered, folder_files[-1]):
            key = keys[name] if keys else name.partition(b".")[0]
            if key != last:
                starts.append(file)
                last = key
            extension_ids.append(extensions.setdefault(name[len(key) + 1 :], len(extensions)))
            name_bytes += name
            name_ends.append(len(name_bytes))
            if len(name) > room or not name.isascii():
                odd.append(file)
            if name in folder.problems:
                problems[file] = folder.problems[name]
        paths.append(decoded(path))
        folder_files.append(folder_files[-1] + len(order))
        own = np.frombuffer(folder.numbers, np.int64).reshape(-1, 3)[order].astype("<i8")
        numbers += own[:, ::2].tobytes()
        for part in (b"%d %s\n" % (len(order), path), b"\n".join(ordered), own.tobytes()):
            digest.update(part)
    digest.update(repr(sorted(problems.items())).encode("utf-8", "surrogatepass"))
    starts.append(folder_files[-1])
    table = np.frombuffer(numbers, "<i8").reshape(-1, 2)
    return Listing(
        folders=paths,
        folder_files=np.array(folder_files, np.int64),
        name_bytes=name_bytes,
        name_ends=np.frombuffer(name_ends, np.int64),
        numbers=table,
        extension_ids=np.frombuffer(extension_ids, np.int32),
        extensions=tuple(map(decoded, extensions)),
        sample_files=np.frombuffer(starts, np.int64),
        odd=np.union1d(np.frombuffer(odd, np.int64), np.flatnonzero(table[:, 0] >= SIZE_LIMIT)),
        problems=problems,
        digest=digest.hexdigest(),
        key_rule=rule,
    )
