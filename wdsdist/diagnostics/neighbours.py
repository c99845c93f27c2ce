"""`neighbours`: what lies beside a local data set: its views, other data sets of its folder, splits of other tools."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsdist import storage
from wdsdist.errors import WdsdistError
from wdsdist.shards import array_file, interop
from wdsdist.shards.columns.column_file import FOLDER as COLUMNS
from wdsdist.shards.index import SUFFIX
from wdsdist.shards.tar import is_tar
from wdsdist.shards.views.picks import MAGIC, Picks

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_VIEWS = "views"
"""Folder beside that of the data in which views are looked for too, as in the documentation."""
_LOOKS = 1_000
"""Files of a folder that are looked at for views, and folders below that of the data."""


def neighbours(manifest: Manifest) -> dict[str, Any]:
    """Return views of a data set that lie in or beside its folder, the names of other data sets there, and splits.

    Of a remote data set nothing: its store is not listed for this.
    """
    found: dict[str, Any] = {"views": [], "data_sets": [], "splits": {}}
    origin = manifest.origin
    if not origin or storage.is_remote(origin):
        return found
    index = Path(storage.local_path(origin)).absolute()
    found["data_sets"] = sorted(
        path.name for path in index.parent.glob("index*.json") if path.name.startswith(("index.", "index-"))
        and path.name != index.name
    )  # fmt: skip
    for path in sorted({path.resolve(): path for path in _files(index.parent)}.values()):
        header = _header(path)
        if header is not None and _is_of(path, header, index):
            step: dict[str, Any] = next(reversed(header["made_by"]), {})
            view = {"path": os.path.relpath(path, index.parent), "samples": step.get("samples_after")}
            found["views"].append(view | ({"split": step["split"]} if "split" in step else {}))
    try:
        notes = interop.find(str(index.parent), storage.named({}, []))
    except (WdsdistError, OSError):
        notes = None  # of no use to us, and no concern of who opens the data by its index.json
    if notes is not None and len(notes.splits) > 1:
        found["splits"] = {name: sum(counts.values()) for name, counts in notes.splits.items()}
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Yield files that may be views: in the folder of the data, in those below, and in the folder of views beside."""
    entries = list(_entries(folder))
    below = [entry.path for entry in entries if entry.is_dir() and entry.name != COLUMNS]
    for place in (entries, *map(_entries, itertools.islice(below, _LOOKS)), _entries(folder.parent / _VIEWS)):
        yield from (Path(entry.path) for entry in itertools.islice(place, _LOOKS) if entry.is_file())


def _entries(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (one for one in entries if not (is_tar(one.name) or one.name.endswith((SUFFIX, ".json"))))
    except OSError:
        return  # no such folder, or one that this user may not read


def _header(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as stream:
            if stream.read(array_file.MAGIC_BYTES) != MAGIC:
                return None
        return Picks.load(path)[1].header
    except (WdsdistError, OSError):
        return None


def _is_of(path: Path, header: dict[str, Any], index: Path) -> bool:
    data, made_by = header.get("data"), header.get("made_by")
    return (
        isinstance(data, str)
        and isinstance(made_by, list)
        and all(isinstance(step, dict) for step in made_by)
        and os.path.normpath(path.parent / data) == str(index)
    )
