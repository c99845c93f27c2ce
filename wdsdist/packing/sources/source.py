"""Sources of samples to pack, and what each was recognised as.

A source loads its contents when they are first asked for.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import shutil
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.files import TEMPORARY
from wdsdist._util.host import temporary_dir
from wdsdist._util.validation import counted
from wdsdist.errors import SourceError
from wdsdist.packing.members import LeftOut, Sample
from wdsdist.packing.sources.listing import shown

SCRATCH_NAME = "source"
"""What the names of temporary folders end with, as `_util.files.TEMPORARY` says."""

READERS_NOTES = frozenset(("__url__", "__local_path__", "__shard__", "__shardindex__", "__index__"))
"""What readers of WebDataset shards add to samples to say where they come from."""

_MOST_MEMBERS = 12  # that a summary shows


def key_digest(key: str) -> int:
    """Return 64 bits that tell keys apart, nearly always."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def repeated(digests: array[int]) -> list[tuple[int, int]]:
    """Return the items whose digest an earlier item has, in order, each behind the last such item.

    >>> repeated(array("Q", [7, 5, 7, 7]))
    [(0, 2), (2, 3)]
    """
    values = np.frombuffer(digests, np.uint64)
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    return sorted(zip(order[again].tolist(), order[again + 1].tolist(), strict=True), key=lambda pair: pair[1])


class Blocks(NamedTuple):
    """Runs of samples that are read together or not at all, such as the row groups of Parquet files."""

    cuts: Int64s
    """int64 [blocks + 1]: the first sample of each block, and the number of samples."""
    weights: Int64s
    """int64 [blocks]: bytes of memory that each block takes while its samples are read."""
    limit: int
    """Bytes of memory for the blocks that are read in turn."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Contents:
    """The samples of a source."""

    sizes: Int64s
    """int64 [samples]: bytes that each sample takes in a tar."""
    take: Callable[[Int64s], Iterable[Sample]] = field(repr=False)
    """Returns some of the samples, by their numbers: small, and picklable, for it travels to the process that writes
    them. It may hold credentials."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For ``index.json``, such as ``classes``; they name no path, so moving the source changes nothing."""
    left_out: tuple[LeftOut, ...] = ()
    """Samples that were listed but cannot be packed; they are not among the numbered ones."""
    blocks: Blocks | None = None
    """Runs of samples that are read together; ``None`` if any sample can be read by itself."""
    members: Mapping[str, int] = field(default_factory=dict)
    """How many samples have each member, by its extension in lower case."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further lines of the summary, each by its title."""
    stream: Iterator[Sample] | None = field(default=None, repr=False)
    """The samples of an iterable, which can be read once, in one order; they have no numbers and no sizes."""


