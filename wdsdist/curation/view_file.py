"""View files: the chosen samples of a data set, where that lies, and how they were chosen.

What a view names is opened. So a data set outside the view's folder is opened only if both are local, or if the user
allows it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist import storage
from wdsdist.curation.picks import MAGIC, VERSION, Picks
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError
from wdsdist.shards import array_file
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from wdsdist.shards.manifest import Manifest


def save(manifest: Manifest, path: Path) -> Path:
    """Write a view to a file, atomically; see `Manifest.save`."""
    if manifest.picks is None:
        raise ArgumentError("this data set is not a view: choose samples with select, split or repeat before you save")
    if not manifest.origin:
        raise ArgumentError(
            "no index.json lists the shards of this view, so that the file could not name it: run `wdsdist index` on "
            "them, and choose samples of what it makes"
        )
    path = path.absolute()
    if path.is_dir():
        raise DestinationError(f"{path} is a folder: name the file of the view")
    index = manifest.origin
    if not storage.is_remote(index):
        index = os.path.abspath(index)  # noqa: PTH100 - a view beside or below its data can be moved with it
        if path.is_relative_to(Path(index).parent) or Path(index).is_relative_to(path.parent):
            index = os.path.relpath(index, path.parent)
    header = {"data": index, "fingerprint": manifest.whole.fingerprint, "made_by": list(manifest.made_by)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.put(str(path), array_file.dumps(MAGIC, VERSION, header, manifest.picks.arrays))
    except OSError as error:
        raise DestinationError(
            f"the view {path} cannot be written ({error.strerror or error}): choose another folder"
        ) from error
    return path


def count_differing(path: str, other: str) -> int:
    """Return how many samples two saved views differ in; repetitions and parts of records count.

    Raises ``FileNotFoundError``, and `IndexFormatError` if one cannot be read, or they are of different shards.
    """
    first, second = (Picks.load(Path(name))[0] for name in (path, other))
    shared = min(len(first.stored_counts), len(second.stored_counts))
    if not np.array_equal(first.stored_counts[:shared], second.stored_counts[:shared]):
        raise IndexFormatError(f"the views {path} and {other} are of different data sets")
    stored = max(int(first.stored_counts.sum()), int(second.stored_counts.sum()))
    times = [np.bincount(picks.positions(), minlength=stored) for picks in (first, second)]
    return int(np.abs(times[0] - times[1]).sum())


def is_view(location: str, options: storage.StorageOptions) -> bool:
    """Return whether there is a view file at a path or URL."""
    try:
        return storage.read(location, options, stop=array_file.MAGIC_BYTES) == MAGIC
    except OSError:
        return False


def load(
    location: str, options: storage.StorageOptions, open_index: Callable[[str], Manifest], *, allow_elsewhere: bool
) -> Manifest:
    """Load a view, and the data set that it is of.

    Args:
        location: path or URL of the view.
        options: of its store.
        open_index: opens an ``index.json``.
        allow_elsewhere: let the view name data outside its own folder.

    Raises `IndexFormatError` if the file is damaged, its data set has other samples now, or lies elsewhere and is not
    allowed.
    """
    picks, index, header = read(location, options, allow_elsewhere=allow_elsewhere)
    whole = open_index(index)
    covered = len(picks.stored_counts)
    if covered <= len(whole.counts):  # the data set may have grown since
        then = whole.prefix(covered)
        if np.array_equal(then.counts, picks.stored_counts) and then.fingerprint == header["fingerprint"]:
            return then.chosen(picks, tuple(header["made_by"]))
    raise IndexFormatError(
        f"the view {storage.shown(location)} was made of {covered:,} shards with "
        f"{int(picks.stored_counts.sum()):,} samples, which {storage.shown(whole.base)} does not have now: make it "
        f"again, as by `wdsdist select --refresh`"
    )


def read(location: str, options: storage.StorageOptions, *, allow_elsewhere: bool) -> tuple[Picks, str, dict[str, Any]]:
    """Return the picks of a view, the location of the ``index.json`` of its data, and its header."""
    is_remote = storage.is_remote(location)
    if not is_remote:
        location = str(storage.local_path(location).absolute())
    shown, folder = storage.shown(location), storage.split(location)[0]
    picks, file = Picks.load(storage.read(location, options) if is_remote else Path(location), shown)
    data, steps = file.header.get("data"), file.header.get("made_by")
    is_list = isinstance(steps, list) and all(isinstance(step, dict) for step in steps)
    if not (is_list and isinstance(file.header.get("fingerprint"), str) and isinstance(data, str) and data):
        raise IndexFormatError(f"{shown} is a damaged view: its header lacks a part; make it again")
    index = storage.join(folder, data)
    is_far = storage.is_remote(index)
    try:
        check_location(folder, data, elsewhere=allow_elsewhere or not (is_remote or is_far))
    except ElsewhereError:
        raise IndexFormatError(
            f"the view {shown} is of the data set {storage.shown(index)}, outside its own folder: if you know "
            f"where that leads and want it, open the view with allow_elsewhere=True"
        ) from None
    except ValueError as error:
        raise IndexFormatError(f"the view {shown} names {storage.shown(data)!a}, which {error}") from None
    return picks, index if is_far else os.path.normpath(index), file.header
