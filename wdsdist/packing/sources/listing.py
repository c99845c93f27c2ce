"""A listing: the files of a folder or an archive, grouped into samples by a key rule, as the index of a shard has them.

Folders come in the order of their paths, byte by byte, and the samples of a folder in the order of their keys. A file
takes some 50 bytes beside its name, so that ten million fit in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from wdsdist._util.array_types import Int64s, runs
from wdsdist.errors import ArgumentError, printable
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.tar import FIRST_DOT
from wdsdist.shards.tar.member_names import cutter, escaped, is_text
from wdsdist.shards.tar.reader import BLOCK
from wdsdist.shards.tar.writer import PLAIN_NAME, SIZE_LIMIT, stored_size

ListedSample = tuple[str, list[tuple[str, bytes | tuple[str, int, int]]]]
"""A key, and its members: the extension, and the path, size and position (0 in a folder) of the file, or the data."""


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path fit for a message: bytes that are not UTF-8, and control characters, are written as escapes."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))


@dataclass(slots=True)
class Folder:
    """The files that lie directly in one folder."""

    names: bytearray = field(default_factory=bytearray)
    """A NUL after each name, for no name holds one."""
    numbers: array[int] = field(default_factory=lambda: array("q"))
    """Three for each file: its size, its time, and its position."""
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong with a file, by its name."""

    def add(self, name: str, size: int, *, mtime_ns: int = 0, position: int = 0) -> None:
        """Add a file: its name has a key and an extension. ``position`` is where an archive holds it."""
        self.names += name.encode("utf-8", "surrogateescape") + b"\0"
        self.numbers.extend((size, mtime_ns, position))


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Files in the order of their samples."""

    index: ShardIndex
    """The samples, by their keys: paths from the outermost folder, with dots that are not escaped. The members are the
    files; their offsets are where an archive holds them, 0 for files of a folder."""
    num_outermost: int
    """Samples that lie directly in the outermost folder; they come first."""
    problems: Mapping[int, str]
    """Errors of samples that cannot be packed, by the sample's number: what is wrong with one of its files."""
    digest: str
    """A digest of all paths, sizes and times."""
    classes: tuple[str, ...] | None = None
    """The outermost folders, if the number of its folder is to be the ``cls`` of each sample."""

    def path(self, file: int) -> str:
        """Return a file's path from the outermost folder; bytes that are not UTF-8 are surrogates in it."""
        sample = int(np.searchsorted(self.index.sample_starts, file, side="right")) - 1
        extension = self.index.extensions[self.index.extension_ids[file]]
        return f"{self.index.key(sample)}.{extension}"

    def key(self, sample: int) -> str:
        """Return the sample key (``__key__``) that the shards will hold."""
        key = self.index.key(sample)
        return key if self.index.key_rule == FIRST_DOT else escaped(key)

    def members(self, samples: Int64s) -> Counter[str]:
        """Count how many of some samples have each member, by its extension in lower case."""
        members = count_members(self.index, runs(self.index.sample_starts, samples)[0])
        return members if self.classes is None else members + Counter(cls=len(samples))

    def stored_sizes(self) -> Int64s:
        """int64 [samples], one at least: bytes that each takes in a tar; not exact for a sample with a problem."""
        return tar_sizes(self.index, self.key, is_labelled=self.classes is not None)

    def of_samples(self, numbers: Int64s) -> Listing:
        """Return the listing of some samples, by their numbers: small, for the process that writes them."""
        return replace(self, index=self.index.of_samples(numbers), problems={})

    def __iter__(self) -> Iterator[ListedSample]:
        """Yield the samples; their keys must be valid Unicode."""
        index, classes = self.index, {name: b"%d" % number for number, name in enumerate(self.classes or ())}
        letters, starts = index.key_bytes.tobytes(), index.key_starts.tolist()
        names = [index.extensions[number] for number in index.extension_ids.tolist()]
        files = zip(names, index.sizes.tolist(), index.offsets.tolist(), strict=True)
        for start, stop, count in zip(starts, starts[1:], np.diff(index.sample_starts).tolist(), strict=False):
            key = letters[start:stop].decode()
            members: list[tuple[str, bytes | tuple[str, int, int]]] = [
                (extension, (f"{key}.{extension}", size, position))
                for extension, size, position in itertools.islice(files, count)
            ]
            if self.classes is not None:
                members.append(("cls", classes.get(key.partition("/")[0], b"")))
                members.sort(key=lambda member: member[0])
            yield key if index.key_rule == FIRST_DOT else escaped(key), members


def count_members(index: ShardIndex, members: Int64s | slice = slice(None)) -> Counter[str]:
    """Count members of an index, all or some by their numbers, by their extensions in lower case."""
    counted = Counter[str]()
    counts = np.bincount(index.extension_ids[members], minlength=len(index.extensions))
    for extension, count in zip(index.extensions, counts.tolist(), strict=True):
        counted[extension.lower()] += count
    return +counted


