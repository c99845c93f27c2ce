"""Class folders: which folders of a listing are the classes of the samples below them, and which are splits."""

from __future__ import annotations

import logging
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_path
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.sources.listing import FOLDER, LINK, Listing, is_passed_over
from wdsdist.packing.sources.source import Candidate, SourceOptions
from wdsdist.shards import manifest as manifests
from wdsdist.shards.open import open as open_shards

# What torchvision's ImageFolder takes for an image, and what has come into use since.
_IMAGE = re.compile(r"(?:.*\.)?(jpe?g|jpe|png|p[bgnp]m|bmp|gif|tiff?|webp|jp2|avif|hei[cf]|jxl)", re.IGNORECASE)
_SPLIT = re.compile(r"(?:train|training|val|valid|validation|dev|test|testing|eval)(?:[-_]?\d{2,4})?", re.IGNORECASE)
_TABLES = frozenset({"csv", "tsv", "jsonl", "ndjson", "parquet", "arrow"})
_PICTURES = re.compile(r"(?:jpe?g|png)?im(?:a)?ge?s?|pictures?|photos?|frames?|rgb|colou?r|inputs?", re.IGNORECASE)
_MASKS = re.compile(
    r"masks?|labels?|annotations?|seg(?:mentations?)?(?:class|object)?|gt|ground[-_]?truths?|depths?|targets?",
    re.IGNORECASE,
)
_FEW = 10
_PROBES, _MOST_PARTS = 16, 8  # samples and folders that are compared
_OFF = "turn class folders off with class_folders=False (--no-class-folders)"

_log = logging.getLogger("wdsdist")


class SplitsError(SourceError):
    """A source holds several splits, such as train and val, each in a folder."""

    splits: tuple[str, ...] = ()


def refuse_splits(root: str, folders: list[str]) -> None:
    """Raise `SplitsError` where the folders of a source are splits: they are data sets, and no classes."""
    splits = sorted((name for name in folders if _SPLIT.fullmatch(name)), key=lambda name: ("train" not in name, name))
    if len(splits) < 2:
        return
    first, second = splits[:2]
    error = SplitsError(
        f"{root} holds the splits {', '.join(splits)}: pack each one into a data set of its own, by `wdsdist pack "
        f"{root} DEST/{first} --split {first}` and `wdsdist pack {root} DEST/{second} --split {second} --classes-from "
        f"DEST/{first}`, or all of them by --splits. If they are no splits, --class-folders makes classes of them, "
        f"--no-class-folders one data set without"
    )
    error.splits = tuple(splits)
    raise error


def refuse_parallel(root: str, listing: Listing, options: SourceOptions) -> None:
    """Raise `SourceError` where folders hold parts of samples, such as images and their masks, unless told otherwise.

    It is told by file names that are in both, and by the names of the folders, or other types of files in each: of two
    folders of images, names may repeat because they are classes.
    """
    bounds: dict[str, tuple[int, int]] = {}
    for top, (start, stop) in zip(_top_folders(listing), pairwise(listing.folder_files.tolist()), strict=True):
        bounds[top] = bounds.get(top, (start, stop))[0], stop
    bounds.pop("", None)
    is_told = options.class_folders is not None or options.classes is not None
    if is_told or not 2 <= len(bounds) <= _MOST_PARTS:
        return
    images = of_extensions(listing, _IMAGE.fullmatch)
    kinds = {top: set(np.unique(listing.extension_ids[slice(*files)]).tolist()) for top, files in bounds.items()}
    for one, other in permutations(bounds, 2):
        are_alike = kinds[one] & kinds[other] or all(images[[*kinds[one], *kinds[other]]])
        are_named = _PICTURES.fullmatch(one) and _MASKS.fullmatch(other)
        if are_alike and not are_named:
            continue
        pair = _same_sample(listing, (one, bounds[one]), (other, bounds[other]))
        if pair is not None:
            first, second = pair
            raise SourceError(
                f"{root} holds parts of samples in folders of their own, such as {first} and {second}: each file would "
                f"be a sample. Write a table beside the folders that has a row for each sample, with its paths in "
                f"columns such as image and mask, and pack that table. If they do not belong together, "
                f"--no-class-folders packs each file, --class-folders makes classes of the folders (class_folders=)"
            )


