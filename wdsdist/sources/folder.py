"""A folder of files as samples: files whose paths agree up to the first dot of the base name are one sample."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist.errors import SourceError
from wdsdist.permutation import Int64s
from wdsdist.sources.base import FilePayload, LeftOut, OnError, Payload, Sample
from wdsdist.sources.grouping import Folder, list_samples, shown
from wdsdist.sources.kinds import SourceOptions
from wdsdist.sources.listing import Listing
from wdsdist.sources.rules import class_folders as find_class_folders
from wdsdist.sources.rules import unpackable
from wdsdist.tarformat import split_name, stored_size

_TAR = re.compile(r"\.(?:tar(?:\.(?:gz|bz2|xz|zst|lz4|z))?|tgz|tbz2|txz)$", re.IGNORECASE)
_HIDDEN = ord(".")


@dataclass(frozen=True, slots=True)
class FolderSamples:
    """Some samples of a folder."""

    root: str
    folders: list[str]
    """Paths under the root, with a slash at their end."""
    in_folders: list[int]
    """For each sample, the place of its folder in ``folders``."""
    counts: list[int]
    """Files of each sample."""
    names: str
    """The names of all files in their folders, a line for each."""
    sizes: list[int]
    """Bytes of each file."""
    labels: list[int] | None
    """What each sample's ``cls`` is to hold."""

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Sample]:
        files = zip(self.names.split("\n"), self.sizes, strict=True)
        for number, (place, count) in enumerate(zip(self.in_folders, self.counts, strict=True)):
            folder = self.folders[place]
            above = f"{self.root}/{folder}"
            members: list[tuple[str, Payload]] = []
            for _ in range(count):
                name, size = next(files)
                base, _, extension = name.partition(".")
                members.append((extension, FilePayload(above + name, size)))
            if self.labels is not None:
                members.append(("cls", b"%d" % self.labels[number]))
                members.sort(key=lambda member: member[0])
            yield folder + base, members


@dataclass(frozen=True, slots=True, eq=False)
class FolderSource:
    """All samples of a folder, in the order of their first files' paths, byte by byte."""

    location: str
    listing: Listing
    numbers: Int64s | None
    """int64: the samples of the listing that can be packed; all where there is none."""
    classes: tuple[str, ...] | None
    """The class folders in the order of their numbers, or none."""
    skipped: dict[str, int]
    """Entries that belong to no sample, counted by what they are."""
    left_out: tuple[LeftOut, ...] = ()
    kind: str = "folder"
    has_exact_sizes: bool = True

    def __len__(self) -> int:
        return self.listing.num_samples if self.numbers is None else len(self.numbers)

    def fingerprint(self) -> str:
        state = hashlib.sha256(f"{self.kind}\0{self.classes}\0{self.listing.digest}\n".encode())
        for one in self.left_out:
            state.update(f"{one.key}\0{one.reason}\n".encode())
        return state.hexdigest()

    def extra(self) -> dict[str, Any]:
        classes = {"classes": list(self.classes)} if self.classes is not None else {}
        skipped = {"skipped": dict(sorted(self.skipped.items()))} if self.skipped else {}
        return {**classes, **skipped}

    def stored_sizes(self) -> Int64s:
        stored = self.listing.stored_sizes()
        if self.classes is not None:
            plain = 2 * 512  # of a header and a number of a few digits
            stored += plain
            odd = np.unique(self.listing.samples_of(self.listing.odd_files(spare=len(".cls"))))
            if self.numbers is not None:
                odd = np.intersect1d(odd, self.numbers)  # the names of others may be no text
            for sample in odd.tolist():
                stored[sample] += stored_size(f"{self.listing.key(sample)}.cls", 1) - plain
        return stored if self.numbers is None else stored[self.numbers]

    def take(self, indices: Int64s) -> FolderSamples:
        listing = self.listing
        samples = indices if self.numbers is None else self.numbers[indices]
        starts, stops = listing.sample_files[samples], listing.sample_files[samples + 1]
        counts = stops - starts
        before = np.cumsum(counts) - counts
        files = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
        runs, in_folders = np.unique(listing.runs(starts), return_inverse=True)
        bounds = zip(listing.name_ends[files].tolist(), listing.name_ends[files + 1].tolist(), strict=True)
        names = b"\n".join([listing.name_bytes[start:stop] for start, stop in bounds])
        in_folders = in_folders.reshape(-1)  # some versions of numpy give it another shape
        folders = [listing.folder(run) for run in runs.tolist()]
        labels = None
        if self.classes is not None:
            classes = {name: number for number, name in enumerate(self.classes)}
            labels = [classes[folder.partition("/")[0]] for folder in folders]
        return FolderSamples(
            self.location,
            folders,
            in_folders.tolist(),
            counts.tolist(),
            names.decode(),
            listing.sizes[files].tolist(),
            None if labels is None else [labels[place] for place in in_folders.tolist()],
        )


def is_tar(name: str) -> bool:
    """Say whether a file is, by its name, a tar."""
    return _TAR.search(name) is not None


