"""Class folders and splits: what the folders directly in a source mean.

By default folders are parts of keys. With ``class_folders=True`` they are classes, as in torchvision's ``ImageFolder``.
Folders such as ``train`` and ``val`` are data sets of their own.
"""

from __future__ import annotations

import re

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import IMAGE_TYPES, RARE_IMAGE_TYPES, last_part
from wdsdist.errors import SourceError
from wdsdist.packing.sources.listing import Listing
from wdsdist.packing.sources.source import SourceOptions
from wdsdist.shards.tar.naming import LAST_DOT

_SPLIT = re.compile(r"(?:train|training|val|valid|validation|dev|test|testing|eval)(?:[-_]?\d{2,4})?", re.IGNORECASE)


class SplitsError(SourceError):
    """A source holds several splits, such as train and val, each in a folder."""

    splits: tuple[str, ...] = ()


def refuse_splits(root: str, folders: list[str]) -> None:
    """Raise `SplitsError` if the folders of a source are splits: each is a data set."""
    splits = sorted(filter(_SPLIT.fullmatch, folders), key=lambda name: ("train" not in name, name))
    if len(splits) < 2:
        return
    error = SplitsError(
        f"{root} holds the splits {', '.join(splits)}: pack each into a data set of its own by `wdsdist pack {root} "
        f"DEST --splits` or wdsdist.packing.pack_splits, or all into one by class_folders=False"
    )
    error.splits = tuple(splits)
    raise error


def rule_of_classes(listing: Listing, options: SourceOptions) -> str | None:
    """Return the key rule of class folders of images, of which each image is a sample, if none is given."""
    inside = _inside(listing)
    if options.key is not None or not (options.class_folders or options.classes) or not inside.any():
        return options.key
    images = np.array([last_part(one) in (*IMAGE_TYPES, *RARE_IMAGE_TYPES) for one in listing.extensions])
    return LAST_DOT if images[listing.extension_ids][inside].all() else None


def find_classes(
    root: str, listing: Listing, folders: list[str], options: SourceOptions
) -> tuple[tuple[str, ...] | None, Int64s]:
    """Return the classes, and int64: the samples beside the class folders, which are not packed.

    The folders directly under the root are the classes, sorted as by torchvision's ``ImageFolder``, if the options say
    so; else there are no classes (``None``).

    Raises `SourceError` for folders that cannot be classes, and for data beside them.
    """
    if not (options.class_folders or options.classes):
        return None, np.empty(0, np.int64)
    inside = _inside(listing)
    loose = np.unique(listing.samples_of(np.flatnonzero(~inside)))
    data = np.isin(listing.extension_ids, listing.extension_ids[inside]) & ~inside
    if data.any():
        raise SourceError(
            f"{root} holds {listing.path(int(data.argmax()))} beside the class folders: move it into one of them, or "
            f"pack with class_folders=False"
        )
    labels = np.array([one.lower() == "cls" for one in listing.extensions], np.bool_)[listing.extension_ids]
    if labels.any():
        raise SourceError(
            f"{root}/{listing.path(int(labels.argmax()))} gives a class already: pack with class_folders=False"
        )
    filled = top_folders(listing)
    known = options.classes
    if known is None:
        empty = sorted(set(folders) - filled)
        if empty:
            raise SourceError(
                f"class folder {root}/{empty[0]} holds no sample, and its number would shift the classes after it: "
                f"remove it, or pack with class_folders=False"
            )
        return tuple(sorted(filled)), loose
    return (*known, *sorted(filled - set(known))), loose


def top_folders(listing: Listing) -> set[str]:
    """Return the folders directly under the root that hold files, however deep."""
    return {listing.folder(run).partition("/")[0] for run in range(len(listing.folder_files) - 1)} - {""}


def _inside(listing: Listing) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """bool [files]: whether each file lies in a folder."""
    return np.repeat(np.diff(listing.folder_ends) > 0, np.diff(listing.folder_files))
