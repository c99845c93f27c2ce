"""Sources of samples to pack, numbered ones or streams; what was given as one, and the options and kinds that decide.

The contents of numbered ones are loaded when they are asked for. A folder is read once, into few bytes, so that no kind
of source reads it again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_flag, check_path
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.payloads import Sample
from wdsdist.packing.sources.listing import FolderEntries, shown
from wdsdist.shards.index import Tolerance
from wdsdist.shards.tar import AUTO, check_rule, is_text, split_name

SCRATCH_SUFFIX = "-source"
"""What the names of temporary folders end with; they start with ``.tmp-``."""

READERS_NOTES = frozenset(("__url__", "__local_path__", "__shard__", "__shardindex__", "__index__"))
"""What readers of WebDataset shards add to samples to say where they come from."""

OnError = Literal["raise", "skip"]
"""What becomes of a sample that cannot be packed: an error, or it is left out and reported."""

Encode = Callable[..., Mapping[str, Any]]
"""From an item, or an item and its number, to a sample dict."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A sample that is not packed, for ``on_error="skip"`` was asked for."""

    key: str
    reason: str
    """It names no place outside the source, so that moving the source changes nothing."""


def wrong_key(key: Any) -> str | None:
    """Say why something can be no key; any other becomes the path of files when the tar is unpacked."""
    if not isinstance(key, str):
        return f"a key is a str, not a {type(key).__name__}"
    parts = key.removeprefix("./").split("/")
    if not key or "" in parts:
        return "a key must not be empty, start or end with a slash, or hold two in a row"
    if ".." in parts or "." in parts:
        return "a key must not lead out of its folder"
    if "." in parts[-1]:
        return "a key must not have a dot in its last part: readers would cut it there"
    if "\n" in key or "\0" in key:
        return "a key must not hold a line break or a NUL"
    if not is_text(key):
        return "a key must be valid Unicode"
    if split_name(f"{key}.x") is None:
        return "a part of a key must not be named like __this__: readers pass it over"
    return None


def key_digest(key: str) -> int:
    """Return 64 bits that tell keys apart, nearly always."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class Blocks(NamedTuple):
    """Runs of samples that are read together or not at all, such as the row groups of Parquet files."""

    cuts: Int64s
    """int64 [blocks + 1]: where each starts, and the end."""
    weights: Int64s
    """int64 [blocks]: bytes of memory that each takes while its samples are read."""
    limit: int
    """Bytes of memory that there are for those that are read in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The samples of a source, once they are asked for."""

    sizes: Int64s
    """int64 [samples]: bytes that each sample takes in a tar."""
    take: Callable[[Int64s], Iterable[Sample]] = field(repr=False)
    """Returns some of the samples, by their numbers: small, and picklable, for it travels to the process that writes
    them. It may hold credentials."""
    has_exact_sizes: bool = True
    """Whether sizes are known, or else estimated: the same each time, but known only when written."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For ``index.json``, such as ``classes``; they name no place, so moving the source changes nothing."""
    left_out: tuple[LeftOut, ...] = ()
    """Samples that were listed but cannot be packed; they are not among the numbered ones."""
    blocks: Blocks | None = None
    """Runs of samples that have to be read together; most sources have none, for any sample of theirs is at hand."""
    origins: Callable[[], Iterator[tuple[str, str]]] | None = None
    """Yields the shard that each sample comes from, as its ``index.json`` names it, and its key there; an empty text
    for the shard where it is of none. ``None`` where only making samples shows their keys."""
    of_files: bool = False
    """Whether samples are local files, which any thread can read at any time."""

    def only(self, kept: Int64s) -> Contents:
        """Return some of the samples, given by their numbers, which rise."""
        blocks = self.blocks and self.blocks._replace(cuts=np.searchsorted(kept, self.blocks.cuts))
        every, count = self.origins, len(self.sizes)
        return replace(
            self,
            sizes=self.sizes[kept],
            take=lambda indices: self.take(kept[indices]),
            blocks=blocks,
            origins=None if every is None else lambda: itertools.compress(every(), np.isin(np.arange(count), kept)),
        )


@dataclass(frozen=True, eq=False)
class Source:
    """Samples that can be packed, numbered in an order that depends on the source's content alone.

    What they are is loaded when it is first asked for: a data set that was packed already is known by its digest.
    """

    kind: str
    """One word, such as ``"folder"`` or ``"idx"``."""
    location: str
    """Where it lies, for messages."""
    digest: str
    """Of names, sizes and times of all files, or of what else is known of it: another one means that it has changed."""
    load: Callable[[Source], Contents] = field(repr=False)
    """Called once, with this source, which temporary files may go with."""
    folders: frozenset[str] = frozenset()
    """Where the shards lie that it is made of; the files that are read may be copies."""

    @functools.cached_property
    def contents(self) -> Contents:
        return self.load(self)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        return self.contents.left_out

    @property
    def notes(self) -> Mapping[str, Any]:
        return self.contents.notes

    def __len__(self) -> int:
        return len(self.contents.sizes)

    def take(self, indices: Int64s) -> Iterable[Sample]:
        """Return some of the samples, by their numbers."""
        return self.contents.take(indices)


