"""A folder of files as samples: files whose paths agree up to the first dot of the base name are one sample."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wdsdist.errors import SourceError
from wdsdist.permutation import Int64s
from wdsdist.sources.base import FilePayload, Payload, Sample
from wdsdist.tarformat import is_compressed, split_name, stored_size

# What torchvision's ImageFolder takes for an image, and what has come into use since.
_IMAGE_KINDS = r"(?:jpe?g|jpe|png|p[bgnp]m|bmp|gif|tiff?|webp|jp2|avif|hei[cf]|jxl)"
_IMAGE = re.compile(rf"(?:.*\.)?{_IMAGE_KINDS}", re.IGNORECASE)
_NUMBERED_IMAGE = re.compile(rf"\d+\.{_IMAGE_KINDS}", re.IGNORECASE)


class _Member(NamedTuple):
    extension: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FolderSamples:
    """Some samples of a folder."""

    root: str
    samples: list[tuple[str, list[tuple[str, int]], bytes | None]]
    """Key, (extension, size) of each file, and what the sample's ``cls`` is to hold."""

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        for key, files, label in self.samples:
            members: list[tuple[str, Payload]] = [
                (extension, FilePayload(f"{self.root}/{key}.{extension}", size)) for extension, size in files
            ]
            if label is not None:
                members.append(("cls", label))
                members.sort(key=lambda member: member[0])
            yield key, members


@dataclass(frozen=True, slots=True, eq=False)
class FolderSource:
    """All samples of a folder, in the order of their first files' paths, byte by byte."""

    location: str
    keys: list[str]
    members: list[list[_Member]]
    """The files of each sample, by extension; a file's path is its key, a dot and its extension."""
    classes: tuple[str, ...] | None
    """The class folders in the order of their numbers, or none."""
    skipped: dict[str, int]
    """Entries that belong to no sample, counted by what they are."""
    kind: str = "folder"
    has_exact_sizes: bool = True

    def __len__(self) -> int:
        return len(self.keys)

    def fingerprint(self) -> str:
        state = hashlib.sha256(f"{self.kind}\0{self.classes}\n".encode())
        for key, members in zip(self.keys, self.members, strict=True):
            for extension, size, mtime_ns in members:
                state.update(f"{key}.{extension}\0{size}\0{mtime_ns}\n".encode())
        return state.hexdigest()

    def extra(self) -> dict[str, Any]:
        classes = {"classes": list(self.classes)} if self.classes is not None else {}
        skipped = {"skipped": dict(sorted(self.skipped.items()))} if self.skipped else {}
        return {**classes, **skipped}

    def stored_sizes(self) -> Int64s:
        sizes = (
            sum(stored_size(f"{key}.{member.extension}", member.size) for member in members)
            for key, members in zip(self.keys, self.members, strict=True)
        )
        stored = np.fromiter(sizes, np.int64, len(self.keys))
        if self.classes is not None:
            numbers = self._numbers()
            stored += np.fromiter(
                (stored_size(f"{key}.cls", len(str(numbers[_top(key)]))) for key in self.keys), np.int64, len(self.keys)
            )
        return stored

    def take(self, indices: Int64s) -> FolderSamples:
        numbers = self._numbers()
        samples = []
        for index in indices.tolist():
            key = self.keys[index]
            label = str(numbers[_top(key)]).encode() if self.classes is not None else None
            samples.append((key, [(member.extension, member.size) for member in self.members[index]], label))
        return FolderSamples(self.location, samples)

    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes or ())}


def is_tar(name: str) -> bool:
    """Say whether a file is, by its name, a tar."""
    return name.lower().endswith(".tar") or is_compressed(name)


def find(root: Path, *, class_folders: bool | None) -> FolderSource:
    """List the samples of a folder."""
    walk = _Walk(root)
    walk.run()
    tars = sorted(path for path in walk.files if "/" not in path and is_tar(path))
    if tars:
        raise SourceError(
            f"{root} holds {len(tars):,} tar files, such as {tars[0]}: if they are WebDataset shards, run `wdsdist "
            f"index {root}`; if not, unpack them and pack the folder that results"
        )
    keys, members = _group(root, walk.files)
    if not keys:
        raise SourceError(f"{root} holds no file that can be a sample{_skipped(walk.skipped)}: is it the right folder?")
    classes = _classes(root, keys, members, walk.folders, class_folders)
    return FolderSource(str(root), keys, members, classes, dict(walk.skipped))


