"""What all archives have in common: their files as a tree of folders, and the samples in it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.base import LeftOut, OnError, Samples
from wdsdist.packing.sources.grouping import Folder, list_samples, shown
from wdsdist.packing.sources.kinds import SourceOptions
from wdsdist.packing.sources.listed import Listed, OfListing, Taken, packable
from wdsdist.shards.tar import is_text, split_name

_MOST_BYTES = 2**60  # so that sizes can be added up

Stamp = tuple[int, int]
"""Size and time of the last change of an archive, when it was listed."""


def stamp(path: Path | str) -> Stamp:
    """Return what tells one state of a file from another."""
    status = os.stat(path)  # noqa: PTH116 - a worker has the path as text
    return status.st_size, status.st_mtime_ns


def check_stamp(path: str, expected: Stamp) -> None:
    """Raise `SourceError` for an archive that is no longer as it was when it was listed."""
    try:
        found = stamp(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    if found != expected:
        raise SourceError(f"{path} has changed since it was listed: pack again once it is at rest")


@dataclass(frozen=True, slots=True, eq=False)
class ArchiveSource(OfListing):
    """The samples of an archive, in the order of their first files' paths."""

    kind: str
    location: str
    listed: Listed
    state: Stamp
    samples: Callable[[Taken], Samples]
    """Gives the parts of a listing their data."""

    def fingerprint(self) -> str:
        return self.listed.fingerprint(f"{self.kind}\0{self.state}")

    def take(self, indices: Int64s) -> Samples:
        return self.samples(self.listed.take(indices))


class Tree:
    """The files of an archive or a store, by folder. Hidden ones are counted and passed over, as in a folder.

    Names are only ever text: nothing is made under them. ``./`` and leading slashes are left out of them, as ``tar``
    and ``unzip`` do.
    """

    def __init__(self, label: str, on_error: OnError, *, keep_root: bool = False) -> None:
        self.keep_root = keep_root  # a folder that the user named, rather than one that an archiver put around
        self.label = label
        self.on_error = on_error
        self.skipped: Counter[str] = Counter()
        self.left_out: list[LeftOut] = []
        self._folders: dict[bytes, Folder] = {b"": Folder()}  # by path, with a slash at its end
        self._filled: set[bytes] = set()  # folders that hold a file, however deep

    def add(self, name: str, size: int, place: int, problem: str = "") -> None:
        """Add a file; ``problem`` is why its sample cannot be packed, if it cannot.

        Raises `SourceError` for what cannot be packed, or notes that, as ``on_error`` asks.
        """
        path = self._path(name)
        if path is None:
            return
        if split_name(path) is None:
            self.skipped["name without a key and an extension"] += 1
            self.add_folder(path.rpartition("/")[0])
            return
        full = path.encode("utf-8", "surrogateescape")
        cut = full.rfind(b"/") + 1
        base = full[cut:]
        folder = self._enter(full[:cut], holds_file=True)
        if not problem and not is_text(path):
            problem = "has a name that is not UTF-8, which a tar asks for: rename it"
        if size > _MOST_BYTES:
            size, problem = 0, f"has the impossible size {size:,}: fetch the archive again"
        if problem:
            problem = f"{shown(path)} {problem}"
            if self.on_error == "raise":
                raise SourceError(f"{self.label}/{problem}")
            folder.problems[base] = problem
        folder.add(base, size, place=place)

    def add_folder(self, name: str) -> None:
        """Add a folder, which may be empty."""
        path = self._path(name)
        if path and split_name(f"{path}/a.a"):
            self._enter(f"{path}/".encode("utf-8", "surrogateescape"), holds_file=False)

    def listed(self, options: SourceOptions) -> Listed:
        """Return the samples.

        A folder around everything, as ``tar cf photos.tar photos`` writes it, is left out of the keys: the samples
        are those of the folder ``photos``.
        """
        root = self._root(single_class=bool(options.class_folders))
        folders = [name.decode("utf-8", "surrogateescape") for name in self._folders[root].folders]
        listing = list_samples(lambda path: self._folders.pop(root + path))
        return packable(self.label, listing, folders, options, skipped=self.skipped, left_out=self.left_out)

    def _root(self, *, single_class: bool) -> bytes:
        """Return the folder around everything, however deep, with a slash at its end; empty where there is none."""
        root = b""
        while not self.keep_root and not self._folders[root].sizes:
            filled = self._filled_folders(root)
            if len(filled) != 1 or (single_class and not self._filled_folders(filled[0])):
                break
            root = filled[0]
        return root

    def _filled_folders(self, root: bytes) -> list[bytes]:
        inside = [root + name + b"/" for name in self._folders[root].folders]
        return [path for path in inside if path in self._filled]

    def _path(self, name: str) -> str | None:
        """Return a path without ``./`` and leading slashes; nothing for a file that is passed over."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in name and ".." in re.split(r"[/\\]", name):
            problem = f"{shown(name)} leads out of the archive: make the archive anew"
            if self.on_error == "raise":
                raise SourceError(f"{self.label}: {problem}")
            self.left_out.append(LeftOut(shown(name), problem))
            return None
        if parts[:1] == ["__MACOSX"]:
            self.skipped["file in __MACOSX"] += 1
            return None
        if any(part[0] == "." for part in parts):
            self.skipped["hidden file"] += 1
            return None
        return "/".join(parts)

    def _enter(self, path: bytes, *, holds_file: bool) -> Folder:
        """Return a folder, made with those around it where it is new."""
        if path not in self._folders:
            parent, _, name = path[:-1].rpartition(b"/")
            self._enter(parent + b"/" if parent else b"", holds_file=False).folders.append(name)
            self._folders[path] = Folder()
        above = path
        while holds_file and above and above not in self._filled:
            self._filled.add(above)
            above = above[: above.rfind(b"/", 0, -1) + 1]
        return self._folders[path]
