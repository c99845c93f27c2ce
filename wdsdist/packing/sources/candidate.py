"""Candidates: what was given as a source, and the options and kinds that decide what is made of it.

A folder is read once, into few bytes, so that no kind of source reads it again.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist._util.validation import check_flag, check_path
from wdsdist.errors import ArgumentError, ArgumentTypeError, SourceError, printable
from wdsdist.packing.sources.source import OnError, Source, Stream
from wdsdist.shards.index import Tolerance
from wdsdist.shards.tar import AUTO, check_rule

FOLDER, FILE, OTHER = b"dfo"
LINK = 0x80
"""Is added to the type of what a link leads to; a link to nothing is `LINK` and `OTHER`."""

CLUTTER_FOLDERS = frozenset(("__MACOSX", "$RECYCLE.BIN", "System Volume Information", "@eaDir", "lost+found"))
"""Folders that systems and archivers make for themselves."""

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
        """Say whether the folder has an entry of a name."""
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


Encode = Callable[..., Mapping[str, Any]]
"""From an item, or an item and its number, to a sample dict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the caller says about a source, as `wdsdist.pack` has it; ``None`` leaves it to what it looks like."""

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
                kind = ArgumentError if is_name else ArgumentTypeError
                raise kind(f"split is {self.split!r}: it must be the name of a folder directly in the source")

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
    """What was given as a source, while the kinds are asked whether they know it; a folder is read only once."""

    given: object

    @functools.cached_property
    def path(self) -> Path | None:
        """The absolute path that it is, or ``None`` for a URL and for what is no path at all.

        >>> Candidate("/data/train/").path, Candidate("s3://bucket/train").path, Candidate([1, 2]).path
        (PosixPath('/data/train'), None, None)
        """
        if not isinstance(self.given, (str, os.PathLike)):
            return None
        location = storage.normalise(self.given)
        return None if storage.is_remote(location) else Path(location)

    @functools.cached_property
    def entries(self) -> FolderEntries | None:
        """What lies directly in the folder, or ``None`` for what is no folder that can be read."""
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
