"""The files that the rows of a table may name: those below one folder, unless the user says otherwise.

A table is data, which others may have written: a row that names ``/home/me/.ssh/id_rsa``, ``../../secrets`` or a link
to them would put the file into the shards.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from wdsdist import storage
from wdsdist.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Finder:
    """Looks up the files that rows name. Folders are resolved once for each finder: rows share few of them."""

    root: str
    """Where paths start."""
    allow_outside: bool = False
    """Whether they may lead out of there."""
    _real: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None, *, allow_outside: bool) -> Finder:
        """Return the finder of a table's paths, which start from ``root=``, or else from the folder of the table.

        Raises `ArgumentError` for a root that is no local folder.
        """
        path = os.fspath(folder) if root is None else storage.normalise(root)
        if root is not None and (storage.is_remote(path) or not Path(path).is_dir()):
            raise ArgumentError(
                f"root is {storage.shown(path)}, which is no local folder: name the folder that paths in the table "
                f"start from"
            )
        return cls(path, allow_outside)

    def anew(self) -> Finder:
        """Return one that has resolved no folder yet: small, for it travels with each shard."""
        return Finder(self.root, self.allow_outside)

    def path(self, value: str) -> str | None:
        """Return where a file lies that a row names, or ``None`` for one outside the root.

        Links are followed to where they lead, in folders and files alike. What does not exist is inside where its path
        is.
        """
        path = os.path.join(self.root, value)  # noqa: PTH118 - a Path for each of millions of files is slow
        if self.allow_outside or self._real_path(path).startswith(self._real_folder(self.root)):
            return path
        return None

    def _real_path(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        if name in ("", ".", "..") or os.path.islink(path):  # noqa: PTH114 - as above
            return os.path.realpath(path)
        return self._real_folder(folder) + name

    def _real_folder(self, folder: str) -> str:
        """Return a folder without links, with a slash at its end."""
        found = self._real.get(folder)
        if found is None:
            found = self._real[folder] = os.path.join(os.path.realpath(folder or "/"), "")  # noqa: PTH118
        return found


def lies_below(folder: str, path: str) -> bool:
    """Say whether a path lies below a folder; both are absolute and free of links and ``..``.

    >>> lies_below("/data/train", "/data/train/cat/1.jpg"), lies_below("/data/train", "/data/training/1.jpg")
    (True, False)
    >>> lies_below("/", "/etc/passwd")
    True
    """
    return path.startswith(f"{folder.rstrip('/')}/")
