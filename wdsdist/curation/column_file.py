"""Column files: a Parquet file for each column, in a folder ``columns`` beside ``index.json`` or where the user put it.

A row group holds the values of one shard, so that they are read alone. The metadata identify the shards, and record how
the values were made. A file that lacks shards of a data set, because the data set has grown, is *stale*.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.arrow import KINDS, filled, pyarrow
from wdsdist._util.files import atomic_write, lies_in, locked, mapped, writing
from wdsdist._util.host import is_own_file, make_dirs, user_dir
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError, StorageError, WdsdistError, given

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

FREE = KEY, SHARD, BYTES = "key", "shard", "bytes"
"""Columns that every data set has."""
SUFFIX = ".parquet"
FOLDER = "columns"
LOCK = ".wdsdist-columns.lock"
_WORK = ".unfinished"
"""Folder for the columns of a call that is not complete; a killed call leaves it, and the next one removes it."""
_NOTES = b"wdsdist.column"
_VERSION = 4
_log = logging.getLogger("wdsdist")


def is_free(name: str) -> bool:
    """Return whether the indexes of the shards say the values of a column, so that it has no file."""
    return name in FREE or (name.endswith(".bytes") and name != ".bytes")


@dataclass(frozen=True, eq=False)
class StoredColumn:
    """A column in a file."""

    name: str
    is_read: bool
    """Whether values are read from members, so a refresh can read new shards; otherwise joined tables have them."""
    tables: list[str]
    """The tables that were joined, for messages: a data set does not choose what is opened."""
    groups: Int64s
    """int64 [shards of the data set]: the row group of each shard; -1 if the file lacks the shard."""
    digest: str
    """Digest of the values of these shards."""
    label: str
    file: Any
    """The ``pyarrow.parquet.ParquetFile``."""

    @property
    def lacking(self) -> list[int]:
        """The shards of the data set that the file lacks; it is *stale* if there are any."""
        return [*np.flatnonzero(self.groups < 0).tolist()]

    def read(self, shard: int) -> Any:
        """Return the values of all samples of a shard that the file has, as an array."""
        group = int(self.groups[shard])
        try:
            values = self.file.read_row_group(group, use_threads=False).column(0).combine_chunks()
            values.validate(full=True)
            if len(values) != self.file.metadata.row_group(group).num_rows:
                raise OSError(f"it has {len(values):,} values of shard {shard:,}")
        except (pyarrow().ArrowException, OSError) as error:
            raise IndexFormatError(f"{self.label} is damaged ({error}): run `wdsdist columns` again") from error
        return values


def load(manifest: Manifest, name: str) -> StoredColumn | None:
    """Open a column of a data set; ``None`` if it has no file of that name.

    Raises `IndexFormatError` if the file is damaged or was made for other samples, `StorageError` if it cannot be read.
    """
    manifest = manifest.whole
    for folder in folders(manifest):
        location = storage.join(folder, file_name(name))
        label, is_remote = storage.shown(location), storage.is_remote(location)
        try:
            data = storage.read(location, manifest.client_options) if is_remote else mapped(Path(location))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StorageError(f"{label} cannot be read: {error.strerror or error}") from error
        pa = pyarrow(f"the column {name}")
        try:
            file = pa.parquet.ParquetFile(pa.BufferReader(data))
            notes = json.loads(file.metadata.metadata[_NOTES])
            is_read, tables = notes["is_read"] is True, [*map(str, notes["tables"])]
            ids, digests = np.array(notes["shards"], np.uint64).reshape(-1, 2).T
            counts = np.array([file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)], np.int64)
            group_of = {shard: group for group, shard in enumerate(ids.tolist())}
            groups = np.array([group_of.get(shard, -1) for shard in shard_ids(manifest).tolist()], np.int64)
            known, kinds = groups[groups >= 0], [str(field.type) for field in file.schema_arrow]
            if len(groups) and not len(known):
                raise ValueError("it holds the values of other samples than the data set has now")
            is_current = notes["version"] == _VERSION and kinds in [[kind] for kind in KINDS]
            if not (is_current and np.array_equal(counts[known], manifest.counts[groups >= 0])):
                raise ValueError("its parts do not fit together")
        except Exception as error:  # Arrow and JSON have many for bytes that were altered
            raise IndexFormatError(f"{label} is not a column file ({error}): run `wdsdist columns` again") from error
        digest = hashlib.sha256(digests[known].tobytes()).hexdigest()[:32]
        return StoredColumn(name, is_read, tables, groups, digest, label, file)
    return None


@contextlib.contextmanager
def adding(manifest: Manifest, output: Path | None = None) -> Iterator[Callable[..., None]]:
    """Give a function that writes columns of a data set; the end of the block adds them all.

    Its arguments are the name, the values of all samples as a chunked array, the tables that were joined, and
    ``is_read``, as `StoredColumn` has them. An exception in the block adds no column; killed at its end, it adds each
    whole or not at all. One process at a time may be in such a block. A folder that ``output`` names is remembered.

    Raises `ArgumentError` for a part of a data set, whose columns would replace the columns of all, and
    `DestinationError` if the folder lies in a store, leads out of the data set, or cannot be written.
    """
    if len(manifest.data_sets) != 1:
        raise ArgumentError("columns belong to one data set: add them to each data set before they are concatenated")
    listed = 0
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        if manifest.origin:
            listed = len(json.loads(storage.read(manifest.origin, manifest.client_options))["shardlist"])
    if listed > len(manifest.counts):
        raise ArgumentError(
            f"these are {len(manifest.counts):,} of the {listed:,} shards of {storage.shown(manifest.origin)}: open "
            f"that, and add columns to all of it"
        )
    home = _home(manifest)
    location = folders(manifest)[0] if output is None else str(output.absolute())
    advice, folder = f"name another folder with {given('output')}", Path(location)
    if storage.is_remote(location):
        raise DestinationError(f"columns cannot be written to {storage.shown(location)}: {advice}")
    if location == storage.join(home, FOLDER) and not lies_in(folder / "x", folder.parent):
        raise DestinationError(f"{folder} is a link that leads out of the data set: {advice}")

    def refuse() -> None:
        raise DestinationError("another process is adding columns to this data set: wait until it is done")

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if output is not None:
            choice = _choice(home)
            with writing(choice.parent, "; set XDG_CONFIG_HOME to a directory that can be written"):
                make_dirs(choice.parent)
                with atomic_write(choice, 0o600) as stream:
                    stream.write(os.fsencode(folder))
        work = folder / _WORK
        with locked(folder / LOCK, on_wait=refuse, optional=True):
            shutil.rmtree(work, ignore_errors=True)  # of a call that was killed; a link stays, and is an error
            work.mkdir()
            try:
                yield functools.partial(_write, manifest, work)
                for path in work.glob(f"*{SUFFIX}"):
                    path.replace(folder / path.name)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if isinstance(error, WdsdistError):
            raise
        raise DestinationError(
            f"columns cannot be written to {folder} ({error.strerror or error}): {advice}"
        ) from error


def _write(
    manifest: Manifest, folder: Path, name: str, values: Any, tables: Collection[str] = (), *, is_read: bool = True
) -> None:
    pa = pyarrow()
    if values.null_count == len(values) and len(values):
        _log.warning("%s: no sample has a value", name)
    if pa.types.is_null(values.type):
        values = values.cast("double")
    schema, shards = pa.schema([pa.field(name, values.type)]), list[list[int]]()
    with (
        atomic_write(folder / file_name(name)) as stream,
        pa.parquet.ParquetWriter(stream, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        spans = zip(shard_ids(manifest).tolist(), manifest.ends.tolist(), manifest.counts.tolist(), strict=True)
        for shard, end, count in spans:
            part = pa.concat_arrays([pa.array([], values.type), *values.slice(end - count, count).chunks])
            writer.write_table(pa.Table.from_arrays([part], schema=schema), row_group_size=max(1, count))
            shards.append([shard, _digest(part)])
        notes = {"version": _VERSION, "is_read": is_read, "tables": [*tables], "shards": shards}
        writer.add_key_value_metadata({_NOTES: json.dumps(notes).encode()})


def _digest(values: Any) -> int:
    """Return a hash of the values of a shard, which planned batches compare between ranks and after a resume."""
    whole, is_missing = filled(values), values.is_null()
    whole = whole.cast("int8") if str(whole.type) == "bool" else whole
    batch = pyarrow().record_batch([whole, is_missing.cast("int8")], names=["values", "missing"])
    return int(xxhash.xxh3_64(batch.serialize()).intdigest())


def names(manifest: Manifest) -> list[str]:
    """Return the names of the columns that a data set has files of; a store that cannot be listed is a warning."""
    listed: set[str] = set()
    for folder in folders(manifest):
        try:
            files = [entry.name for entry in storage.list(folder, manifest.client_options)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except StorageError as error:
            _log.warning("the columns cannot be listed, but a column is found by its name: %s", error)
            continue
        listed.update(urllib.parse.unquote(file.removesuffix(SUFFIX)) for file in files if file.endswith(SUFFIX))
    return sorted(listed)


def file_name(name: str) -> str:
    """Return the file name of a column."""
    quoted = urllib.parse.quote(name, safe=" ()[]{}+,=@")
    if len(quoted) + len(SUFFIX) > 255 or quoted.startswith("."):
        raise ArgumentError(f"the column name {name!r} cannot be the name of a file: choose a shorter name")
    return quoted + SUFFIX


def folders(manifest: Manifest) -> list[str]:
    """Return the folders of a data set's columns: the one that this user chose, then the one beside ``index.json``."""
    home = _home(manifest)
    with contextlib.suppress(OSError, ArgumentError):  # of a user without a home directory
        if is_own_file(choice := _choice(home)):
            return [os.fsdecode(choice.read_bytes()), storage.join(home, FOLDER)]
    return [storage.join(home, FOLDER)]


def _home(manifest: Manifest) -> str:
    """Return the folder of ``index.json``, or of the shards without one."""
    return storage.split(manifest.origin)[0] if manifest.origin else manifest.base


def _choice(home: str) -> Path:
    """Return the file that names the folder where this user put the columns of a data set."""
    return user_dir("config") / FOLDER / hashlib.sha256(home.encode("utf-8", "surrogateescape")).hexdigest()


@functools.lru_cache(maxsize=4)
def shard_ids(manifest: Manifest) -> npt.NDArray[np.uint64]:
    """Return uint64 [shards]: a hash of the file name, sample count, size and digest of each shard."""
    digests = bytearray()
    for shard in manifest.shards:
        string = f"{storage.split(shard.name)[1]}\0{shard.num_samples}\0{shard.size}\0{shard.sha256}"
        digests += hashlib.blake2b(string.encode(), digest_size=8).digest()
    return np.frombuffer(bytes(digests), "<u8")
