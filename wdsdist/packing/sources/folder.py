"""A folder of files as samples: files whose paths agree up to the first dot of the base name are one sample."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist.errors import SourceError
from wdsdist.packing.payloads import FilePayload, Sample
from wdsdist.packing.sources.listed_source import FileWalk, Taken
from wdsdist.packing.sources.listing import (
    FOLDER,
    LINK,
    OTHER,
    Folder,
    FolderEntries,
    is_passed_over,
    list_samples,
    shown,
)
from wdsdist.packing.sources.source import Candidate, LeftOut, OnError, Source, SourceOptions
from wdsdist.shards.tar.member_names import split_name, why_skipped

_HIDDEN = ord(".")


@dataclass(frozen=True, slots=True)
class FolderSamples:
    """Some samples of a folder."""

    root: str
    taken: Taken

    def __iter__(self) -> Iterator[Sample]:
        above = f"{self.root}/"
        return self.taken.samples(lambda path, size, _: FilePayload(above + path, size))


def find(candidate: Candidate, options: SourceOptions) -> Source | None:
    """List the samples of a folder; return ``None`` if the candidate is no folder."""
    root, entries = candidate.path, candidate.entries
    if root is None or entries is None:
        return None
    walk = _Walk(root, options.on_error)
    top = walk.folder(b"", entries)
    folders = [os.fsdecode(name) for name in top.folders]
    listing = list_samples(lambda path: walk.open(path) if path else top)
    walk.left_out.sort(key=lambda one: one.key)
    samples = functools.partial(FolderSamples, str(root))
    return walk.source_of("folder", listing, folders, options, samples, state="folder")


class _Walk(FileWalk):
    """One pass over all that lies under a folder. Hidden files and folders are counted and passed over."""

    of_files = True

    def __init__(self, root: Path, on_error: OnError) -> None:
        super().__init__(str(root), on_error)
        self.root = root
        status = root.stat()
        self._above = {b"": frozenset(((status.st_dev, status.st_ino),))}

    def open(self, path: bytes) -> Folder:
        """List a folder under the root, or leave it out where it cannot be listed."""
        try:
            return self.folder(path, FolderEntries.of(os.fsencode(self.root) + b"/" + path))
        except OSError as error:
            self._leave_out(path, error)
            return Folder()

    def _leave_out(self, path: bytes, error: OSError) -> None:
        """Skip and report a folder that cannot be listed, or a link to one; raise where errors are not skipped."""
        what = f"cannot be listed ({error.strerror}): repair it or move it away"
        if self.on_error == "raise":
            raise SourceError(f"{self.root / shown(path.rstrip(b'/'))} {what}") from error
        self.left_out.append(LeftOut(shown(path), f"{shown(path.rstrip(b'/'))} {what}"))

    def folder(self, path: bytes, entries: FolderEntries) -> Folder:
        """Look up the files of a folder; the folders in it are for later."""
        found = Folder()
        above = self._above.pop(path)
        prefix = os.fsencode(self.root) + b"/" + path
        for name, kind in entries:
            if name[0] == _HIDDEN:
                self.skipped["hidden folder" if kind & ~LINK == FOLDER else "hidden file"] += 1
            elif kind & ~LINK == FOLDER and is_passed_over(name):
                self.skipped["folder of the system, such as __MACOSX"] += 1
            elif kind & ~LINK == FOLDER:
                self._enter(path, prefix, name, kind, above, found)
            elif split_name(os.fsdecode(path + name)) is None:
                self._pass_over(path, prefix, name, kind)
            else:
                self._add(path, prefix, name, kind, found)
        return found

    def _pass_over(self, path: bytes, prefix: bytes, name: bytes, kind: int) -> None:
        """Count a skipped entry, which belongs to no sample; a broken link may be to a folder of samples."""
        try:
            if kind == OTHER | LINK:
                os.stat(prefix + name)  # noqa: PTH116 - the name may be no text
        except FileNotFoundError:
            pass
        except OSError as error:
            self._leave_out(path + name, error)
            return
        self.skipped[why_skipped(os.fsdecode(path + name))] += 1

    def _enter(
        self, path: bytes, prefix: bytes, name: bytes, kind: int, above: frozenset[tuple[int, int]], found: Folder
    ) -> None:
        status = os.stat(prefix + name)  # noqa: PTH116 - the name may be no text
        identity = status.st_dev, status.st_ino
        # A link to a folder that it lies in would be followed for ever.
        if kind & LINK and identity in above:
            self.skipped["link to a folder around it"] += 1
            return
        found.folders.append(name)
        self._above[path + name + b"/"] = above | {identity}

    def _add(self, path: bytes, prefix: bytes, name: bytes, kind: int, found: Folder) -> None:
        problem, status = "", None
        try:
            if kind != OTHER:
                status = os.stat(prefix + name)  # noqa: PTH116 - a Path for each of millions of files is slow
        except OSError as error:
            is_gone = kind & LINK and isinstance(error, FileNotFoundError)
            what = "is a link to nothing" if is_gone else f"cannot be read ({error.strerror})"
            problem = f"{what}: repair it or remove it"
        if not problem and (status is None or kind & ~LINK == OTHER):
            self.skipped["device, pipe or socket"] += 1
            return
        size, mtime_ns = (status.st_size, status.st_mtime_ns) if status else (0, 0)
        self.add_file(found, path, name, size, problem, mtime_ns=mtime_ns)
