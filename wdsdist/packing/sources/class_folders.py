"""Class folders and splits: what the folders directly in a source mean.

By default folders are parts of keys. With ``class_folders=True`` they are classes, as in torchvision's ``ImageFolder``.
Folders such as ``train`` and ``val`` are data sets of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import IMAGE_TYPES, RARE_IMAGE_TYPES
from wdsdist.errors import SourceError
from wdsdist.packing.options import Options
from wdsdist.packing.sources.listing import Folder, Listing
from wdsdist.shards.tar.naming import FIRST_DOT, LAST_DOT

_SPLIT = re.compile(r"(?:train|training|val|valid|validation|dev|test|testing|eval)(?:[-_]?\d{2,4})?", re.IGNORECASE)
_IMAGE = re.compile(rb"\.(?:%s)$" % "|".join((*IMAGE_TYPES, *RARE_IMAGE_TYPES)).encode(), re.IGNORECASE)
_ONE_DOT = re.compile(rb"^[^.]*\.[^.]*$")


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


def key_rule(folders: Mapping[bytes, Folder], root: bytes, options: Options) -> str | None:
    """Return the key rule that is given, or else the rule by which each image in class folders is a sample."""
    if options.key is None and options.has_classes:
        inside = [folder for path, folder in folders.items() if path.startswith(root) and path != root]
        if all(folder.has_only(_IMAGE) for folder in inside) and not all(
            folder.has_only(_ONE_DOT) for folder in inside
        ):
            return LAST_DOT
        return FIRST_DOT if all(folder.has_only(_IMAGE) for folder in inside) else None
    return options.key


def find_classes(
    root: str, listing: Listing, folders: list[str], options: Options
) -> tuple[tuple[str, ...] | None, Int64s]:
    """Return the classes, and int64: the samples beside the class folders, which are not packed.

    If the options say so, the ``folders`` directly under the root are the classes, sorted as by torchvision's
    ``ImageFolder``; else there are no classes (``None``).

    Raises `SourceError` for folders that cannot be classes, and for data beside them.
    """
    if not options.has_classes:
        return None, np.empty(0, np.int64)
    inside = np.repeat(np.diff(listing.folder_ends) > 0, np.diff(listing.folder_files))
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
    filled = {listing.folder(number).partition("/")[0] for number in range(len(listing.folder_files) - 1)} - {""}
    if options.classes is None and (empty := sorted(set(folders) - filled)):
        raise SourceError(
            f"class folder {root}/{empty[0]} holds no sample, and its number would shift the classes after it: "
            f"remove it, or pack with class_folders=False"
        )
    known = options.classes or ()
    return (*known, *sorted(filled - set(known))), loose