def find(root: Path, options: SourceOptions) -> FolderSource | None:
    """List the samples of a folder; return ``None`` for what is none."""
    if not root.is_dir():
        return None
    walk = _Walk(root, options.on_error)
    listing = walk.run()
    if walk.tars:
        raise SourceError(
            f"{root} holds {len(walk.tars):,} tar files, such as {min(walk.tars)}: if they are WebDataset shards, run "
            f"`wdsdist index {root}`; if not, unpack them and pack the folder that results"
        )
    if not listing.num_samples:
        raise SourceError(f"{root} holds no file that can be a sample{_skipped(walk.skipped)}: is it the right folder?")
    wrong = unpackable(listing)
    if wrong and options.on_error == "raise":
        raise SourceError(f"{root}/{wrong[min(wrong)]}")
    classes = find_class_folders(str(root), listing, walk.folders, options.class_folders)
    numbers = None
    if wrong:
        numbers = np.setdiff1d(np.arange(listing.num_samples), np.array(sorted(wrong)))
        if not len(numbers):
            raise SourceError(f"{root} holds no sample that can be packed, for instance: {wrong[min(wrong)]}")
    left_out = [*walk.left_out, *(LeftOut(shown(listing.key(sample)), wrong[sample]) for sample in sorted(wrong))]
    return FolderSource(str(root), listing, numbers, classes, dict(walk.skipped), tuple(left_out))


class _Walk:
    """One pass over all that lies under a folder. Hidden files and folders are counted and passed over."""

    def __init__(self, root: Path, on_error: OnError) -> None:
        self.root = root
        self.on_error = on_error
        self.folders: list[str] = []  # those directly under the root
        self.tars: list[str] = []  # and tars there
        self.skipped: Counter[str] = Counter()
        self.left_out: list[LeftOut] = []  # folders of which nothing is known
        self._above = {b"": frozenset((_identity(root.stat()),))}

    def run(self) -> Listing:
        listing = list_samples(self._open)
        self.left_out.sort(key=lambda one: one.key)
        return listing

    def _open(self, path: bytes) -> Folder:
        """List one folder; what lies in it is told apart by the type that the folder itself notes, where it does."""
        found = Folder()
        above = self._above.pop(path)
        no_samples_here = split_name(os.fsdecode(path) + "a.a") is None  # such as `__meta__/`
        try:
            with os.scandir(os.fsencode(self.root) + b"/" + path) as entries:
                for entry in entries:
                    name = entry.name
                    if name[0] == _HIDDEN:
                        self.skipped["hidden folder" if entry.is_dir() else "hidden file"] += 1
                    elif entry.is_dir():
                        self._enter(path, entry, above, found)
                    elif no_samples_here or not 0 < name.find(b".") < len(name) - 1 or not _can_be_member(name):
                        self.skipped["name without a key and an extension"] += 1
                    else:
                        self._add(path, entry, found)
        except OSError as error:
            what = f"cannot be listed ({error.strerror}): mend it or move it away"
            if not path or self.on_error == "raise":
                raise SourceError(f"{self.root / shown(path.rstrip(b'/'))} {what}") from error
            self.left_out.append(LeftOut(shown(path), f"{shown(path.rstrip(b'/'))} {what}"))
            found = Folder()
        if not path:
            self.folders = [os.fsdecode(name) for name in found.folders]
        return found

    def _enter(self, path: bytes, entry: os.DirEntry[bytes], above: frozenset[tuple[int, int]], found: Folder) -> None:
        identity = _identity(entry.stat())
        # A link to a folder that it lies in would be followed for ever.
        if entry.is_symlink() and identity in above:
            self.skipped["link to a folder around it"] += 1
            return
        found.folders.append(entry.name)
        self._above[path + entry.name + b"/"] = above | {identity}

    def _add(self, path: bytes, entry: os.DirEntry[bytes], found: Folder) -> None:
        name, problem = entry.name, ""
        if entry.is_file():
            try:
                status = entry.stat()
                found.add(name, status.st_size, status.st_mtime_ns)
            except OSError as error:
                found.add(name, 0, 0)
                problem = f"cannot be read ({error.strerror}): mend it or remove it"
        elif entry.is_symlink():
            found.add(name, 0, 0)
            problem = "is a link to nothing: mend it or remove it"
        else:
            self.skipped["device, pipe or socket"] += 1
            return
        if not path and is_tar(os.fsdecode(name)):
            self.tars.append(os.fsdecode(name))
        if not (name.isascii() and path.isascii()) and not _is_utf8(path + name):
            problem = "is not UTF-8, which a tar asks names to be: rename it"
        if problem:
            problem = f"{shown(path + name)} {problem}"
            if self.on_error == "raise":
                raise SourceError(f"{shown(self.root)}/{problem}")
            found.problems[name] = problem


def _can_be_member(name: bytes) -> bool:
    """Say what `split_name` says of a name with a key and an extension, faster for names as most are."""
    return b"\n" not in name and (b"__" not in name or split_name(os.fsdecode(name)) is not None)


def _is_utf8(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _skipped(skipped: Counter[str]) -> str:
    return " (skipped: " + ", ".join(f"{count:,} {what}" for what, count in skipped.items()) + ")" if skipped else ""
