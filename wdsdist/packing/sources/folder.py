"""A folder of files as samples. Hidden files and folders are counted and passed over."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from wdsdist.packing.options import Options
from wdsdist.packing.payloads import FilePayload, Sample
from wdsdist.packing.sources.files import CLUTTER_FOLDERS, HIDDEN, Files
from wdsdist.packing.sources.listing import Folder, Listing, decoded
from wdsdist.packing.sources.source import Candidate, Source
from wdsdist.shards.tar.member_names import split_name, why_skipped


@dataclass(frozen=True, slots=True)
class FolderSamples:
    """Some samples of a folder."""

    root: str
    taken: Listing

    def __iter__(self) -> Iterator[Sample]:
        above = f"{self.root}/"
        return self.taken.samples(lambda path, size, _: FilePayload(above + path, size))


def find(candidate: Candidate, options: Options) -> Source | None:
    """List the samples of a folder; return ``None`` if the candidate is no folder."""
    root = candidate.path
    if root is None or candidate.names is None:
        return None
    files, status = Files(str(root), options.on_error), root.stat()
    todo = [(b"", frozenset({(status.st_dev, status.st_ino)}))]
    while todo:
        path, above = todo.pop()
        try:
            with os.scandir(os.fsencode(root) + b"/" + path) as entries:
                todo += [inner for entry in entries if (inner := _add(files, path, entry, above)) is not None]
        except OSError as error:
            files.leave_out(path, f"cannot be listed ({error.strerror}): repair it or move it away")
    return files.source("folder", options, functools.partial(FolderSamples, str(root)), state="folder", of_files=True)


_Above = frozenset[tuple[int, int]]
"""The identities of the folders around a folder, and its own."""


def _add(files: Files, path: bytes, entry: os.DirEntry[bytes], above: _Above) -> tuple[bytes, _Above] | None:
    """Add an entry of the folder at a path if it is a file; return it if it is a folder to list."""
    inner = path + entry.name
    name = decoded(inner)
    if entry.name.startswith(b"."):
        files.skipped[HIDDEN] += 1
        return None
    try:
        status = entry.stat()
    except OSError as error:  # of a link that cannot be followed, which may lead to a folder of samples
        is_gone = isinstance(error, FileNotFoundError)
        if split_name(name) is not None:
            what = "is a link to nothing" if is_gone else f"cannot be read ({error.strerror})"
            files.add(path, entry.name, 0, f"{what}: repair it or remove it")
        elif is_gone:
            files.skipped[why_skipped(name)] += 1
        else:
            files.leave_out(inner, f"cannot be listed ({error.strerror}): repair it or move it away")
        return None
    identity = status.st_dev, status.st_ino
    if stat.S_ISDIR(status.st_mode):
        if decoded(entry.name) in CLUTTER_FOLDERS:
            files.skipped["folder of the system, such as __MACOSX"] += 1
        elif identity in above:  # followed, it would be listed without end
            files.skipped["link to a folder around it"] += 1
        else:
            files.folders[inner + b"/"] = Folder()
            return inner + b"/", above | {identity}
    elif split_name(name) is None:
        files.skipped[why_skipped(name)] += 1
    elif not stat.S_ISREG(status.st_mode):
        files.skipped["device, pipe or socket"] += 1
    else:
        files.add(path, entry.name, status.st_size, mtime_ns=status.st_mtime_ns)
    return None
