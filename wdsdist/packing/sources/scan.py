"""One reading of a folder: names and types of its entries, in few bytes, so that no kind of source reads it again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from wdsdist.errors import printable

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

    def texts(self) -> Iterator[str]:
        """Yield the names as text."""
        return (os.fsdecode(match[0]) for match in _NAME.finditer(self.names))


def _kind(entry: os.DirEntry[bytes]) -> int:
    try:
        kind = FILE if entry.is_file() else FOLDER if entry.is_dir() else OTHER
    except OSError:  # a link to itself, or into a folder that may not be entered
        kind = OTHER
    return kind | LINK if entry.is_symlink() else kind


def is_passed_over(folder: bytes) -> bool:
    """Return whether a folder is hidden, or one that systems and archivers make for themselves.

    >>> is_passed_over(b".ipynb_checkpoints"), is_passed_over(b"__MACOSX"), is_passed_over(b"cat")
    (True, True, False)
    """
    return folder[:1] == b"." or os.fsdecode(folder) in CLUTTER_FOLDERS


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path fit for a message: bytes that are no text, and control characters, are written as escapes."""
    return printable(os.fsencode(path).decode("utf-8", "backslashreplace"))
