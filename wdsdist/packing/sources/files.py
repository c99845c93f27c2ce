"""Files as a source: which samples they form, which of these can be packed, and what the outermost folders mean.

The files may lie in a folder, an archive or a store: the source differs only in how it gives them their data. By
default folders are parts of keys. With ``class_folders=True`` they are classes, as in torchvision's ``ImageFolder``.
Folders such as ``train`` and ``val`` are data sets of their own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import IMAGE_TYPES, RARE_IMAGE_TYPES
from wdsdist._util.host import cpu_count
from wdsdist._util.pools import pool
from wdsdist.errors import SourceError, given
from wdsdist.packing.members import FilePayload, LeftOut, Payload, Sample, Samples
from wdsdist.packing.options import Options
from wdsdist.packing.sources.listing import Folder, ListedSample, Listing, list_samples, shown
from wdsdist.packing.sources.source import Candidate, Contents, FileStamp, Source
from wdsdist.packing.tables.table import NOTES, kind_of
from wdsdist.shards.tar import FIRST_DOT, LAST_DOT
from wdsdist.shards.tar.member_names import check_extensions, split_name, why_skipped
from wdsdist.storage import is_remote

HIDDEN = "hidden file or folder"
CLUTTER_FOLDERS = frozenset(
    ("__MACOSX", "System Volume Information", "@eaDir", "lost+found", "$RECYCLE.BIN", "$Recycle.Bin", "RECYCLER",
     "#recycle", "@Recycle", "#snapshot", "@Recently-Snapshot")
)  # fmt: skip
"""Folders that systems, archivers and network drives make for themselves, such as of deleted files."""

_Place = tuple[str, frozenset[tuple[int, int]]]
"""A folder to list, and the identities (device and inode) of the folder and of those around it."""
_ALONE = 10_000  # files and folders, which are listed sooner than processes that help start
_MOST_HELPERS = 8
_MOST_BYTES = 2**60  # so that sizes can be added up
_CONTAINER = re.compile(
    r"(?:.*\.)?(?:tar|tgz|tbz2?|txz|tzst|tar\.\w+|(?:tfrecords?|array_?records?|riegeli|beton|mdb|mds)(?:[-.].*)?)",
    re.IGNORECASE | re.DOTALL,
)
"""The extensions of files that hold many samples each."""
_SPLIT = re.compile(r"(?:train|training|val|valid|validation|dev|test|testing|eval)(?:[-_]?\d{2,4})?", re.IGNORECASE)
_IMAGE = re.compile(rb"\.(?:%s)$" % "|".join((*IMAGE_TYPES, *RARE_IMAGE_TYPES)).encode(), re.IGNORECASE)


class SplitsError(SourceError):
    """A source holds several splits, such as train and val, each in a folder."""

    splits: tuple[str, ...] = ()


def file_samples(
    read: Callable[[str, int, int], Payload], archive: FileStamp | None, samples: Iterable[ListedSample]
) -> Iterator[Sample]:
    """Yield samples of files; ``read`` returns the data of a file for its path, size and position.

    Raises `SourceError` if the ``archive`` that all of them are parts of has changed.
    """
    if archive is not None:
        archive.check()
    for key, members in samples:
        yield key, [(extension, file if isinstance(file, bytes) else read(*file)) for extension, file in members]


@dataclass(slots=True)
class Files:
    """The files of a folder, an archive or a store, by folder; what is skipped, and what is left out."""

    label: str
    """Names the source in messages."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of skipped entries, which belong to no sample, by reason."""
    left_out: list[LeftOut] = field(default_factory=list)
    """The files that are left out before samples are formed, with reasons."""
    folders: dict[str, Folder] = field(default_factory=lambda: {"": Folder()})
    """By path, with a slash at its end."""

    def leave_out(self, path: str, problem: str) -> None:
        """Note something that cannot be read."""
        self.left_out.append(LeftOut(shown(path), f"{shown(path).rstrip('/')} {problem}"))

    def add(self, path: str, name: str, size: int, problem: str, *, position: int = 0) -> None:
        """Add a file to the folder at a path; ``problem`` is why its sample cannot be packed, if it cannot."""
        if problem:
            self.folders[path].problems[name] = f"{shown(path + name)} {problem}"
        self.folders[path].add(name, size, position=position)

    def add_name(self, name: str, size: int, position: int, problem: str = "") -> None:
        """Add a file of an archive or a store by its name; a folder has a slash at its end.

        Names are only strings: nothing is made under them. ``./`` and leading slashes are left out of them, as ``tar``
        and ``unzip`` do. Hidden files are counted and passed over, as in a folder.
        """
        parts = [part for part in name.split("/") if part not in ("", ".")]
        is_folder = name.endswith("/")
        path = "/".join((*parts, "")) if is_folder else "/".join(parts)
        folder, _, own = path.rpartition("/")
        folder += "/" if folder else ""
        if ".." in name and ".." in re.split(r"[/\\]", name):
            self.leave_out(name, "leads out of the archive: make the archive again")
        elif clutter := CLUTTER_FOLDERS.intersection(path.split("/")[:-1]):
            self.skipped[f"file in {min(clutter)}"] += not is_folder
        elif any(part[0] == "." for part in parts):
            self.skipped[HIDDEN] += not is_folder
        elif is_folder:
            if split_name(f"{path}a.a") is not None:
                self.folders.setdefault(folder, Folder())
        else:
            self.folders.setdefault(folder, Folder())
            if split_name(path) is None:
                self.skipped[why_skipped(path)] += 1
                return
            if size > _MOST_BYTES:
                size, problem = 0, f"has the impossible size {size:,}: fetch the archive again"
            self.add(folder, own, size, problem, position=position)

    def root(self, options: Options) -> str:
        """Return the folder that the keys of an archive start from: the one around everything, or a split in it.

        What ``tar cf photos.tar photos`` writes has the samples of the folder ``photos``. A single class
        folder is not around everything.
        """
        filled = [path for path, folder in self.folders.items() if folder.names]
        common = os.path.commonprefix(filled)  # noqa: RUF071 - cut at a slash below
        root = common[: common.rfind("/") + 1]
        if options.class_folders and filled == [root]:
            root = root[: root.rfind("/", 0, -1) + 1]
        if options.split is not None:
            root += f"{options.split}/"
            if not any(path.startswith(root) for path in self.folders):
                raise SourceError(f"{self.label} holds no folder {options.split!r}: name one that lies directly in it")
        return root

    def _classes(self, root: str, below: list[str], tops: list[str], options: Options) -> tuple[str, ...]:
        """Return the classes: the folders directly under the root, sorted as in torchvision's ``ImageFolder``.

        ``below`` are the folders under the root, and ``tops`` the names of the outermost. Raises `SourceError` for one
        of these without a file.
        """
        filled = {path[len(root) :].partition("/")[0] for path in below if self.folders[path].names} - {""}
        if options.classes is None and (empty := sorted(set(tops) - filled)):
            problem = f"class folder {self.label}/{empty[0]} holds no sample, and its number would shift the classes"
            raise SourceError(f"{problem} after it: remove it, or pack with {given('class_folders', False)}")
        known = options.classes or ()
        return (*known, *sorted(filled.difference(known)))

    def source(
        self,
        kind: str,
        options: Options,
        make: Callable[..., Iterator[Sample]],
        *arguments: Any,
        state: str,
        root: str = "",
    ) -> Source:
        """Return the source of all files below a ``root``.

        ``make`` gives samples their data, as `file_samples` does: it is called with ``arguments`` and the listed
        samples. ``state`` identifies the files, beside their paths, sizes and times.

        Raises `SourceError` if there is no sample, for the first that cannot be packed unless such are left out, and
        for folders that cannot be the classes that they are to be; `ArgumentError` for names that need a key rule.
        """
        label, skipped = self.label, Counter(self.skipped)
        below = [path for path in self.folders if path.startswith(root)]
        tops = sorted({path[len(root) :].partition("/")[0] for path in below} - {""})
        splits = sorted(filter(_SPLIT.fullmatch, tops), key=lambda name: ("train" not in name, name))
        if options.class_folders is not False and options.split is None and len(splits) > 1:
            error = SplitsError(
                f"{label} holds the splits {', '.join(splits)}: pack each into a data set of its own by `wdsdist pack "
                f"{label} DEST --splits` or wdsdist.packing.pack_splits, or all into one by "
                f"{given('class_folders', False)}"
            )
            error.splits = tuple(splits)
            raise error
        rule, images = options.key, list[bytes]()
        if options.class_folders and rule is None:  # each image is a sample
            own = b"".join(self.folders[path].names for path in below if path != root).split(b"\0")[:-1]
            if images := [*filter(_IMAGE.search, own)]:
                rule = LAST_DOT if any(name.count(b".") > 1 for name in images) else FIRST_DOT
        classes = self._classes(root, below, tops, options) if options.class_folders else None
        listing = replace(list_samples(self.folders, root, rule or FIRST_DOT), classes=classes)
        index, wrong = listing.index, listing.problems
        left_out = sorted(self.left_out, key=lambda sample: sample.key)
        left_out += [LeftOut(shown(listing.key(sample)), why) for sample, why in wrong.items()]
        if left_out and options.on_error == "raise":
            raise SourceError(f"{shown(label)}/{left_out[0].reason}; or leave it out with {given('on_error', 'skip')}")
        if not index.num_samples:
            counts = ", ".join(f"{count:,} {what}" for what, count in skipped.items())
            why = f" (skipped: {counts})" if counts else ""
            raise SourceError(f"{label} holds no file that can be a sample{why}: is it the right one?")
        if options.kind is None:
            _refuse_containers(label, listing)
        if rule is None:
            files = np.unique(index.extension_ids, return_index=True)[1].tolist()
            names = {index.extensions[index.extension_ids[file]]: shown(listing.path(file)) for file in files}
            check_extensions(label, names, strict=True)
        if classes is not None and "cls" in map(str.lower, index.extensions):
            raise SourceError(
                f"{label} holds cls files, which give classes already: pack with {given('class_folders', False)}"
            )
        num_stray = 0 if classes is None else listing.num_outermost
        numbers = np.setdiff1d(np.arange(num_stray, index.num_samples), sorted(wrong))
        numbers = _with_image(label, listing, numbers, skipped) if images else numbers
        if not len(numbers):
            why = f"for instance: {wrong[min(wrong)]}" if wrong else "because no file lies in a class folder"
            raise SourceError(f"{label} holds no sample that can be packed, {why}")
        if num_stray:
            what = f"file beside the class folders, such as {shown(listing.path(0))}"
            skipped[what] = int(index.sample_starts[num_stray])
        state = f"{state}\0{classes}\0{listing.digest}\0{[sample.key for sample in left_out]}"
        notes: dict[str, Any] = {} if classes is None else {"classes": list(classes)}
        notes |= {"skipped": dict(sorted(skipped.items()))} if skipped else {}
        notes |= {} if index.key_rule == FIRST_DOT else {"source_key_rule": index.key_rule}
        first = int(numbers[0])
        path = listing.path(int(index.sample_starts[first]))
        facts = {"keys": f"such as {shown(listing.key(first))}, of {shown(path)}"}
        if tops and classes is None:
            facts["folders"] = f"{len(tops):,}, such as {shown(tops[0])}, are part of the keys"
            if options.class_folders is None and len(tops) > 1:
                facts["folders"] += f"; {given('class_folders', True)} makes them classes"
        if len(empty := np.flatnonzero(index.sizes == 0)):
            facts["empty files"] = f"{len(empty):,}, such as {shown(listing.path(int(empty[0])))}"

        def load() -> Contents:
            return Contents(
                sizes=listing.stored_sizes()[numbers],
                take=lambda indices: Samples(make, (*arguments, listing.of_samples(numbers[indices]))),
                notes=notes,
                left_out=tuple(left_out),
                members=listing.members(numbers),
                facts=facts,
            )

        return Source(kind, label, state, load, root=label if kind == "folder" and not is_remote(label) else "")


