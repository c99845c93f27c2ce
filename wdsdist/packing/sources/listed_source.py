"""A source of listed files: which samples can be packed, their sizes and classes, and the part that a shard needs.

The files may lie in a folder, an archive or a store: the source differs only in how it gives them their data.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import counted
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.payloads import Payload, Sample
from wdsdist.packing.sources.class_folders import (
    are_image_folders,
    find_classes,
    of_extensions,
    refuse_parallel,
    refuse_splits,
    warn_of_several_images,
    warn_of_tables,
)
from wdsdist.packing.sources.listing import Folder, Listing, cut, shown
from wdsdist.packing.sources.nested_tars import holds_tar, refuse_records
from wdsdist.packing.sources.similar_paths import difference, folded
from wdsdist.packing.sources.source import Contents, LeftOut, OnError, Source, SourceOptions
from wdsdist.packing.sources.table import is_table
from wdsdist.shards import tar
from wdsdist.shards.tar import is_text

_MOST_PARTS = 50_000
"""Samples that are looked at for others of like names."""

_LEFTOVERS = frozenset(("part", "partial", "crdownload", "download", "aria2", "tmp", "temp", "bak", "swp"))
"""What the names of files end with that programs leave behind."""

_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class Taken:
    """Some samples of a listing: small, for it travels to the process that writes them."""

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
    places: list[int]
    """Where an archive holds each file."""
    labels: list[int] | None
    """What each sample's ``cls`` is to hold."""
    dots: list[int] | None = None
    """The place of the dot in each name that ends its key; by default the first."""

    @classmethod
    def of(cls, listing: Listing, samples: Int64s, classes: tuple[str, ...] | None) -> Taken:
        """Return some samples of a listing, by their numbers; the outermost folder of each is one of the classes."""
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
        if classes is not None:
            numbers = {name: number for number, name in enumerate(classes)}
            of_folders = [numbers[folder.partition("/")[0]] for folder in folders]
            labels = [of_folders[place] for place in in_folders.tolist()]
        return cls(
            folders,
            in_folders.tolist(),
            counts.tolist(),
            names.decode(),
            listing.sizes[files].tolist(),
            listing.places[files].tolist(),
            labels,
            None if listing.dots is None else listing.dots[files].tolist(),
        )

    def samples(self, payload: Callable[[str, int, int], Payload]) -> Iterator[Sample]:
        """Yield the samples; ``payload`` gives a file's data for its path, its size and its place (0 in a folder)."""
        sizes = self.sizes
        names = self.names.split("\n")
        dots = self.dots or [name.find(".") for name in names]
        files = zip(names, sizes, self.places, dots, strict=True)
        for number, (place, count) in enumerate(zip(self.in_folders, self.counts, strict=True)):
            folder = self.folders[place]
            members: list[tuple[str, Payload]] = []
            for _ in range(count):
                name, size, where, dot = next(files)
                members.append((name[dot + 1 :], payload(folder + name, size, where)))
            key = folder + name[:dot]
            if self.labels is not None:
                members.append(("cls", b"%d" % self.labels[number]))
                members.sort(key=lambda member: member[0])
            yield key if self.dots is None else tar.escaped(key), members


