"""View files: the chosen samples of a data set, where that lies, and how they were chosen.

A view may lie anywhere. The data set that it names is opened if both are local, if it lies in the view's own folder, or
if the user allows it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.files import check_readable
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError
from wdsdist.shards import array_file
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_location
from wdsdist.shards.views.picks import MAGIC, Picks

if TYPE_CHECKING:
    from collections.abc import Callable

    from wdsdist.shards.manifest import Manifest


def save(manifest: Manifest, path: Path) -> Path:
    """Write a view to a file, atomically; see `Manifest.save`."""
    if manifest.picks is None:
        raise ArgumentError("this data set is no view: choose samples with select, split or repeat before it is saved")
    if not manifest.origin:
        raise ArgumentError(
            "the shards of this view are listed in no index.json, which the file could name: run `wdsdist index` on "
            "them, and choose samples of what it makes"
        )
    path = path.absolute()
    if path.is_dir():
        raise DestinationError(f"{path} is a folder: name the file that the view shall be saved as")
    header = {
        "data": _relative(manifest.origin, path),
        "fingerprint": manifest.whole.fingerprint,
        "made_by": list(manifest.made_by),
        **({} if manifest.picks.parts is None else {"near": manifest.picks.is_near}),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        array_file.save(path, MAGIC, manifest.picks.version, header, manifest.picks.arrays)
    except OSError as error:
        raise DestinationError(
            f"the view {path} cannot be written ({error.strerror or error}): choose another place for it"
        ) from error
    return path


def count_differing(path: str, other: str) -> int:
    """Return how many samples two saved views differ in, repetitions counted.

    Raises ``FileNotFoundError`` and `IndexFormatError` where one cannot be read, or they are of shards that differ.
    """
    (one, _), (another, _) = Picks.load(Path(path)), Picks.load(Path(other))
    shared = min(len(one.stored_counts), len(another.stored_counts))
    if not np.array_equal(one.stored_counts[:shared], another.stored_counts[:shared]):
        raise IndexFormatError(f"the views {path} and {other} are of different data sets")
    rows = [_rows(picks) for picks in (one, another)]
    _, which = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    signs = np.repeat([1, -1], [len(each) for each in rows])
    return int(np.abs(np.bincount(which.ravel(), signs)).sum())


def _rows(picks: Picks) -> npt.NDArray[np.int64]:
    """Return int64 [samples, 3]: the place of each sample on the line of all stored ones, its part and their number."""
    whole = np.zeros(len(picks.numbers), np.int64)
    parts, totals = (whole if each is None else each.astype(np.int64) for each in (picks.parts, picks.totals))
    return np.stack((picks.positions(), parts, totals), axis=1)


def is_view(location: str, options: storage.StorageOptions) -> bool:
    """Return whether there is a view file at a path or URL."""
    try:
        if storage.is_remote(location):
            return storage.read(location, options, stop=array_file.MAGIC_BYTES) == MAGIC
        path = storage.local_path(location)
        check_readable(path)
        with path.open("rb") as stream:
            return stream.read(array_file.MAGIC_BYTES) == MAGIC
    except OSError:
        return False


def load(
    location: str,
    options: storage.StorageOptions,
    open_index: Callable[[str], Manifest],
    *,
    allow_elsewhere: bool,
) -> Manifest:
    """Load a view, and the data set that it is of.

    ``open_index`` opens an ``index.json``; ``allow_elsewhere`` lets a view name data outside its own folder.

    Raises:
        IndexFormatError: the file is damaged, or its data set has other samples now.
        IndexFormatError: the data lies outside the view's folder.
    """
    if storage.is_remote(location):
        content: bytes | Path = storage.read(location, options)
    else:
        content = storage.local_path(location).absolute()
        location = str(content)
    picks, found = Picks.load(content, storage.shown(location))
    data, made_by = _checked(found.header, location)
    place = storage.join(storage.split(location)[0], data)
    # A local view may name any local data set: it opens only one that has the fingerprint in it.
    is_local = not storage.is_remote(location) and not storage.is_remote(place)
    try:
        check_location(storage.split(location)[0], data, elsewhere=allow_elsewhere or is_local)
    except ElsewhereError:
        raise IndexFormatError(
            f"the view {storage.shown(location)} is of the data set {storage.shown(place)}, outside its own "
            f"folder: if you know where that leads and want it, open the view with allow_elsewhere=True"
        ) from None
    except ValueError as error:
        raise IndexFormatError(
            f"the view {storage.shown(location)} names {storage.shown(data)!a}, which {error}"
        ) from None
    whole = open_index(os.path.normpath(place) if not storage.is_remote(place) else place)
    covered = len(picks.stored_counts)
    if covered <= len(whole.counts):  # it may have more shards than when the view was made
        data_then = whole.prefix(covered)
        if (
            np.array_equal(data_then.counts, picks.stored_counts)
            and data_then.fingerprint == found.header["fingerprint"]
        ):
            return data_then.chosen(picks, made_by)
    raise IndexFormatError(
        f"the view {storage.shown(location)} was made of {covered:,} shards with "
        f"{int(picks.stored_counts.sum()):,} samples, which are not those that {storage.shown(whole.base)} has now: "
        f"make the view anew"
    )


def _checked(header: dict[str, Any], location: str) -> tuple[str, tuple[dict[str, Any], ...]]:
    match header:
        case {"data": str(data), "fingerprint": str(), "made_by": list(made_by)}:
            if data and all(isinstance(step, dict) for step in made_by):
                return data, tuple(made_by)
    raise IndexFormatError(f"{storage.shown(location)} is a damaged view: its header lacks a part; make it anew")


def _relative(origin: str, path: Path) -> str:
    """Return how a view names its data: relative to its own folder where it lies beside or below the data."""
    if storage.is_remote(origin):
        return origin
    index = Path(origin).absolute()
    if path.parent.is_relative_to(index.parent) or index.is_relative_to(path.parent):
        return os.path.relpath(index, path.parent)
    return str(index)
