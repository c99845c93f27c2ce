"""Which of the listed samples cannot be packed, and whether their folders are classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.listing import Listing

# What torchvision's ImageFolder takes for an image, and what has come into use since.
_IMAGE_KINDS = r"(?:jpe?g|jpe|png|p[bgnp]m|bmp|gif|tiff?|webp|jp2|avif|hei[cf]|jxl)"
_IMAGE = re.compile(rf"(?:.*\.)?{_IMAGE_KINDS}", re.IGNORECASE)
_NUMBERED_IMAGE = re.compile(rf"\d+\.{_IMAGE_KINDS}", re.IGNORECASE)


def unpackable(listing: Listing) -> dict[int, str]:
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


def class_folders(root: str, listing: Listing, folders: list[str], wanted: bool | None) -> tuple[str, ...] | None:
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