class FileWalk:
    """Listing of all files of a folder, an archive or a store: skipped entries, samples left out, nested tars.

    Args:
        label: names what is listed in messages.
        on_error: what becomes of a sample that cannot be packed.
    """

    of_files = False
    """Whether samples are local files, which any thread can read at any time."""

    def __init__(self, label: str, on_error: OnError) -> None:
        self.label = label
        self.on_error = on_error
        self.skipped: Counter[str] = Counter()
        """Number of skipped entries, which belong to no sample, by reason."""
        self.left_out: list[LeftOut] = []
        """What is known to be left out before samples are looked at."""
        self.tars: list[str] = []
        """Paths of all tars, and of parts of tars."""

    def add_file(
        self, folder: Folder, path: bytes, name: bytes, size: int, problem: str, *, mtime_ns: int = 0, place: int = 0
    ) -> None:
        """Add a file to a folder, given by its path; ``problem`` is why its sample cannot be packed, if it cannot.

        Raises `SourceError` for what cannot be packed, or notes that, as ``on_error`` asks.
        """
        full = path + name
        if holds_tar(os.fsdecode(name)):
            self.tars.append(shown(full))
        if not full.isascii() and not is_text(os.fsdecode(full)):
            problem = "has a name that is not UTF-8, which a tar asks for: rename it"
        if problem:
            problem = f"{shown(full)} {problem}"
            if self.on_error == "raise":
                raise SourceError(f"{shown(self.label)}/{problem}")
            folder.problems[name] = problem
        folder.add(name, size, mtime_ns=mtime_ns, place=place)

    def source_of(
        self,
        kind: str,
        listing: Listing,
        folders: list[str],
        options: SourceOptions,
        samples: Callable[[Taken], Iterable[Sample]],
        *,
        state: str,
    ) -> Source:
        """Return the source of a listing, whose root holds the ``folders``.

        ``state`` tells one state of it from another, beside the listing; ``samples`` gives the listed files their data.

        Raises `SourceError` where there is no sample, for the first that cannot be packed unless such are left out, and
        for folders that cannot be the classes that they are to be.
        """
        label, skipped = self.label, self.skipped
        if not listing.num_samples:
            counts = ", ".join(f"{count:,} {what}" for what, count in skipped.items())
            raise SourceError(
                f"{label} holds no file that can be a sample{f' (skipped: {counts})' if counts else ''}: is it the "
                f"right one?"
            )
        refuse_records(label, listing)
        if options.class_folders is None and options.split is None:
            refuse_splits(label, folders)
        if options.kind is None:
            _refuse_tables(kind, label, listing)
        listing = _by_rule(label, listing, folders, options)
        wrong = _unpackable(listing)
        if wrong and options.on_error == "raise":
            raise SourceError(f"{label}/{wrong[min(wrong)]}")
        refuse_parallel(label, listing, options)
        classes, stray = find_classes(label, listing, folders, options)
        _warn_of_names(label, listing, classes, stray)
        numbers = None
        if wrong or len(stray):
            numbers = np.setdiff1d(np.arange(listing.num_samples), np.append(stray, sorted(wrong)).astype(np.int64))
            if not len(numbers):
                raise SourceError(f"{label} holds no sample that can be packed, for instance: {wrong[min(wrong)]}")
        if len(stray):
            files = listing.sample_files[stray]
            count = int((listing.sample_files[stray + 1] - files).sum())
            skipped = skipped + Counter(
                {f"file beside the class folders, such as {shown(listing.path(int(files[0])))}": count}
            )
        every = (*self.left_out, *(LeftOut(shown(listing.key(sample)), wrong[sample]) for sample in sorted(wrong)))
        digest = _digest(f"{state}\0{classes}\0{listing.digest}\n", every)
        notes: dict[str, Any] = {} if classes is None else {"classes": list(classes)}
        notes |= {"skipped": dict(sorted(skipped.items()))} if skipped else {}
        notes |= {} if listing.key_rule == tar.FIRST_DOT else {"source_key_rule": listing.key_rule}

        def load(_: Source) -> Contents:
            contents = Contents(
                sizes=_stored_sizes(listing, numbers, has_classes=classes is not None),
                take=lambda indices: samples(Taken.of(listing, indices, classes)),
                notes=notes,
                left_out=every,
                origins=lambda: (("", key) for key in listing.keys(np.arange(listing.num_samples))),
                of_files=self.of_files,
            )
            return contents if numbers is None else contents.only(numbers)

        return Source(kind, label, digest, load)


def _digest(state: str, left_out: Iterable[LeftOut]) -> str:
    given = (state, *(f"{one.key}\0{one.reason}\n" for one in left_out))
    return hashlib.sha256("".join(given).encode()).hexdigest()


def _refuse_tables(kind: str, label: str, listing: Listing) -> None:
    """Raise `SourceError` for a source of nothing but tables and notes, as a copy of a repository of data has them."""
    tables = of_extensions(listing, lambda extension: is_table(f"a.{extension}"))
    if tables.any() and all(is_table(f"a.{extension}", or_note=True) for extension in listing.extensions):
        files = np.flatnonzero(tables[listing.extension_ids])
        path = listing.path(int(files[0]))
        todo = f"pack those of one data set, as in '{label}/{Path(path).with_stem('*')}'"
        raise SourceError(
            f"{label} holds {counted(len(files), 'table')}, such as {path}, beside notes or in folders of their own: "
            f"{todo if kind == 'folder' else 'unpack it'}; or, if each file is a sample, say so by --from {kind}"
        )


def _stored_sizes(listing: Listing, numbers: Int64s | None, *, has_classes: bool) -> Int64s:
    """int64: bytes that each sample of the listing takes in a tar; exact for those with the given numbers, or all."""
    stored = listing.stored_sizes()
    if has_classes:
        plain = 2 * 512  # of a header and a number of a few digits
        stored += plain
        odd = np.unique(listing.samples_of(listing.odd))
        if numbers is not None:
            odd = np.intersect1d(odd, numbers)  # the names of others may be no text
        for sample in odd.tolist():
            stored[sample] += tar.stored_size(f"{listing.key(sample)}.cls", 1) - plain
    return stored