def tar_sizes(index: ShardIndex, key: Callable[[int], str], *, more: int = 0, is_labelled: bool = False) -> Int64s:
    """int64 [samples]: the bytes that samples of an index, one at least, take in a tar.

    Args:
        index: the samples.
        key: returns the key that a sample is packed with, by its number.
        more: bytes by which it may be longer than in the index, beside escapes.
        is_labelled: whether each sample gets a ``cls`` too.
    """
    stored, firsts = index.sizes + BLOCK + -index.sizes % BLOCK, index.sample_starts[:-1]
    names = (extension.encode() for extension in (*index.extensions, "cls"))
    longest = max(len(name) + (0 if name.isascii() else PLAIN_NAME) for name in names)
    widest = 1 if index.key_rule == FIRST_DOT else 3  # an escaped dot
    odd = np.diff(index.key_starts) * widest + more + 1 + longest > PLAIN_NAME
    odd |= np.maximum.reduceat(index.key_bytes, index.key_starts[:-1]) > 127
    odd |= np.maximum.reduceat(index.sizes, firsts) >= SIZE_LIMIT
    sizes = np.add.reduceat(stored, firsts) + 2 * BLOCK * is_labelled
    for sample in np.flatnonzero(odd).tolist():
        members = [(extension, size) for extension, _, size in index.members(sample)] + [("cls", 1)] * is_labelled
        with contextlib.suppress(ValueError):  # a name that no tar can hold is a problem of its sample
            sizes[sample] = sum(stored_size(f"{key(sample)}.{extension}", size) for extension, size in members)
    return sizes


def list_samples(folders: dict[str, Folder], root: str = "", rule: str = FIRST_DOT) -> Listing:
    """Return the samples of folders, given by their paths with a slash at their ends; the folders are taken out.

    Paths in the listing start from ``root``, one of the folders. If files have the same path, the first one stays, with
    a problem.

    Raises `ArgumentError` for a name in which the key rule finds no key.
    """
    num_outermost, extensions, problems = 0, dict[str, int](), dict[int, str]()
    # What grows is the array in the end: lists of arrays would be held twice when they are joined.
    letters, numbers = bytearray(), bytearray()
    key_starts, starts, extension_ids = array("q", [0]), array("q"), array("I")
    digest, cut = hashlib.sha256(rule.encode()), cutter(rule)
    for folder_path in sorted(path for path in folders if path.startswith(root)):
        folder, path = folders.pop(folder_path), folder_path[len(root) :]
        if not folder.names:
            continue
        joined, order = folder.names.decode("utf-8", "surrogateescape"), list[int]()
        names = joined.split("\0")[:-1]
        if not is_text(folder_path + joined):
            for wrong in [folder_path + name for name in names if not is_text(folder_path + name)]:
                problem = f"{shown(wrong)} has a name that is not UTF-8, which a tar asks for: rename it"
                folder.problems[wrong[len(folder_path) :]] = problem
        for number in sorted(range(len(names)), key=names.__getitem__):
            if order and names[order[-1]] == names[number]:
                folder.problems[names[number]] = f"{shown(path + names[number])} is there twice: remove one"
            else:
                order.append(number)
        if rule != FIRST_DOT:  # names in their order may be in another order than their keys
            order.sort(key=lambda number: names[number][: cut(names[number])])
        ordered = [names[number] for number in order]
        last = None
        for file, name in enumerate(ordered, len(extension_ids)):
            if (dot := cut(name)) <= 0:
                problem = f"key is {rule!r}, which finds no key in {shown(path + name)}"
                raise ArgumentError(f"{problem}: give another rule", argument="key")
            if (key := name[:dot]) != last:
                starts.append(file)
                letters += f"{path}{key}".encode("utf-8", "surrogateescape")
                key_starts.append(len(letters))
                last = key
            extension_ids.append(extensions.setdefault(name[dot + 1 :], len(extensions)))
            if name in folder.problems:
                problems[len(starts) - 1] = folder.problems[name]
        num_outermost = num_outermost if path else len(starts)
        own = np.frombuffer(folder.numbers, np.int64).reshape(-1, 3)[order].astype("<i8")
        numbers += own[:, ::2].tobytes()
        digest.update("\n".join((f"{len(order)} {path}", *ordered)).encode("utf-8", "surrogateescape"))
        digest.update(own.tobytes())
    digest.update(repr(sorted(problems.items())).encode("utf-8", "surrogatepass"))
    starts.append(len(extension_ids))
    sizes, offsets = np.frombuffer(numbers, "<i8").reshape(-1, 2).T
    index = ShardIndex(
        size=0,
        sha256="",
        extensions=tuple(extensions),
        sample_starts=np.frombuffer(starts, np.int64),
        offsets=offsets,
        sizes=sizes,
        extension_ids=np.frombuffer(extension_ids, np.uint32),
        key_starts=np.frombuffer(key_starts, np.int64),
        key_bytes=np.frombuffer(letters, np.uint8),
        key_rule=rule,
    )
    return Listing(index, num_outermost, problems, digest.hexdigest())