class _Walk:
    """One pass over all that lies under a folder. Hidden files and folders are counted and passed over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, tuple[int, int]] = {}  # relative path: size, time of the last change
        self.folders: list[str] = []  # those directly under the root
        self.skipped: Counter[str] = Counter()

    def run(self) -> None:
        todo = [("", frozenset((_identity(self.root.stat()),)))]
        while todo:
            prefix, above = todo.pop()
            try:
                with os.scandir(self.root / prefix) as entries:
                    for entry in entries:
                        if self._add(prefix + entry.name, entry, above):
                            todo.append((f"{prefix}{entry.name}/", above | {_identity(entry.stat())}))
            except OSError as error:
                if isinstance(error, SourceError):
                    raise
                place = _shown(error.filename or self.root / prefix)
                raise SourceError(f"{place} cannot be listed ({error.strerror}): mend it or move it away") from error

    def _add(self, path: str, entry: os.DirEntry[str], above: frozenset[tuple[int, int]]) -> bool:
        """Note one entry; say whether it is a folder to go into."""
        if entry.name.startswith("."):
            self.skipped["hidden folder" if entry.is_dir() else "hidden file"] += 1
        elif entry.is_dir():
            # A link to a folder that it lies in would be followed for ever.
            if entry.is_symlink() and _identity(entry.stat()) in above:
                self.skipped["link to a folder around it"] += 1
                return False
            if "/" not in path:
                self.folders.append(path)
            return True
        elif split_name(path) is None:
            self.skipped["name without a key and an extension"] += 1
        elif entry.is_file():
            _check_text(self.root, path)
            status = entry.stat()
            self.files[path] = (status.st_size, status.st_mtime_ns)
        elif entry.is_symlink():
            raise SourceError(f"{_shown(entry.path)} is a link to nothing: mend it or remove it")
        else:
            self.skipped["device, pipe or socket"] += 1
        return False


def _group(root: Path, files: dict[str, tuple[int, int]]) -> tuple[list[str], list[list[_Member]]]:
    """Gather the files of each sample; refuse what readers could not tell apart."""
    samples: dict[str, list[_Member]] = {}
    for path in sorted(files, key=os.fsencode):  # and thereby each sample's files by extension
        parts = split_name(path)
        assert parts is not None  # _Walk passed over the others
        samples.setdefault(parts[0], []).append(_Member(sys.intern(parts[1]), *files[path]))
    for key, members in samples.items():
        seen: dict[str, str] = {}
        for member in members:
            lower = member.extension.lower()
            if lower in seen:
                raise SourceError(
                    f"{root} holds {key}.{seen[lower]} and {key}.{member.extension}, which differ in case only: "
                    f"readers take both for the same member, so rename one"
                )
            if lower.startswith("__") and lower.endswith("__"):
                raise SourceError(
                    f"{root}/{key}.{member.extension} has the name of an entry that readers add to samples: rename it"
                )
            seen[lower] = member.extension
    return list(samples), list(samples.values())


def _classes(
    root: Path, keys: list[str], members: list[list[_Member]], folders: list[str], wanted: bool | None
) -> tuple[str, ...] | None:
    """Return the class folders where there are such, sorted as torchvision's ``ImageFolder`` sorts them."""
    if wanted is False:
        return None
    loose = next((number for number, key in enumerate(keys) if "/" not in key), None)
    labelled = next(
        (n for n, files in enumerate(members) if any(file.extension.lower() == "cls" for file in files)), None
    )
    if wanted is None and (
        loose is not None or labelled is not None or len(folders) < 2 or not all(map(_has_image, members))
    ):
        return None
    off = "turn class folders off with class_folders=False (--no-class-folders)"
    for key, files in zip(keys, members, strict=True):
        alike = _images_told_apart_by_number(files)
        if alike:
            raise SourceError(
                f"{root} holds {key}.{alike[0]} and {key}.{alike[1]}: the key ends at the first dot, so they would be "
                f"one sample. Rename them so that only their extension has a dot, or {off} if they do belong together"
            )
    if loose is not None:
        name = f"{keys[loose]}.{members[loose][0].extension}"
        raise SourceError(f"{root} holds {name} beside the class folders: move it into one of them, or {off}")
    if labelled is not None:
        raise SourceError(f"{root}/{keys[labelled]}.cls gives a class already: remove it, or {off}")
    empty = sorted(set(folders) - set(map(_top, keys)))
    if empty:
        raise SourceError(
            f"class folder {root}/{empty[0]} holds no sample, and a number for it would shift those of the classes "
            f"after it: remove it, or {off}"
        )
    return tuple(sorted(folders))


def _has_image(members: list[_Member]) -> bool:
    return any(_IMAGE.fullmatch(member.extension) for member in members)


def _images_told_apart_by_number(members: list[_Member]) -> list[str]:
    """Return the extensions of two images such as ``0.jpg`` and ``1.jpg``: names with dots, cut at the first one."""
    found = [file.extension for file in members if _NUMBERED_IMAGE.fullmatch(file.extension)]
    return found[:2] if len(found) > 1 else []


def _top(key: str) -> str:
    return key.partition("/")[0]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _check_text(root: Path, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"the name of {_shown(root / path)} is not UTF-8, which a tar asks for: rename it") from error


def _shown(path: str | os.PathLike[str]) -> str:
    """Return a path fit for a message: bytes that are no text are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _skipped(skipped: Counter[str]) -> str:
    return " (skipped: " + ", ".join(f"{count:,} {what}" for what, count in skipped.items()) + ")" if skipped else ""