def _by_rule(label: str, listing: Listing, folders: list[str], options: SourceOptions) -> Listing:
    """Cut the names of a listing by the key rule that is asked for, or that they show."""
    rule = options.key
    try:
        if rule == tar.AUTO and are_image_folders(listing, folders, options):
            rule = tar.FIRST_DOT if all(map(tar.is_cut_alike, listing.extensions)) else tar.LAST_DOT
        elif rule == tar.AUTO:
            found = tar.glance(listing.extensions, listing.extension_ids, listing.sample_files, listing.path)
            rule = tar.decide(tar.observe(listing.compound_groups()) if found is None else found, label)
        return listing if rule == tar.FIRST_DOT else cut(listing, rule)
    except (ArgumentError, ValueError) as error:
        raise SourceError(str(error)) from None


def _warn_of_names(label: str, listing: Listing, classes: tuple[str, ...] | None, stray: Int64s) -> None:
    """Warn of what the names of files show that is easily overlooked; ``stray`` lies beside class folders."""
    warn_of_several_images(label, listing)
    warn_of_tables(label, listing, stray)
    _warn_of_leftovers(label, listing)
    _warn_of_torn_samples(label, listing, classes)


def _warn_of_leftovers(label: str, listing: Listing) -> None:
    """Warn of what looks like unfinished downloads or copies of editors, which are fields of samples by their names."""
    is_left = of_extensions(listing, lambda one: one.rpartition(".")[2] in _LEFTOVERS or one.endswith("~"))
    if is_left.any():
        files = is_left[listing.extension_ids]
        _log.warning(
            "%s holds files that look like unfinished downloads or copies of an editor, such as %s (%d in all), which "
            "are packed: move them away where they are none of the data",
            label, shown(listing.path(int(files.argmax()))), int(files.sum()),
        )  # fmt: skip


def _warn_of_torn_samples(label: str, listing: Listing, classes: tuple[str, ...] | None) -> None:
    """Warn of files that look like one sample, but have keys that differ, such as ``IMG_1.jpg`` and ``img_1.txt``.

    Of class folders, each image is a sample.
    """
    kinds = len({extension.lower() for extension in listing.extensions}) if classes is None else 1
    parts = np.flatnonzero(np.diff(listing.sample_files) < kinds)[:_MOST_PARTS] if kinds > 1 else np.zeros(0, np.int64)
    seen: dict[str, tuple[int, str]] = {}
    torn = []
    for sample, key in zip(parts.tolist(), listing.keys(parts), strict=True):
        other, others_key = seen.setdefault(folded(key), (sample, key))
        if other != sample and not _extensions(listing, sample) & _extensions(listing, other):
            torn.append((other, sample, difference(others_key, key)))
    if torn:
        one, other, what = torn[0]
        _log.warning(
            "%s holds %s and %s, which are two samples, for their names differ in %s: rename one where they belong "
            "together (pairs of this kind: %d)",
            label, shown(listing.path(int(listing.sample_files[one]))),
            shown(listing.path(int(listing.sample_files[other]))), what, len(torn),
        )  # fmt: skip


def _extensions(listing: Listing, sample: int) -> set[str]:
    ids = listing.extension_ids[slice(*listing.sample_files[sample : sample + 2].tolist())]
    return {listing.extensions[number].lower() for number in ids.tolist()}


def _unpackable(listing: Listing) -> dict[int, str]:
    """Return the samples that cannot be packed, by number, and why; the reasons start with a path in the source."""
    found: dict[int, str] = {}
    for file, what in sorted(listing.problems.items()):
        found.setdefault(int(listing.samples_of(np.array(file))), what)
    reserved = of_extensions(listing, lambda extension: extension.startswith("__") and extension.endswith("__"))
    for file in np.flatnonzero(reserved[listing.extension_ids]).tolist() if reserved.any() else ():
        why = f"{listing.path(file)} has the name of an entry that readers add to samples: rename it"
        found.setdefault(int(listing.samples_of(np.array(file))), why)
    lower: dict[str, int] = {}
    kinds = [lower.setdefault(extension.lower(), len(lower)) for extension in listing.extensions]
    for first, second in listing.repeats(kinds) if len(lower) < len(kinds) else ():
        why = (
            f"{listing.path(first)} and {listing.path(second)} differ in case only: readers take both for the same "
            f"member, so rename one"
        )
        found.setdefault(int(listing.samples_of(np.array(first))), why)
    return found
