"""Column files (``.wdscolumn``), in a folder ``columns`` beside ``index.json`` or in another that the user named."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s, runs
from wdsdist._util.files import atomic_write, lies_in
from wdsdist._util.host import private_config_dir, user_config_dir
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError, StorageError
from wdsdist.shards import array_file
from wdsdist.shards.columns.column import Column, MadeColumn

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_log = logging.getLogger("wdsdist")

SUFFIX = ".wdscolumn"
FOLDER = "columns"

_MAGIC, _VERSION = b"wds-colu", 1
_ARRAYS = {
    "int": {"values": "<i8", "is_missing": "|u1"},
    "float": {"values": "<f8", "is_missing": "|u1"},
    "bool": {"values": "|u1", "is_missing": "|u1"},
    "text": {"values": "|u1", "starts": "<i8", "is_missing": "|u1"},
}
_SHARDS = {"shard_ids": "<u8", "counts": "<i8", "num_failed": "<i8"}


@dataclass(frozen=True, slots=True, eq=False)
class StoredColumn:
    """A column as it was read from its file."""

    column: Column
    """Of the samples of the covered shards, one shard after another."""
    is_covered: npt.NDArray[np.bool_]
    """bool [shards]: for which shards of the data set the file has values."""
    num_failed: Int64s
    """int64 [covered shards]: samples of each whose member could not be read; they are missing."""
    first_failed: str
    """The first of them, and why."""
    made_by: dict[str, Any]
    """What it was made by, such as ``{"field": "json.width"}``."""
    digest: str
    """SHA-256 of what the file holds."""


def save(
    folder: Path,
    name: str,
    column: Column,
    manifest: Manifest,
    made_by: Mapping[str, Any],
    *,
    num_failed: Int64s | None = None,
    first_failed: str = "",
) -> None:
    """Write the column of all samples of a data set into a folder, atomically."""
    whole = manifest.whole
    header = {"name": name, "kind": column.kind, "made_by": dict(made_by), "first_failed": first_failed}
    shards = {
        "shard_ids": shard_ids(whole),
        "counts": np.asarray(whole.counts, "<i8"),
        "num_failed": np.zeros(len(whole.counts), "<i8") if num_failed is None else num_failed,
    }
    array_file.save(folder / file_name(name), _MAGIC, _VERSION, header, {**arrays_of(column), **shards})


def arrays_of(column: Column) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a column, as they are written."""
    is_missing = np.zeros(0, np.uint8) if column.is_missing is None else column.is_missing
    arrays = {"values": column.values, "starts": column.starts, "is_missing": is_missing}
    return {
        name: np.ascontiguousarray(array, _ARRAYS[column.kind][name])
        for name, array in arrays.items()
        if array is not None
    }


def parse(content: bytes | Path, label: str, more: Mapping[str, str]) -> tuple[Column, array_file.ArrayFile]:
    """Return a column from the bytes of its file, or from a file that is mapped, and all that the file holds.

    ``label`` is its name in errors, ``more`` the types of other arrays that it has. Raises `IndexFormatError` for what
    is damaged, and ``FileNotFoundError``.
    """
    load = functools.partial(array_file.load, content, _MAGIC, what="column", label=label)
    kind = load({_VERSION: {}}).header.get("kind")
    if kind not in tuple(_ARRAYS):  # of a file that is forged, it may be a list, which no dict can be asked for
        raise IndexFormatError(f"{label} is a column of the unknown kind {kind!r}: make it anew with `wdsdist columns`")
    found = load({_VERSION: {**_ARRAYS[kind], **more}})
    missing, starts = found.arrays["is_missing"], found.arrays.get("starts")
    column = Column(kind, found.arrays["values"], starts, missing if len(missing) else None)
    fits = starts is None or (
        len(starts) > 0 and starts[0] == 0 and starts[-1] == len(column.values) and not (starts[1:] < starts[:-1]).any()
    )
    if not fits or len(column.missing) != len(column):
        raise IndexFormatError(f"{label} is damaged: its values do not fit together; make it anew")
    return column, found


def load(manifest: Manifest, name: str) -> StoredColumn | None:
    """Load a column of a data set, as far as it covers its shards; ``None`` where it has none of that name.

    Raises `IndexFormatError` where its file is damaged, or made for other samples, and `StorageError` where it cannot
    be read.
    """
    manifest = manifest.whole
    for folder in folders(manifest):
        place = storage.join(folder, file_name(name))
        label = storage.shown(place)
        try:
            content = storage.read(place, manifest.client_options) if storage.is_remote(folder) else Path(place)
            column, found = parse(content, label, _SHARDS)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StorageError(f"{label} cannot be read: {error.strerror or error}") from error
        return _of_data(column, found, manifest, label, name)
    return None


def save_part(path: Path, made: MadeColumn, shard: str) -> None:
    """Write a column of one shard atomically. Raises ``OSError``."""
    first_failed = f"{shard}: {made.first_failed}" if made.first_failed else ""
    header = {"kind": made.column.kind, "num_failed": made.num_failed, "first_failed": first_failed}
    array_file.save(path, _MAGIC, _VERSION, header, arrays_of(made.column))


def load_part(path: Path) -> MadeColumn:
    """Return what `save_part` wrote. Raises `IndexFormatError` where it is damaged."""
    column, found = parse(path, str(path), {})
    return MadeColumn(column, int(found.header["num_failed"]), str(found.header["first_failed"]))


