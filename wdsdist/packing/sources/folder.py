"""A folder of files as samples. Hidden files and folders are counted and passed over."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from wdsdist.packing.options import Options
from wdsdist.packing.payloads import FilePayload, Sample
from wdsdist.packing.sources.listed_source import Files, Taken
from wdsdist.packing.sources.listing import FOLDER, LINK, OTHER, Folder, FolderEntries, is_passed_over
from wdsdist.packing.sources.source import Candidate, Source
from wdsdist.shards.tar.member_names import split_name, why_skipped


@dataclass(frozen=True, slots=True)
class FolderSamples:
    """Some samples of a folder."""

    root: str
    taken: Taken

    def __iter__(self) -> Iterator[Sample]:
        above = f"{self.root}/"
        return self.taken.samples(lambda path, size, _: FilePayload(above + path, size))


def find(candidate: Candidate, options: Options) -> Source | None:
    """List the samples of a folder; return ``None`` if the candidate is no folder."""
    root, entries = candidate.path, candidate.entries
    if root is None or entries is None:
        return None
    files = Files(str(root), options.on_error)
    status = root.stat()
    todo = [(b"", frozenset(((status.st_dev, status.st_ino),)))]
    while todo:
        path, above = todo.pop()
        folder = os.fsencode(root) + b"/" + path
        try:
            todo += _list(files, folder, path, FolderEntries.of(folder) if path else entries, above)
        except OSError as error:
            files.leave_out(path, f"cannot be listed ({error.strerror}): repair it or move it away")
    return files.source("folder", options, functools.partial(FolderSamples, str(root)), state="folder", of_files=True)


_Above = frozenset[tuple[int, int]]
"""The identities of the folders around a folder, and its own."""


def _list(
    files: Files, folder: bytes, path: bytes, entries: FolderEntries, above: _Above
) -> Iterator[tuple[bytes, _Above]]:
    """Add the files of a folder; yield the folders in it."""
    for name, kind in entries:
        target = kind & ~LINK
        if name[:1] == b".":
            files.skipped["hidden folder" if target == FOLDER else "hidden file"] += 1
            continue
        if target == FOLDER and is_passed_over(name):
            files.skipped["folder of the system, such as __MACOSX"] += 1
            continue
        is_skipped = target != FOLDER and split_name(os.fsdecode(path + name)) is None
        if is_skipped and kind != OTHER | LINK:
            files.skipped[why_skipped(os.fsdecode(path + name))] += 1
            continue
        if kind == OTHER:
            files.skipped["device, pipe or socket"] += 1
            continue
        try:
            status = os.stat(folder + name)  # noqa: PTH116 - a Path for each of millions of files is slow
        except OSError as error:
            is_gone = kind & LINK and isinstance(error, FileNotFoundError)
            if is_skipped and is_gone:
                files.skipped[why_skipped(os.fsdecode(path + name))] += 1
            elif is_skipped or target == FOLDER:  # a link that cannot be followed may lead to a folder of samples
                files.leave_out(path + name, f"cannot be listed ({error.strerror}): repair it or move it away")
            else:
                what = "is a link to nothing" if is_gone else f"cannot be read ({error.strerror})"
                files.add(path, name, 0, f"{what}: repair it or remove it")
            continue
        identity = status.st_dev, status.st_ino
        if target == FOLDER and identity not in above:
            files.folders[path + name + b"/"] = Folder()
            yield path + name + b"/", above | {identity}
        elif target == FOLDER:  # followed, it would be listed without end
            files.skipped["link to a folder around it"] += 1
        elif target == OTHER:
            files.skipped["device, pipe or socket"] += 1
        else:
            files.add(path, name, status.st_size, mtime_ns=status.st_mtime_ns)