@dataclass(frozen=True, eq=False)
class Stream:
    """Samples that can be had once and in one order only; how many, shows when they end."""

    kind: str
    location: str
    """Its name, for messages."""
    digest: str
    """Hash of the stream's first samples, by which a resumed pack recognises that its source is the same."""
    samples: Iterator[Sample] = field(repr=False)
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For ``index.json``, once the samples have ended."""
    left_out: tuple[LeftOut, ...] = ()


def deferred(kind: str, location: str, state: str, scratch: Path | None, make: Callable[[Path], Source]) -> Source:
    """Return a source behind one large temporary file.

    ``state`` tells its content from another without that file, so a finished destination costs nothing. When the
    samples are first asked for, ``make`` makes the file and lists it, in a temporary folder that goes with the source
    or the process.
    """

    def load(owner: Source) -> Contents:
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".tmp-", suffix=SCRATCH_SUFFIX, dir=scratch))
        # Only a process that is killed leaves it; the next run into the same place removes it.
        remove = weakref.finalize(owner, _remove, folder, os.getpid())
        try:
            return make(folder).contents
        except BaseException:
            remove()
            raise

    return Source(kind, location, hashlib.sha256(f"{kind}\0{state}".encode()).hexdigest(), load)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked with the object
        shutil.rmtree(folder, ignore_errors=True)


class FileStamp(NamedTuple):
    """Size and time of the last change of a file when its source was listed."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileStamp:
        """Look a file up."""
        status = os.stat(path)  # noqa: PTH116 - a worker has the path as text
        return cls(os.fspath(path), status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise `SourceError` where the file is not what it was."""
        try:
            if FileStamp.of(self.path) == self:
                return
        except FileNotFoundError as error:
            raise SourceError(f"{self.path} has vanished since it was listed: pack again once it is back") from error
        except OSError as error:
            raise SourceError(f"{self.path} cannot be read: {error.strerror}") from error
        raise SourceError(f"{self.path} has changed since it was listed: pack again once it is at rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a source, as `wdsdist.pack` takes them; with ``None`` an option is detected from the source."""

    kind: str | None = None
    key: str = AUTO
    class_folders: bool | None = None
    classes: tuple[str, ...] | None = None
    """The classes that folders may be, in the order of their numbers; by default, the folders that there are."""
    split: str | None = None
    columns: Mapping[str, str] | None = None
    root: str | os.PathLike[str] | None = None
    allow_outside: bool = False
    encode: Encode | str | None = None
    on_error: OnError = "raise"
    tolerance: Tolerance | None = None
    """Tolerance for damaged WebDataset shards: what ``on_error="skip"`` keeps of them; by default nothing."""
    scratch: Path | None = None
    """Where a source may keep a large temporary file while it is packed; by default, the system's temporary folder."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Kept out of every message, for they may hold credentials."""
    allow_elsewhere: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ArgumentError(f'on_error is {self.on_error!r}: it must be "raise" or "skip"')
        check_rule(self.key)
        for name in ("allow_outside", "allow_elsewhere"):
            check_flag(name, getattr(self, name))
        if self.class_folders is not None:
            check_flag("class_folders", self.class_folders)
        if self.root is not None:
            check_path("root", self.root)
        if self.split is not None:
            is_name = isinstance(self.split, (str, os.PathLike))
            if not is_name or str(self.split) in ("", ".", "..") or "/" in str(self.split):
                raise ArgumentError(f"split is {self.split!r}: it must be the name of a folder directly in the source")

    def state(self) -> str:
        """Return the fingerprint of the options that group files into samples; by default that of older versions."""
        more = (self.key, self.classes, self.split)
        return str(self.class_folders) + (f"\0{more}" if more != (AUTO, None, None) else "")

    def given(self) -> list[str]:
        """Return the names of the options that are for sources of some kinds only and ask for something."""
        names = ("class_folders", "classes", "split", "columns", "root", "allow_outside", "encode", "tolerance")
        return [*(["key"] if self.key != AUTO else []), *(name for name in names if getattr(self, name))]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A source whose kind is to be detected, as the user gave it; a folder is listed only once."""

    given: object

    @functools.cached_property
    def path(self) -> Path | None:
        """The absolute local path of the source; ``None`` for a URL, and for an object that is no path.

        >>> Candidate("/data/train/").path, Candidate("s3://bucket/train").path, Candidate([1, 2]).path
        (PosixPath('/data/train'), None, None)
        """
        if not isinstance(self.given, (str, os.PathLike)):
            return None
        location = storage.normalise(self.given)
        return None if storage.is_remote(location) else Path(location)

    @functools.cached_property
    def entries(self) -> FolderEntries | None:
        """The directory entries of the source folder, without subfolders; ``None`` where the source is no folder."""
        if self.path is None or not self.path.is_dir():
            return None
        try:
            return FolderEntries.of(os.fsencode(self.path))
        except OSError as error:
            raise SourceError(
                f"{shown(self.path)} cannot be listed ({error.strerror}): mend it or move it away"
            ) from error


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of source."""

    name: str
    """As in ``kind=`` and ``--from``."""
    description: str
    """Which sources are of this kind, for messages: ``"a folder of files"``."""
    find: Callable[[Candidate, SourceOptions], Source | Stream | None]
    """Detects and lists a source of this kind; returns ``None`` for another kind, or where nothing exists.

    Where ``options.kind`` is set, it is this kind: then a name or a content that proves nothing is no reason for
    ``None``.
    """
    options: frozenset[str] = frozenset()
    """The fields of `SourceOptions` that it heeds; the others are refused."""