def _with_image(label: str, listing: Listing, samples: Int64s, skipped: Counter[str]) -> Int64s:
    """Return the samples that have an image; count the files of the others as skipped.

    Raises `SourceError` for a sample with two images: readers would take one, and never see the other.
    """
    index = listing.index
    is_image = np.array([bool(_IMAGE.search(os.fsencode(f".{extension}"))) for extension in index.extensions])
    counts = np.add.reduceat(is_image[index.extension_ids], index.sample_starts[:-1], dtype=np.int64)[samples]
    if len(double := samples[counts > 1]):
        path = shown(f"{label}/{listing.path(int(index.sample_starts[double[0]]))}")
        problem = f"{path} and another image differ in their extensions alone, and would be one sample"
        raise SourceError(f"{problem}: rename one, or pass {given('key', FIRST_DOT)} if they are one")
    if len(others := samples[counts == 0]):
        such = shown(listing.path(int(index.sample_starts[others[0]])))
        skipped[f"file without an image beside it, such as {such}"] = int(np.diff(index.sample_starts)[others].sum())
    return samples[counts > 0]


def _refuse_containers(label: str, listing: Listing) -> None:
    """Raise `SourceError` for files that hold many samples each, such as tars: each would be one member.

    Parquet and Arrow files are refused if there is nothing but notes beside them.
    """
    extensions = listing.index.extensions
    others = {extension for extension in extensions if not f".{extension}".lower().endswith(NOTES)}
    if not all(kind_of(f"x.{extension}") in ("parquet", "arrow") for extension in others):
        others = set(filter(_CONTAINER.fullmatch, others))
    if others:
        files = np.flatnonzero(np.array([extension in others for extension in extensions])[listing.index.extension_ids])
        path = shown(listing.path(int(files[0])))
        raise SourceError(
            f"{label} holds {len(files):,} files of many samples each, such as {path}: pack or index their folder or "
            f"pattern, such as '{label}/{path.rpartition('/')[0] or '*'}'; read formats of other libraries with these, "
            f"and pack what a generator yields; if each file is a sample, pass {given('kind', 'folder')}"
        )