@dataclass(frozen=True, eq=False)
class Source:
    """Samples that can be packed, numbered in an order that depends on the source's content alone.

    The contents are loaded when they are first asked for: a data set that was packed before is known by its digest.
    """

    kind: str
    """One word, such as ``"folder"`` or ``"idx"``."""
    location: str
    """Where it lies, for messages."""
    state: str
    """Names, sizes and times of its files, or whatever else changes with the source, or a digest of these."""
    load: Callable[[], Contents] = field(repr=False)
    """Called once. Temporary files may go with what it returns."""
    folders: frozenset[str] = frozenset()
    """Where the source's shards lie; the files that are read may be copies."""
    root: str = ""
    """The local folder whose files are listed: a destination there, or below it, would be listed by the next run."""

    @functools.cached_property
    def contents(self) -> Contents:
        return self.load()

    @property
    def digest(self) -> str:
        """The fingerprint of the source."""
        return hashlib.sha256(f"{self.kind}\0{self.state}".encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_stream(self) -> bool:
        """Whether the samples come once, in one order, and their number shows when they end."""
        return self.kind == "iterable"

    def __len__(self) -> int:
        return len(self.contents.sizes)

    def take(self, indices: Int64s) -> Iterable[Sample]:
        """Return some of the samples, by their numbers."""
        return self.contents.take(indices)


@dataclass(frozen=True, slots=True)
class Recognised:
    """What `wdsdist.pack` takes a source for, before it writes anything."""

    kind: str
    location: str
    samples: int | None
    """``None`` for an iterable, whose number of samples shows at its end."""
    lines: tuple[str, ...]
    """The summary: members, keys, classes, columns, and what is left out and why."""

    @classmethod
    def of(cls, source: Source) -> Recognised:
        """Summarise a source."""
        contents = source.contents
        notes, left_out, count = contents.notes, contents.left_out, None if source.is_stream else len(source)
        lines = [f"recognised: {source.kind}, {source.location}"]
        lines[0] += "" if count is None else f", {counted(count, 'sample')}"
        common = sorted(contents.members.items(), key=lambda item: (-item[1], item[0]))
        shown_members = [f"{extension} in {number:,}" for extension, number in common[:_MOST_MEMBERS]]
        if len(common) > _MOST_MEMBERS:
            shown_members.append(f"{len(common) - _MOST_MEMBERS:,} others")
        if shown_members:
            lines.append(f"members: {', '.join(shown_members)}")
        lines += [f"{name}: {what}" for name, what in contents.facts.items()]
        if classes := notes.get("classes"):
            lines.append(f"classes: {len(classes):,}, from {classes[0]} to {classes[-1]}, as cls members")
        if columns := notes.get("columns"):
            words = {"": "left out", "__key__": "gives the key"}
            members = (f"{name} {words.get(what, f'as {what}')}" for name, what in columns.items())
            lines.append(f"columns: {', '.join(members)}".replace("*", "its files are"))
        for field_name, kind in notes.get("arrays", {}).items():
            shape = " x ".join("any" if size is None else str(size) for size in kind["shape"])
            lines.append(f"array: {field_name}, {kind['dtype']} of shape {shape}")
        if rule := notes.get("source_key_rule"):
            lines.append(f"keys: by {rule}, with dots written as %2E")
        lines += [f"skipped: {number:,} x {what}" for what, number in notes.get("skipped", {}).items()]
        if renamed := notes.get("renamed_keys"):
            lines.append(f"renamed: {counted(renamed, 'key')} that an earlier shard has too, by a number, such as 01~2")
        if left_out:
            such = f"{left_out[0].key}: {left_out[0].reason}"
            lines.append(f"left out: {counted(len(left_out), 'sample')}, such as {such}")
        return cls(source.kind, source.location, count, tuple(lines))

    def __str__(self) -> str:
        return "\n".join(self.lines)


def deferred(kind: str, location: str, state: str, scratch: Path | None, make: Callable[[Path], Source]) -> Source:
    """Return a source behind one large temporary file.

    ``state`` identifies its content without that file, so a finished destination costs nothing. When the samples are
    first asked for, ``make`` makes the file and lists it, in a temporary folder that goes with the source or the
    process.
    """

    def load() -> Contents:
        folder = (scratch or temporary_dir()) / f"{TEMPORARY.format(secrets.token_hex(8))}{SCRATCH_NAME}"
        folder.mkdir(0o700, parents=True)
        try:
            contents = make(folder).contents
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        owner = os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # not in a child that was forked with the object
                shutil.rmtree(folder, ignore_errors=True)

        # Only a process that is killed leaves it; the next run into the same folder removes it.
        weakref.finalize(contents, remove)
        return contents

    return Source(kind, location, state, load)


class FileStamp(NamedTuple):
    """Size and time of the last change of a file when its source was listed."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileStamp:
        """Look a file up."""
        status = os.stat(path)  # noqa: PTH116 - a worker has the path as a string
        return cls(os.fspath(path), status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise `SourceError` if the file has changed since it was listed."""
        try:
            problem = "" if FileStamp.of(self.path) == self else "has changed since it was listed"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            raise SourceError(f"{self.path} {problem}: pack again once it stays as it is")


class Candidate(NamedTuple):
    """A local path that may be a source, before its kind is detected."""

    path: Path
    names: tuple[str, ...] | None
    """The names of the files and folders directly in the folder; ``None`` if the path is not a folder."""

    @classmethod
    def of(cls, given: object) -> Candidate | None:
        """Return the absolute path that a caller names; ``None`` for a URL, and for an object that is not a path."""
        location = storage.normalise(given) if isinstance(given, (str, os.PathLike)) else None
        if location is None or storage.is_remote(location):
            return None
        path = Path(location)
        try:
            return cls(path, tuple(os.listdir(path)) if path.is_dir() else None)  # noqa: PTH208 - names alone
        except OSError as error:
            raise SourceError(f"{shown(path)} cannot be listed ({error.strerror}): repair or move it") from error
