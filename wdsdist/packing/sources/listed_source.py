"""A source of listed files: which samples can be packed, their sizes and classes, and the part that a shard needs.

The files may lie in a folder, an archive or a store: the source differs only in how it gives them their data.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.payloads import Payload, Sample
from wdsdist.packing.sources.candidate import SourceOptions, shown
from wdsdist.packing.sources.class_folders import (
    are_image_folders,
    find_classes,
    of_extensions,
    refuse_splits,
    warn_of_several_images,
    warn_of_tables,
)
from wdsdist.packing.sources.listing import Listing, cut
from wdsdist.packing.sources.source import Contents, LeftOut, Source
from wdsdist.shards import tar


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


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """All samples of a listing that can be packed, in the order of their first files' paths, byte by byte."""

    label: str
    """What was listed, for messages."""
    listing: Listing
    numbers: Int64s | None
    """int64: the samples of the listing that can be packed; all where there is none."""
    classes: tuple[str, ...] | None
    """The class folders in the order of their numbers, or none."""
    skipped: dict[str, int]
    """Entries that belong to no sample, counted by what they are."""
    left_out: tuple[LeftOut, ...]

    def source(
        self, kind: str, state: str, samples: Callable[[Taken], Iterable[Sample]], *, of_files: bool = False
    ) -> Source:
        """Return the source of a folder, an archive, or a remote folder.

        ``state`` tells one state of it from another, beside its listing; ``samples`` gives the listed files their data.
        """
        digest = hashlib.sha256(f"{state}\0{self.classes}\0{self.listing.digest}\n".encode())
        for one in self.left_out:
            digest.update(f"{one.key}\0{one.reason}\n".encode())

        def load(_: Source) -> Contents:
            contents = Contents(
                sizes=self.stored_sizes(),
                take=lambda indices: samples(self.take(indices)),
                notes=self._notes(),
                left_out=self.left_out,
                of_files=of_files,
            )
            return contents if self.numbers is None else contents.only(self.numbers)

        return Source(kind, self.label, digest.hexdigest(), load)

    def _notes(self) -> dict[str, Any]:
        classes = {"classes": list(self.classes)} if self.classes is not None else {}
        skipped = {"skipped": dict(sorted(self.skipped.items()))} if self.skipped else {}
        rule = self.listing.key_rule
        return {**classes, **skipped, **({} if rule == tar.FIRST_DOT else {"source_key_rule": rule})}

    def stored_sizes(self) -> Int64s:
        """int64: bytes that each sample of the listing takes in a tar."""
        stored = self.listing.stored_sizes()
        if self.classes is not None:
            plain = 2 * 512  # of a header and a number of a few digits
            stored += plain
            odd = np.unique(self.listing.samples_of(self.listing.odd_files(spare=len(".cls"))))
            if self.numbers is not None:
                odd = np.intersect1d(odd, self.numbers)  # the names of others may be no text
            for sample in odd.tolist():
                stored[sample] += tar.stored_size(f"{self.listing.key(sample)}.cls", 1) - plain
        return stored

    def take(self, samples: Int64s) -> Taken:
        """Return some of the samples, by their numbers in the listing."""
        listing = self.listing
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
        return Taken(
            folders,
            in_folders.tolist(),
            counts.tolist(),
            names.decode(),
            listing.sizes[files].tolist(),
            listing.places[files].tolist(),
            None if labels is None else [labels[place] for place in in_folders.tolist()],
            None if listing.dots is None else listing.dots[files].tolist(),
        )


def packable(
    label: str,
    listing: Listing,
    folders: list[str],
    options: SourceOptions,
    *,
    skipped: Counter[str],
    left_out: list[LeftOut],
) -> Listed:
    """Return the samples of a listing, whose root holds the ``folders``; ``skipped`` and ``left_out`` are known before.

    Raises `SourceError` where there is no sample, for the first that cannot be packed unless such are left out, and
    for folders that cannot be the classes that they are to be.
    """
    if not listing.num_samples:
        counts = ", ".join(f"{count:,} {what}" for what, count in skipped.items())
        raise SourceError(
            f"{label} holds no file that can be a sample{f' (skipped: {counts})' if counts else ''}: is it the right "
            f"one?"
        )
    if options.class_folders is None and options.split is None:
        refuse_splits(label, folders)
    listing = _by_rule(label, listing, folders, options)
    wrong = _unpackable(listing)
    if wrong and options.on_error == "raise":
        raise SourceError(f"{label}/{wrong[min(wrong)]}")
    classes = find_classes(label, listing, folders, options)
    warn_of_several_images(label, listing)
    warn_of_tables(label, listing, classes.stray)
    numbers = None
    if wrong or len(classes.stray):
        numbers = np.setdiff1d(np.arange(listing.num_samples), np.append(classes.stray, sorted(wrong)).astype(np.int64))
        if not len(numbers):
            raise SourceError(f"{label} holds no sample that can be packed, for instance: {wrong[min(wrong)]}")
    if len(classes.stray):
        files = listing.sample_files[classes.stray]
        count = int((listing.sample_files[classes.stray + 1] - files).sum())
        skipped = skipped + Counter(
            {f"file beside the class folders, such as {shown(listing.path(int(files[0])))}": count}
        )
    every = [*left_out, *(LeftOut(shown(listing.key(sample)), wrong[sample]) for sample in sorted(wrong))]
    return Listed(label, listing, numbers, classes.names, dict(skipped), tuple(every))


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