def names(manifest: Manifest) -> list[str]:
    """Return the names of the columns that a data set has files of; a store that lists nothing is a warning."""
    found: set[str] = set()
    for folder in folders(manifest):
        try:
            files = [entry.name for entry in storage.list(folder, manifest.client_options)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except StorageError as error:
            _log.warning("which columns there are cannot be found out, only whether there is one of a name: %s", error)
            continue
        found.update(urllib.parse.unquote(file.removesuffix(SUFFIX)) for file in files if file.endswith(SUFFIX))
    return sorted(found)


def file_name(name: str) -> str:
    """Return the file name of a column.

    >>> file_name("json.a/b")
    'json.a%2Fb.wdscolumn'
    """
    quoted = urllib.parse.quote(name, safe=" ()[]{}+,=@")
    if len(quoted) + len(SUFFIX) > 255 or quoted.startswith("."):
        raise ArgumentError(f"the column name {name!r} cannot be that of a file: choose a shorter one")
    return quoted + SUFFIX


def folders(manifest: Manifest) -> list[str]:
    """Return where columns of a data set may lie: where this user put them, then beside its ``index.json``."""
    own = storage.join(_home(manifest), FOLDER)
    try:
        recorded = os.fsdecode(_record(manifest).read_bytes())
    except (OSError, ArgumentError, DestinationError):
        return [own]
    return [recorded, own]


def prepare(manifest: Manifest, output: Path | None) -> Path:
    """Return the folder that columns are written to, made if need be, and remember one that the user chose.

    Without one it is the folder that was chosen before, or else ``columns`` beside the ``index.json``.

    Raises `DestinationError` where it cannot be written.
    """
    if output is None and storage.is_remote(folders(manifest)[0]):
        raise DestinationError(
            f"columns of {storage.shown(_home(manifest))} cannot be written there: say where they shall lie, with "
            f"output= (--output FOLDER)"
        )
    folder = Path(folders(manifest)[0]) if output is None else output.absolute()
    own = Path(storage.join(_home(manifest), FOLDER))
    if folder == own and not lies_in(folder / "x", own.parent):  # a link in a data set must not lead us out of it
        raise DestinationError(
            f"{folder} is a link that leads out of the data set: name a folder with output= (--output)"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / ".writable"):
            pass
        (folder / ".writable").unlink()
    except OSError as error:
        raise DestinationError(
            f"columns cannot be written to {folder} ({error.strerror}): name another folder with output= "
            f"(--output FOLDER)"
        ) from error
    if output is not None:
        with atomic_write(_record(manifest, make=True)) as stream:
            stream.write(os.fsencode(folder))
    return folder


def _home(manifest: Manifest) -> str:
    """Return the folder of a data set's ``index.json``, or of its shards where it has none."""
    return storage.split(manifest.origin)[0] if manifest.origin else manifest.base


def _record(manifest: Manifest, *, make: bool = False) -> Path:
    """Return the file that says where this user put the columns of a data set."""
    if not make and not (user_config_dir() / FOLDER).is_dir():
        raise FileNotFoundError(user_config_dir() / FOLDER)
    return private_config_dir(FOLDER) / hashlib.sha256(_home(manifest).encode("utf-8", "surrogateescape")).hexdigest()


@functools.lru_cache(maxsize=4)
def shard_ids(manifest: Manifest) -> npt.NDArray[np.uint64]:
    """Return uint64 [shards]: a hash of each shard's file name, samples, size and digest, wherever it lies."""
    digests = bytearray()
    for shard in manifest.shards:
        text = f"{storage.split(shard.name)[1]}\0{shard.num_samples}\0{shard.size}\0{shard.sha256}"
        digests += hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.frombuffer(bytes(digests), "<u8")


def _of_data(column: Column, found: array_file.ArrayFile, manifest: Manifest, label: str, name: str) -> StoredColumn:
    """Return what a file holds of the shards of a data set. Raises `IndexFormatError` where that is nothing."""
    stored, counts, num_failed = (found.arrays[one] for one in _SHARDS)
    is_countable = not ((counts < 0) | (counts > len(column))).any()  # a sum of larger ones may begin anew at zero
    if not len(stored) == len(counts) == len(num_failed) or not is_countable or counts.sum() != len(column):
        raise IndexFormatError(f"{label} is damaged: its shards do not fit together; make it anew")
    own = shard_ids(manifest)
    first_failed, made_by = str(found.header.get("first_failed", "")), found.header.get("made_by", {})
    alike = min(len(stored), len(own))
    if np.array_equal(stored[:alike], own[:alike]):  # the same shards, or those of an older or newer generation
        covered = np.arange(len(own)) < alike
        places: Int64s = np.arange(alike)
        column = column.part(0, int(counts[:alike].sum()))
    else:
        order = np.argsort(stored, kind="stable")
        places = order[np.minimum(np.searchsorted(stored, own, sorter=order), len(stored) - 1)]
        covered = stored[places] == own
        if not covered.any():
            raise IndexFormatError(
                f"{label} holds the column {name!r} of other samples than the data set has now: make it anew with "
                f"`wdsdist columns`"
            )
        places = places[covered]
        column = column.take(runs(np.concatenate(([0], np.cumsum(counts))), places)[0])
    if not np.array_equal(counts[places], manifest.counts[covered]):
        raise IndexFormatError(f"{label} is damaged: its shards have other numbers of samples; make it anew")
    made_by = made_by if isinstance(made_by, dict) else {}
    return StoredColumn(column, covered, num_failed[places], first_failed, made_by, found.digest)
