"""The files that the rows of a table may name: those below one folder, unless the user says otherwise.

A table is data, which others may have written: a row that names ``/home/me/.ssh/id_rsa``, ``../../secrets`` or a link
to them would put the file into the shards.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from wdsdist import storage
from wdsdist.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Root:
    """Where the paths in a table start, and whether they may lead out of there."""

    folder: str
    allow_outside: bool = False

    @classmethod
    def of(cls, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None, *, allow_outside: bool) -> Root:
        """Return the root of a table's paths: ``root=``, or the folder of the table.

        Raises `ArgumentError` for a root that is no local folder.
        """
        if root is None:
            return cls(os.fspath(folder), allow_outside)
        path = storage.normalise(root)
        if storage.is_remote(path) or not Path(path).is_dir():
            raise ArgumentError(
                f"root is {storage.shown(path)}, which is no local folder: name the folder that paths in the table "
                f"start from"
            )
        return cls(path, allow_outside)

    def finder(self) -> Finder:
        """Return what looks files up."""
        return Finder(self.folder, self.allow_outside)


@dataclass(slots=True)
class Finder:
    """Looks up the files that rows name. Folders are resolved once for each finder: rows share few of them."""

    root: str
    allow_outside: bool
    _real: dict[str, str] = field(default_factory=dict)

    def path(self, value: str) -> str | None:
        """Return where a file lies that a row names, or ``None`` for one outside the root.

        Links are followed to where they lead, in folders and files alike. What does not exist is inside where its path
        is.
        """
        path = os.path.join(self.root, value)  # noqa: PTH118 - a Path for each of millions of files is slow
        if self.allow_outside or lies_below(self._real_folder(self.root), self._real_path(path)):
            return path
        return None

    def _real_path(self, path: str) -> str:
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or _is_link(path):
            return os.path.realpath(path)
        return f"{self._real_folder(folder)}/{name}"

    def _real_folder(self, folder: str) -> str:
        if folder not in self._real:
            self._real[folder] = os.path.realpath(folder)
        return self._real[folder]


def lies_below(folder: str, path: str) -> bool:
    """Say whether a path lies below a folder; both are absolute and free of links and ``..``.

    >>> lies_below("/data/train", "/data/train/cat/1.jpg"), lies_below("/data/train", "/data/training/1.jpg")
    (True, False)
    >>> lies_below("/", "/etc/passwd")
    True
    """
    return path.startswith(f"{folder.rstrip('/')}/")


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False  # what is not there is an error when it is looked up