def find_folder(candidate: Candidate, options: Options) -> Source | None:
    """List the samples of a folder; return ``None`` if the candidate is not a folder."""
    if candidate.names is None:
        return None
    files, root, status = Files(str(candidate.path)), f"{candidate.path}/", candidate.path.stat()
    todo: list[_Place] = [("", frozenset({(status.st_dev, status.st_ino)}))]
    listed, scan = 0, functools.partial(_scan, root)
    with contextlib.ExitStack() as stack:
        executor: Executor | None = None
        while todo:
            if executor is None and listed > _ALONE and len(todo) > 1:
                helpers = min(options.workers or cpu_count(), _MOST_HELPERS)
                executor = stack.enter_context(pool(helpers, len(todo)))
            if executor is None:
                parts = iter([scan(todo.pop())])
            else:
                parts, todo = executor.map(scan, todo, chunksize=1 + len(todo) // 64), []
            for part, inner in parts:
                files.skipped.update(part.skipped)
                files.left_out += part.left_out
                files.folders |= part.folders
                listed += 1 + sum(len(folder.numbers) // 3 for folder in part.folders.values())
                todo += inner
    read = functools.partial(_local, root)
    return files.source("folder", options, file_samples, read, None, state="folder")


def _scan(root: str, place: _Place) -> tuple[Files, list[_Place]]:
    """List the entries of one folder: return the files directly in it, and the folders to list next."""
    path, above = place
    files, inner = Files("", folders={path: Folder()}), list[_Place]()
    folder = files.folders[path]
    try:
        with os.scandir(root + path) as entries:
            for entry in entries:
                name = entry.name
                if name[0] == ".":
                    files.skipped[HIDDEN] += 1
                    continue
                is_member = split_name(path + name) is not None
                try:
                    status = entry.stat()
                except OSError as error:  # of a link that cannot be followed, which may lead to a folder of samples
                    is_gone = isinstance(error, FileNotFoundError)
                    what = "is a link to nothing" if is_gone else f"cannot be read ({error.strerror})"
                    problem = f"{what}: repair it or remove it"
                    if is_member:
                        files.add(path, name, 0, problem)
                    else:
                        files.leave_out(path + name, problem)
                    continue
                if stat.S_ISREG(status.st_mode) and is_member:
                    folder.add(name, status.st_size, mtime_ns=status.st_mtime_ns)
                elif not stat.S_ISDIR(status.st_mode):
                    files.skipped["device, pipe or socket" if is_member else why_skipped(path + name)] += 1
                elif name in CLUTTER_FOLDERS:
                    files.skipped["folder of the system, such as __MACOSX"] += 1
                elif (identity := (status.st_dev, status.st_ino)) in above:  # followed, it would have no end
                    files.skipped["link to a folder around it"] += 1
                else:
                    inner.append((f"{path}{name}/", above | {identity}))
    except OSError as error:
        files.leave_out(path, f"cannot be listed ({error.strerror}): repair it or move it away")
    return files, inner


def _local(above: str, path: str, size: int, _: int) -> FilePayload:
    return FilePayload(above + path, size)
