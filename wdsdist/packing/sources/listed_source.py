"""A source of listed files: which samples can be packed, their sizes and classes, and the part that a shard needs.

The files may lie in a folder, an archive or a store: the source differs only in how it gives them their data.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.listing import Listing
from wdsdist.packing.sources.scan import shown
from wdsdist.packing.sources.source import Contents, LeftOut, Payload, Sample, Samples, Source, SourceOptions
from wdsdist.shards.tar import stored_size

# What torchvision's ImageFolder takes for an image, and what has come into use since.
_IMAGE_KINDS = r"(?:jpe?g|jpe|png|p[bgnp]m|bmp|gif|tiff?|webp|jp2|avif|hei[cf]|jxl)"
_IMAGE = re.compile(rf"(?:.*\.)?{_IMAGE_KINDS}", re.IGNORECASE)
_NUMBERED_IMAGE = re.compile(rf"\d+\.{_IMAGE_KINDS}", re.IGNORECASE)


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

    def notes(self) -> dict[str, Any]:
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


def listed_source(
    kind: str,
    location: str,
    listed: Listed,
    state: str,
    samples: Callable[[Taken], Samples],
    *,
    of_files: bool = False,
) -> Source:
    """Return the source of a folder, an archive, or a remote folder.

    ``state`` tells one state of it from another, beside its listing; ``samples`` gives the listed files their data.
    """

    def load(_: Source) -> Contents:
        return Contents(
            sizes=listed.stored_sizes(),
            take=lambda indices: samples(listed.take(indices)),
            notes=listed.notes(),
            left_out=listed.left_out,
            of_files=of_files,
        )

    return Source(kind, location, listed.fingerprint(state), load)


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
    wrong = _unpackable(listing)
    if wrong and options.on_error == "raise":
        raise SourceError(f"{label}/{wrong[min(wrong)]}")
    classes = _class_folders(label, listing, folders, options.class_folders)
    numbers = None
    if wrong:
        numbers = np.setdiff1d(np.arange(listing.num_samples), np.array(sorted(wrong)))
        if not len(numbers):
            raise SourceError(f"{label} holds no sample that can be packed, for instance: {wrong[min(wrong)]}")
    every = [*left_out, *(LeftOut(shown(listing.key(sample)), wrong[sample]) for sample in sorted(wrong))]
    return Listed(listing, numbers, classes, dict(skipped), tuple(every))


def _unpackable(listing: Listing) -> dict[int, str]:
    """Return the samples that cannot be packed, by number, and why; the reasons start with a path in the source."""
    found: dict[int, str] = {}
    for file, what in sorted(listing.problems.items()):
        found.setdefault(int(listing.samples_of(np.array(file))), what)
    reserved = _of_extensions(listing, lambda extension: extension.startswith("__") and extension.endswith("__"))
    for file in np.flatnonzero(reserved[listing.extension_ids]).tolist() if reserved.any() else ():
        why = f"{listing.path(file)} has the name of an entry that readers add to samples: rename it"
        found.setdefault(int(listing.samples_of(np.array(file))), why)
    for first, second in _same_but_for_case(listing):
        why = (
            f"{listing.path(first)} and {listing.path(second)} differ in case only: readers take both for the same "
            f"member, so rename one"
        )
        found.setdefault(int(listing.samples_of(np.array(first))), why)
    return found


def _class_folders(root: str, listing: Listing, folders: list[str], wanted: bool | None) -> tuple[str, ...] | None:
    """Return the folders that are classes, sorted as torchvision's ``ImageFolder`` sorts them, or ``None``.

    Args:
        root: what was listed, for messages.
        listing: its samples.
        folders: the folders directly under the root.
        wanted: whether they are classes; ``None`` says so where it looks so.

    Raises `SourceError` where they are wanted but cannot be classes, or would not mean what it seems.
    """
    if wanted is False:
        return None
    loose, labelled = _loose(listing), _labelled(listing)
    if wanted is None and (
        loose is not None or labelled is not None or len(folders) < 2 or not _all_have_an_image(listing)
    ):
        return None
    off = "turn class folders off with class_folders=False (--no-class-folders)"
    alike = _images_told_apart_by_number(listing)
    if alike:
        raise SourceError(
            f"{root} holds {alike[0]} and {alike[1]}: the key ends at the first dot, so they would be "
            f"one sample. Rename them so that only their extension has a dot, or {off} if they do belong together"
        )
    if loose is not None:
        raise SourceError(f"{root} holds {loose} beside the class folders: move it into one of them, or {off}")
    if labelled is not None:
        raise SourceError(f"{root}/{labelled} gives a class already: remove it, or {off}")
    empty = sorted(set(folders) - set(_top_folders(listing)))
    if empty:
        raise SourceError(
            f"class folder {root}/{empty[0]} holds no sample, and a number for it would shift those of the classes "
            f"after it: remove it, or {off}"
        )
    return tuple(sorted(folders))


def _of_extensions(listing: Listing, holds: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """bool [extensions]: for which of them, in lower case, something holds."""
    return np.array([bool(holds(extension.lower())) for extension in listing.extensions], np.bool_)


def _same_but_for_case(listing: Listing) -> list[tuple[int, int]]:
    """Return pairs of files in one sample whose extensions differ in case only."""
    lower: dict[str, int] = {}
    numbers = np.array([lower.setdefault(extension.lower(), len(lower)) for extension in listing.extensions])
    if len(lower) == len(numbers):
        return []
    samples = np.repeat(np.arange(listing.num_samples), np.diff(listing.sample_files))
    members = samples * len(lower) + numbers[listing.extension_ids]
    order = np.argsort(members, kind="stable")
    alike = np.flatnonzero(members[order[1:]] == members[order[:-1]])
    return [(int(order[place]), int(order[place + 1])) for place in alike.tolist()]


def _top_folders(listing: Listing) -> Iterator[str]:
    """Yield the outermost folder of each run of files; empty for files that lie in none."""
    return (listing.folder(run).partition("/")[0] for run in range(len(listing.folder_files) - 1))


def _loose(listing: Listing) -> str | None:
    for run, top in enumerate(_top_folders(listing)):
        if not top:
            return listing.path(int(listing.folder_files[run]))
    return None


def _labelled(listing: Listing) -> str | None:
    labels = _of_extensions(listing, lambda extension: extension == "cls")
    return listing.path(int(labels[listing.extension_ids].argmax())) if labels.any() else None


def _all_have_an_image(listing: Listing) -> bool:
    images = _of_extensions(listing, _IMAGE.fullmatch)
    if images.all():
        return True
    return bool(np.logical_or.reduceat(images[listing.extension_ids], listing.sample_files[:-1]).all())


def _images_told_apart_by_number(listing: Listing) -> list[str]:
    """Return two images such as ``a.0.jpg`` and ``a.1.jpg``: names with dots, which are cut at the first one."""
    numbered = _of_extensions(listing, _NUMBERED_IMAGE.fullmatch)
    if not numbered.any():
        return []
    of_file: Int64s = numbered[listing.extension_ids].astype(np.int64)
    samples = np.flatnonzero(np.add.reduceat(of_file, listing.sample_files[:-1]) > 1)
    if not len(samples):
        return []
    start, stop = listing.sample_files[samples[0] : samples[0] + 2]
    return [listing.path(int(start) + number) for number in np.flatnonzero(of_file[start:stop])[:2].tolist()]
