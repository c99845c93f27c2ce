"""Folders of tars without an ``index.json``: list their tars, and advise on a folder that is not a data set."""

from __future__ import annotations

import collections
from pathlib import Path, PurePath

from wdsdist import storage
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError
from wdsdist.shards.manifest import check_location, index_json
from wdsdist.shards.tar.naming import is_tar

_LOOKS, _DEPTH = 50, 3
"""Folders that a hint looks into, and how deep."""


def tars_in(folder: str, options: storage.StorageOptions | None = None) -> list[str]:
    """Return the locations of the tars in a folder, without hidden files, such as unfinished ones.

    Raises `NotFoundError` for a folder that packing has not finished: shards are missing.
    """
    names = _names(folder, options)
    if index_json.PACK_RECORD in names and index_json.FILE_NAME not in names:
        raise NotFoundError(
            f"{storage.shown(folder)} has not been packed to the end: run the same `wdsdist pack` again, which writes "
            f"the rest, or delete {index_json.PACK_RECORD} there if what it holds is to be all"
        )
    tars = [name for name in names if is_tar(name) and not name.startswith(".")]
    if storage.is_remote(folder):
        check_names(folder, tars)
    return [storage.join(folder, name) for name in tars]


def check_names(folder: str, names: list[str], *, elsewhere: bool = False) -> None:
    """Raise `IndexFormatError` for the first tar whose name an ``index.json`` in the folder may not hold."""
    for name in names:
        try:
            check_location(folder, name, elsewhere=elsewhere)
        except ValueError as error:
            raise IndexFormatError(f"the tar {storage.shown(name)!a} {error}: rename it") from None


def refuse_data_sets(locations: list[str]) -> None:
    """Raise `ArgumentError` if one of several locations is a local folder or view."""
    for location in locations:
        if storage.is_remote(location):
            continue
        if Path(location).is_dir():
            raise ArgumentError(f"{location} is a folder, named together with others: name one folder, or tars only")
        if not is_tar(location) and len(locations) > 1 and is_view(location, storage.named({}, [])):
            raise ArgumentError(f"{location} is a view, named together with others: name one view, or tars only")


def is_view(location: str, options: storage.StorageOptions) -> bool:
    """Return whether there is a view file at a path or URL."""
    from wdsdist.curation import view_file

    return view_file.is_view(location, options)


def no_index(location: str, options: storage.StorageOptions) -> NotFoundError:
    """Return the error for a location that is not a data set, with what to do."""
    where = storage.shown(location)
    if storage.is_read_only(location):
        return NotFoundError(f"{where} has no index.json: a web server lists no folder, so name index.json or the tars")
    names = _names(location, options)
    if not names and not _exists(location, options):  # a bucket has no folders, but what lies in them
        return NotFoundError(f"{where} does not exist")
    if not storage.is_remote(location) and not Path(location).is_dir():
        return NotFoundError(f"{where} is neither a folder, an index.json nor a .tar file")
    own = [name for name in names if name.startswith("index-") and name.endswith(".json")]
    if own:
        return NotFoundError(f"{where} holds several data sets: name one, such as {where}/{own[0]}")
    tars = len(tars_in(location, options))
    if tars:
        return NotFoundError(f"{where} holds {tars:,} tar files but no index.json: run `wdsdist index {where}` once")
    return NotFoundError(
        f"{where} holds no index.json and no tar files: it is not a data set{tars_below(location, options)}"
    )


def tars_below(location: str, options: storage.StorageOptions) -> str:
    """Return a hint at the folders below one that hold tars; how to pack it if a short search finds no tars."""
    found: list[str] = []
    todo = collections.deque([(location, 0)])
    for _ in range(_LOOKS):
        if not todo:
            break
        folder, depth = todo.popleft()
        names = [name for name in _names(folder, options) if not name.startswith(".")]
        if folder != location and any(map(is_tar, names)):
            found.append(folder)
        elif depth < _DEPTH:
            todo += [(storage.join(folder, name), depth + 1) for name in names if not PurePath(name).suffix]
    where = storage.shown(location)
    if not found:
        return f". `wdsdist pack {where} DEST` makes a data set of files"
    first = storage.shown(found[0])
    if len(found) == 1:
        return f". Tars lie in {first}: name that"
    pattern = where + "/*" * (first.removeprefix(where).count("/")) + "/*.tar"
    return (
        f". Tars lie in {len(found)} folders below it, such as {first}: name one of them, or index all as one data set "
        f"by `wdsdist index '{pattern}' --output DIR`"
    )


def _names(folder: str, options: storage.StorageOptions | None) -> list[str]:
    return [] if storage.is_read_only(folder) else [entry.name for entry in storage.list(folder, options)]


def _exists(location: str, options: storage.StorageOptions) -> bool:
    try:
        storage.stat(location, options)
    except FileNotFoundError:
        return False
    return True
