"""Folders without an ``index.json``: open them by the counts of another tool, or say what to do with them."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from wdsdist import storage
from wdsdist.errors import IndexNotFoundError, ManifestError
from wdsdist.shards import foreign_notes
from wdsdist.shards.manifest import Manifest, Shard, check_location, index_json
from wdsdist.shards.tar import is_tar

_FIRST_PART = re.compile(r"\.t(?:ar|gz)(?:\.\w+)?[._-](?:part[._-]?)?(?:a+|0*[01])", re.IGNORECASE)
_LOOKS, _DEPTH = 50, 3
"""Folders that a hint looks into, and how deep."""


def by_foreign_counts(
    folder: str, options: storage.StorageOptions, locations: Sequence[str] | None = None
) -> Manifest | None:
    """Return the manifest of a folder without ``index.json`` by the counts of another tool; ``None`` without these.

    Of ``locations``, where given, all must be counted. Raises `IndexNotFoundError` where the counts are not of the tars
    that lie there, or of several splits.
    """
    notes = foreign_notes.find(folder, options)
    if notes is None or (locations and not {storage.split(one)[1] for one in locations} <= notes.counts.keys()):
        return None
    where = storage.shown(folder)
    if locations is None and len(notes.splits) > 1:
        raise IndexNotFoundError(
            f"{where} holds the splits {', '.join(notes.splits)}, as its {notes.file} says: run `wdsdist index {where} "
            f"--splits`, which makes a data set of each, or name the tars of one by a pattern"
        )
    counts = notes.counts
    names = list(counts) if locations is None else [storage.split(one)[1] for one in locations]
    sizes = _sizes_of_tars(folder, names, options)
    if locations is None and sizes:
        missing = [name for name in names if name not in sizes]
        extra = sorted(sizes.keys() - set(names))
        for problem, wrong in (("are in it alone", missing), ("are not in it", extra)):
            if wrong:
                raise IndexNotFoundError(
                    f"{where} holds no index.json, and its {notes.file} does not count what lies "
                    f"there: {len(wrong):,} tars, such as {wrong[0]}, {problem}: run `wdsdist index {where}`"
                )
    return Manifest.of(
        folder,
        [Shard(name, counts[name], sizes.get(name, -1), "") for name in names],
        name=storage.split(folder)[1],
        extra={"source": {"kind": "tar"}, "counts_from": notes.file},
        storage_options=dict(options.given),
        stores=options.stores,
    )


def _sizes_of_tars(folder: str, names: Sequence[str], options: storage.StorageOptions) -> dict[str, int]:
    """Return the size of each tar in the folders of some tars, by its name; none on the web, which may not list any."""
    if storage.is_read_only(folder):
        return {}
    found = {}
    for below in sorted({name.rpartition("/")[0] for name in names}):
        for name, size in storage.sizes(storage.join(folder, below) if below else folder, options).items():
            if is_tar(name) and not name.startswith("."):
                found[f"{below}/{name}" if below else name] = size
    return found


def no_index(location: str, options: storage.StorageOptions) -> IndexNotFoundError:
    """Return the error for a location that is no data set, with what to do."""
    where = storage.shown(location)
    if not storage.exists(location, options):
        return IndexNotFoundError(f"{where} does not exist")
    if not storage.is_remote(location) and not Path(location).is_dir():
        return IndexNotFoundError(f"{where} is neither a folder, an index.json nor a .tar file")
    names = storage.names(location, "", options)
    own = [name for name in names if name.startswith("index-") and name.endswith(".json")]
    if own:
        return IndexNotFoundError(f"{where} holds several data sets: name one, such as {where}/{own[0]}")
    tars = len(tars_in(location, options))
    if tars:
        return IndexNotFoundError(f"{where} holds {tars:,} tar files but no index.json: run `wdsdist index {where}`")
    return IndexNotFoundError(
        f"{where} holds no index.json and no tar files: it is not a data set{tars_below(location, options)}"
    )


def tars_below(location: str, options: storage.StorageOptions) -> str:
    """Return a hint at the folders below one that hold tars; an empty text where none are found in a short search."""
    found: list[str] = []
    todo = collections.deque([(location, 0)])
    for _ in range(_LOOKS):
        if not todo:
            break
        folder, depth = todo.popleft()
        names = [name for name in storage.names(folder, "", options) if not name.startswith(".")]
        if folder != location and any(map(is_tar, names)):
            found.append(folder)
        elif depth < _DEPTH:
            todo += [(storage.join(folder, name), depth + 1) for name in names if not PurePath(name).suffix]
    if not found:
        parts = [name for name in storage.names(location, "", options) if _FIRST_PART.search(name)]
        if parts:
            return f": {parts[0]} is part of a tar that was split: join the parts by `cat`, or run `wdsdist pack`"
        return f". `wdsdist pack {storage.shown(location)} DEST` makes a data set of files"
    where, first = storage.shown(location), storage.shown(found[0])
    if len(found) == 1:
        return f". Tars lie in {first}: name that"
    pattern = where + "/*" * (first.removeprefix(where).count("/")) + "/*.tar"
    return (
        f". Tars lie in {len(found)} folders below it, such as {first}: name one of them, or index all as one data set "
        f"by `wdsdist index '{pattern}' --output DIR`"
    )


def tars_in(folder: str, options: storage.StorageOptions | None = None) -> list[str]:
    """Return the locations of the tars in a folder, without hidden files, such as unfinished ones.

    Raises `IndexNotFoundError` for a folder that packing has not finished, where shards are missing.
    """
    names = storage.names(folder, "", options)
    if index_json.PACK_RECORD in names and index_json.FILE_NAME not in names:
        raise IndexNotFoundError(
            f"{storage.shown(folder)} has not been packed to the end: run the same `wdsdist pack` again, which writes "
            f"the rest, or delete {index_json.PACK_RECORD} there if what it holds is to be all"
        )
    tars = [name for name in names if is_tar(name) and not name.startswith(".")]
    if storage.is_remote(folder):
        check_names(folder, tars)
    return [storage.join(folder, name) for name in tars]


def check_names(folder: str, names: list[str], *, elsewhere: bool = False) -> None:
    """Raise `ManifestError` for the first tar whose name an ``index.json`` in the folder may not hold."""
    for name in names:
        try:
            check_location(folder, name, elsewhere=elsewhere)
        except ValueError as error:
            raise ManifestError(f"the tar {storage.shown(name)!a} {error}: rename it") from None
