"""Samples of a listing, whatever it lists: sizes, classes, and the parts of it that one shard needs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.base import LeftOut, Payload, Sample
from wdsdist.packing.sources.grouping import shown
from wdsdist.packing.sources.kinds import SourceOptions
from wdsdist.packing.sources.listing import Listing
from wdsdist.packing.sources.rules import class_folders, unpackable
from wdsdist.shards.tar import stored_size


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
    places: list[int] | None
    """Where an archive holds each file."""
    labels: list[int] | None
    """What each sample's ``cls`` is to hold."""

    def __len__(self) -> int:
        return len(self.counts)

    def samples(self, payload: Callable[[str, int, int], Payload]) -> Iterator[Sample]:
        """Yield the samples; ``payload`` gives a file's data for its path, its size and its place (0 in a folder)."""
        sizes = self.sizes
        files = zip(self.names.split("\n"), sizes, self.places or [0] * len(sizes), strict=True)
        for number, (place, count) in enumerate(zip(self.in_folders, self.counts, strict=True)):
            folder = self.folders[place]
            members: list[tuple[str, Payload]] = []
            for _ in range(count):
                name, size, where = next(files)
                base, _, extension = name.partition(".")
                members.append((extension, payload(folder + name, size, where)))
            if self.labels is not None:
                members.append(("cls", b"%d" % self.labels[number]))
                members.sort(key=lambda member: member[0])
            yield folder + base, members


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """All samples of a listing that can be packed, in the order of their first files' paths, byte by byte."""

    listing: Listing
    numbers: Int64s | None
    """int64: the samples of the listing that can be packed; all where there is none."""
    classes: tuple[str, ...] | None
    """The class folders in the order of their numbers, or none."""
    skipped: dict[str, int]
    """Entries that belong to no sample, counted by what they are."""
    left_out: tuple[LeftOut, ...] = ()

    def __len__(self) -> int:
        return self.listing.num_samples if self.numbers is None else len(self.numbers)

    def fingerprint(self, state: str) -> str:
        """Return a digest of all paths and sizes, and of what else ``state`` tells of the source."""
        digest = hashlib.sha256(f"{state}\0{self.classes}\0{self.listing.digest}\n".encode())
        for one in self.left_out:
            digest.update(f"{one.key}\0{one.reason}\n".encode())
        return digest.hexdigest()

    def extra(self) -> dict[str, Any]:
        """Return the notes for ``index.json``."""
        classes = {"classes": list(self.classes)} if self.classes is not None else {}
        skipped = {"skipped": dict(sorted(self.skipped.items()))} if self.skipped else {}
        return {**classes, **skipped}

    def stored_sizes(self) -> Int64s:
        """int64 [samples]: bytes that each sample takes in a tar."""
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

    def take(self, indices: Int64s) -> Taken:
        """Return some of the samples, by their numbers."""
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
        return Taken(
            folders,
            in_folders.tolist(),
            counts.tolist(),
            names.decode(),
            listing.sizes[files].tolist(),
            None if listing.places is None else listing.places[files].tolist(),
            None if labels is None else [labels[place] for place in in_folders.tolist()],
        )


class OfListing:
    """What sources have in common whose samples are those of a listing; where the data comes from is their own."""

    __slots__ = ()

    listed: Listed

    @property
    def has_exact_sizes(self) -> bool:
        return True

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        return self.listed.left_out

    def __len__(self) -> int:
        return len(self.listed)

    def extra(self) -> dict[str, Any]:
        return self.listed.extra()

    def stored_sizes(self) -> Int64s:
        return self.listed.stored_sizes()


def packable(
    label: str,
    listing: Listing,
    folders: list[str],
    options: SourceOptions,
    *,
    skipped: Counter[str],
    left_out: list[LeftOut],
) -> Listed:
    """Return the samples of a listing.

    Args:
        label: what was listed, for messages.
        listing: its files.
        folders: the folders directly under its root.
        options: says whether these are classes, and what becomes of samples that cannot be packed.
        skipped: entries that belong to no sample, counted by what they are.
        left_out: what is known already to be left out.

    Raises `SourceError` where there is no sample, for the first that cannot be packed unless such are left out, and
    for folders that cannot be the classes that they are to be.
    """
    if not listing.num_samples:
        counts = ", ".join(f"{count:,} {what}" for what, count in skipped.items())
        raise SourceError(
            f"{label} holds no file that can be a sample{f' (skipped: {counts})' if counts else ''}: is it the right "
            f"one?"
        )
    wrong = unpackable(listing)
    if wrong and options.on_error == "raise":
        raise SourceError(f"{label}/{wrong[min(wrong)]}")
    classes = class_folders(label, listing, folders, options.class_folders)
    numbers = None
    if wrong:
        numbers = np.setdiff1d(np.arange(listing.num_samples), np.array(sorted(wrong)))
        if not len(numbers):
            raise SourceError(f"{label} holds no sample that can be packed, for instance: {wrong[min(wrong)]}")
    every = [*left_out, *(LeftOut(shown(listing.key(sample)), wrong[sample]) for sample in sorted(wrong))]
    return Listed(listing, numbers, classes, dict(skipped), tuple(every))