def _same_sample(
    listing: Listing, one: tuple[str, tuple[int, int]], other: tuple[str, tuple[int, int]]
) -> tuple[str, str] | None:
    """Return two files of one name in two folders, each given with its files; ``None`` unless such names are usual."""
    by_size = sorted((one, other), key=lambda folder: folder[1][1] - folder[1][0])
    (few, samples), (many, others) = (
        (f"{top}/", range(int(listing.samples_of(np.array(start))), int(listing.samples_of(np.array(stop - 1))) + 1))
        for top, (start, stop) in by_size
    )
    if len(samples) < 2:  # one name says little
        return None
    pairs = []
    for sample in samples[:: -(-len(samples) // _PROBES)]:
        key = many + listing.key(sample)[len(few) :]
        place = bisect_left(others, f"{key}.", key=lambda number: f"{listing.key(number)}.")
        if place == len(others) or listing.key(others[place]) != key:
            return None
        pairs.append((sample, others[place]))
    first, second = sorted(listing.path(int(listing.sample_files[sample])) for sample in pairs[0])
    return first, second


def known_classes(location: str | os.PathLike[str] | None) -> tuple[str, ...] | None:
    """Return the classes of a packed data set, or of a local folder that holds a folder for each; ``None`` of none.

    Raises `ArgumentError` where there are none, and what `wdsdist.open` raises.
    """
    if location is None:
        return None
    check_path("classes_from", location)
    where = storage.normalise(location)
    entries = Candidate(location).entries
    if entries is not None and not entries.holds(manifests.FILE_NAME):
        names = [name for name, kind in entries if kind & ~LINK == FOLDER and not is_passed_over(name)]
        found = sorted(map(os.fsdecode, names))
    else:
        found = open_shards(where).extra.get("classes", [])
    if not found:
        raise ArgumentError(
            f"classes_from is {storage.shown(where)}, which has no classes: name what was packed with them"
        )
    return tuple(found)


def are_image_folders(listing: Listing, folders: list[str], options: SourceOptions) -> bool:
    """Return whether a folder has the layout of torchvision's ImageFolder: a subfolder for each class, with its images.

    Where class folders are asked for, an image beside them is refused later, by name.
    """
    if options.class_folders is False or not (len(folders) > 1 or options.class_folders or options.classes):
        return False
    inside = _inside(listing)
    are_images = of_extensions(listing, _IMAGE.fullmatch)[listing.extension_ids]
    asked = options.class_folders or options.classes
    return bool(inside.any() and are_images[inside].all() and (asked or not are_images[~inside].any()))


def find_classes(
    root: str, listing: Listing, folders: list[str], options: SourceOptions
) -> tuple[tuple[str, ...] | None, Int64s]:
    """Return which of the folders directly under a root are classes, sorted as by torchvision's ``ImageFolder``.

    ``None`` where they are none. With them, int64: the samples of files beside the folders, which are not packed.

    Where it looks so but something speaks against it, a warning names that. Raises `SourceError` where they are to be
    classes but cannot, or would not mean what it seems.
    """
    none = None, np.empty(0, np.int64)
    wanted = True if options.classes else options.class_folders
    if wanted is False:
        return none
    loose = np.unique(listing.samples_of(np.flatnonzero(~_inside(listing))))
    labels = of_extensions(listing, lambda extension: extension == "cls")[listing.extension_ids]
    stray = np.empty(0, np.int64)
    if wanted is None:
        if labels.any() or len(folders) < 2 or not (doubt := _doubt(listing, loose)) is not None:
            return none
        if doubt:
            _log.warning(
                "%s looks like class folders of images, but for %s: the samples get no classes. Move it away, or say "
                "what they are by --class-folders or --no-class-folders (class_folders=)",
                root,
                doubt,
            )
            return none
        stray = loose
    elif len(loose):
        path = listing.path(int(listing.sample_files[loose[0]]))
        raise SourceError(f"{root} holds {path} beside the class folders: move it into one of them, or {_OFF}")
    if labels.any():
        raise SourceError(f"{root}/{listing.path(int(labels.argmax()))} gives a class already: remove it, or {_OFF}")
    return _numbered(root, listing, folders, options.classes), stray


def _numbered(root: str, listing: Listing, folders: list[str], known: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the classes in the order of their numbers: those that are known already, or the folders."""
    filled = set(_top_folders(listing)) - {""}
    if known is not None:
        unknown = sorted(filled - set(known))
        if unknown:
            raise SourceError(
                f"{root}/{unknown[0]} is none of the {len(known):,} classes given, {known[0]} to {known[-1]}: rename "
                f"it, or give the classes of a data set that has it (--classes-from)"
            )
        return known
    empty = sorted(set(folders) - filled)
    if empty:
        raise SourceError(
            f"class folder {root}/{empty[0]} holds no sample, and a number for it would shift those of the classes "
            f"after it: remove it, give the classes by --classes-from, or {_OFF}"
        )
    return tuple(sorted(folders))


def _doubt(listing: Listing, loose: Int64s) -> str | None:
    """Return what speaks against class folders, or an empty text; ``None`` where it does not look like them at all."""
    with_image = np.zeros(listing.num_samples, np.bool_)
    images = of_extensions(listing, _IMAGE.fullmatch)
    with_image[listing.samples_of(np.flatnonzero(images[listing.extension_ids]))] = True
    inside = np.ones(listing.num_samples, np.bool_)
    inside[loose] = False
    if not inside.any() or 2 * with_image[inside].sum() <= inside.sum():
        return None
    if with_image[loose].any():
        return f"{_first_path(listing, loose[with_image[loose]])} beside them"
    bare = np.flatnonzero(inside & ~with_image)
    return f"{_first_path(listing, bare)}, which has no image" if len(bare) else ""


def _first_path(listing: Listing, samples: Int64s) -> str:
    return listing.path(int(listing.sample_files[samples[0]]))


def of_extensions(listing: Listing, holds: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """bool [extensions]: for which of them, in lower case, something holds."""
    return np.array([bool(holds(extension.lower())) for extension in listing.extensions], np.bool_)


def _top_folders(listing: Listing) -> Iterator[str]:
    """Yield the outermost folder of each run of files; empty for files that lie in none."""
    return (listing.folder(run).partition("/")[0] for run in range(len(listing.folder_files) - 1))


def _inside(listing: Listing) -> npt.NDArray[np.bool_]:
    """bool [files]: which of them lie in a folder."""
    return np.repeat(np.diff(listing.folder_ends) > 0, np.diff(listing.folder_files))


def warn_of_tables(root: str, listing: Listing, stray: Int64s) -> None:
    """Warn of a few tables that become samples of their own: their rows may be meant, as labels of the other files."""
    tables = of_extensions(listing, _TABLES.__contains__)
    if not tables.any():
        return
    others = np.unique(listing.samples_of(np.flatnonzero(~tables[listing.extension_ids])))
    alone = np.setdiff1d(np.arange(listing.num_samples), np.concatenate([others, stray]))
    if 0 < len(alone) <= max(_FEW, listing.num_samples // 100):
        path = _first_path(listing, alone)
        _log.warning(
            "%s: %s is packed as a file, a sample of its own%s. If its rows are the samples, run `wdsdist pack "
            "%s/%s DEST`",
            root,
            path,
            f", as are {len(alone) - 1} more tables" if len(alone) > 1 else "",
            root,
            path,
        )


def warn_of_several_images(root: str, listing: Listing) -> None:
    """Warn of samples with several images of one kind, which may be meant as a sample each."""
    kinds = [found[1].lower() if (found := _IMAGE.fullmatch(one)) else "" for one in listing.extensions]
    if max(Counter(filter(None, kinds)).values(), default=0) < 2:
        return
    numbers = sorted(set(kinds))
    pairs = listing.repeats([numbers.index(kind) if kind else -1 for kind in kinds])
    if pairs:
        one, other = map(listing.path, pairs[0])
        count = len(np.unique(listing.samples_of(np.array(pairs)[:, 0])))
        _log.warning(
            "%s: %s and %s are one sample, by their names, as in %d of %d samples. If each image is a sample, pack "
            "with --key last-dot (key=)",
            root,
            one,
            other,
            count,
            listing.num_samples,
        )
