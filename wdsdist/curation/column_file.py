"""Column files: a Parquet file for each column, in a folder ``columns`` beside ``index.json`` or where the user put it.

A row group holds the values of one shard, and the groups follow the order of the shards, so that a file covers as many
shards as it has groups, and the values of one shard are read alone. The metadata identify the shards.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
import os
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.files import atomic_write, lies_in, mapped
from wdsdist._util.host import private_config_dir, user_config_dir
from wdsdist.curation import arrays
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError, StorageError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_log = logging.getLogger("wdsdist")

FREE = KEY, SHARD, BYTES = "key", "shard", "bytes"
"""Columns that every data set has."""
SUFFIX = ".parquet"
FOLDER = "columns"
_KEY = b"wdsdist.column"
_VERSION = 1
_ARRAYS = {"shard_ids": "<u8", "counts": "<i8", "num_failed": "<i8", "digests": "<u8"}
KINDS = {"int64": "int", "double": "float", "bool": "bool", "large_string": "text"}
"""The types of values in a file, and their names for people."""


def is_free(name: str) -> bool:
    """Return whether the indexes of the shards say the values of a column, so that it has no file."""
    return name in FREE or (name.endswith(".bytes") and name != ".bytes")


@dataclass(frozen=True, eq=False)
class StoredColumn:
    """A column in a file."""

    name: str
    made_by: dict[str, Any]
    """Where the values come from, such as ``{"field": "json.width"}``."""
    groups: Int64s
    """int64 [shards of the data set]: the row group of each shard; -1 if the file does not cover it."""
    counts: Int64s
    """int64 [shards of the data set]."""
    num_failed: Int64s
    """int64 [shards of the data set]: samples whose member could not be read; their values are missing."""
    first_failed: str
    """The first of these samples, and the reason."""
    digest: str
    """Digest of the values of the covered shards."""
    label: str
    file: Any
    """The ``pyarrow.parquet.ParquetFile``."""

    @property
    def is_covered(self) -> npt.NDArray[np.bool_]:
        """bool [shards of the data set]: for which shards the file has values."""
        covered: npt.NDArray[np.bool_] = self.groups >= 0
        return covered

    @property
    def type(self) -> Any:
        """The type of the values."""
        return self.file.schema_arrow.field(0).type

    def read(self, shards: Iterable[int]) -> Any:
        """Return the values of all samples of some covered shards, one shard after another, as a chunked array."""
        groups = [int(self.groups[shard]) for shard in shards if self.counts[shard]]
        try:
            values = self.file.read_row_groups(groups, use_threads=len(groups) > 64).column(0)
            values.validate(full=True)
        except (pyarrow().ArrowException, OSError) as error:
            raise IndexFormatError(f"{self.label} is damaged ({error}): run `wdsdist columns` again") from error
        return values


class ColumnWriter:
    """Writes a column file, atomically, a shard at a time."""

    def __init__(self, folder: Path, name: str, kind: Any, manifest: Manifest, made_by: Mapping[str, Any]) -> None:
        pa = pyarrow()
        self._manifest, self._header = manifest, {"version": _VERSION, "name": name, "made_by": dict(made_by)}
        self._schema = pa.schema([pa.field(name, kind)])
        self._context = atomic_write(folder / file_name(name))
        self._digests: list[int] = []
        self._failed: list[int] = []
        self._first_failed = ""
        self.num_missing = 0

    def __enter__(self) -> ColumnWriter:
        self._stream = self._context.__enter__()
        self._writer = pyarrow().parquet.ParquetWriter(
            self._stream, self._schema, compression="zstd", use_dictionary=False, write_statistics=False
        )
        return self

    def write(self, values: Any, num_failed: int = 0, first_failed: str = "") -> None:
        """Write the values of the next shard: an array or a chunked array."""
        pa = pyarrow()
        values = values.cast(self._schema.field(0).type)
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        if len(values):
            self._writer.write_table(pa.Table.from_arrays([values], schema=self._schema), row_group_size=len(values))
        self._digests.append(_digest(values))
        self._failed.append(num_failed)
        self._first_failed = self._first_failed or first_failed
        self.num_missing += values.null_count

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            count = len(self._digests)
            arrays = {
                "shard_ids": shard_ids(self._manifest)[:count], "counts": self._manifest.counts[:count],
                "num_failed": self._failed, "digests": self._digests,
            }  # fmt: skip
            packed = {name: np.asarray(arrays[name], dtype) for name, dtype in _ARRAYS.items()}
            header = {
                **self._header, "first_failed": self._first_failed,
                **{name: base64.b64encode(array.tobytes()).decode() for name, array in packed.items()},
            }  # fmt: skip
            self._writer.add_key_value_metadata({_KEY: json.dumps(header).encode()})
        self._writer.close()
        self._context.__exit__(kind, error, trace)

    @property
    def num_failed(self) -> int:
        return sum(self._failed)

    @property
    def first_failed(self) -> str:
        return self._first_failed


def _digest(values: Any) -> int:
    """Return a hash of the values of a shard, which planned batches compare between ranks and after a resume."""
    state = xxhash.xxh3_64(np.packbits(values.is_null().to_numpy(zero_copy_only=False)).tobytes())
    if str(values.type) == "large_string":
        values = values.fill_null("").cast("large_binary")
        starts = np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, 8 * values.offset)
        state.update((starts - starts[0]).tobytes())
        data = values.buffers()[2]
        state.update(memoryview(data)[int(starts[0]) : int(starts[-1])] if data is not None else b"")
    else:
        state.update(np.ascontiguousarray(arrays.filled(values).to_numpy(zero_copy_only=False)).tobytes())
    return int(state.intdigest())


def load(manifest: Manifest, name: str) -> StoredColumn | None:
    """Open a column of a data set; ``None`` if it has no file of that name.

    Raises `IndexFormatError` if the file is damaged or was made for other samples, `StorageError` if it cannot be read.
    """
    manifest = manifest.whole
    for folder in folders(manifest):
        location = storage.join(folder, file_name(name))
        label = storage.shown(location)
        try:
            if storage.is_remote(folder):
                data: bytes | memoryview = storage.read(location, manifest.client_options)
            else:
                data = mapped(Path(location))
            file = pyarrow(f"the column {name}").parquet.ParquetFile(pyarrow().BufferReader(data))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except pyarrow().ArrowException as error:
            raise IndexFormatError(f"{label} is not a column file ({error}): run `wdsdist columns` again") from error
        except OSError as error:
            raise StorageError(f"{label} cannot be read: {error.strerror or error}") from error
        return _checked(file, manifest, name, label)
    return None


def _checked(file: Any, manifest: Manifest, name: str, label: str) -> StoredColumn:
    """Return the column in a file. Raises `IndexFormatError` if its parts do not fit together."""
    try:
        header = json.loads(file.metadata.metadata[_KEY])
        if header["version"] != _VERSION:
            raise ValueError(f"version {header['version']!r}")
        packed = [np.frombuffer(base64.b64decode(header[key], validate=True), dtype) for key, dtype in _ARRAYS.items()]
        ids, counts, num_failed, digests = packed
        filled = counts > 0
        rows = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
        if not (
            len(ids) == len(counts) == len(num_failed) == len(digests)
            and np.array_equal(counts[filled], rows)
            and (counts >= 0).all()
            and len(file.schema_arrow) == 1
            and str(file.schema_arrow.field(0).type) in KINDS
            and isinstance(header["made_by"], dict)
        ):
            raise ValueError("its parts do not fit together")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IndexFormatError(
            f"{label} is not a column file of wdsdist ({error}): run `wdsdist columns` again"
        ) from None
    own = shard_ids(manifest)
    order = np.argsort(ids, kind="stable")
    places = order[np.minimum(np.searchsorted(ids, own, sorter=order), len(ids) - 1)] if len(ids) else own.astype(int)
    covered = ids[places] == own if len(ids) else np.zeros(len(own), np.bool_)
    if len(own) and not covered.any():
        raise IndexFormatError(
            f"{label} holds the column {name!r} of other samples than the data set has now: run `wdsdist columns` again"
        )
    if not np.array_equal(counts[places[covered]], manifest.counts[covered]):
        raise IndexFormatError(f"{label} is damaged: its shards have other sample counts: run `wdsdist columns` again")
    groups = np.full(len(own), -1, np.int64)
    groups[covered] = np.where(filled, np.cumsum(filled) - 1, 0)[places[covered]]
    failed = np.zeros(len(own), np.int64)
    failed[covered] = num_failed[places[covered]]
    digest = hashlib.sha256(digests[places[covered]].tobytes()).hexdigest()[:32]
    first_failed = str(header.get("first_failed", ""))
    return StoredColumn(name, header["made_by"], groups, manifest.counts, failed, first_failed, digest, label, file)


def names(manifest: Manifest) -> list[str]:
    """Return the names of the columns that a data set has files of; a store that cannot be listed is a warning."""
    found: set[str] = set()
    for folder in folders(manifest):
        try:
            files = [entry.name for entry in storage.list(folder, manifest.client_options)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except StorageError as error:
            _log.warning("the columns cannot be listed, but a column is found by its name: %s", error)
            continue
        found.update(urllib.parse.unquote(file.removesuffix(SUFFIX)) for file in files if file.endswith(SUFFIX))
    return sorted(found)


def file_name(name: str) -> str:
    """Return the file name of a column.

    >>> file_name("json.a/b")
    'json.a%2Fb.parquet'
    """
    quoted = urllib.parse.quote(name, safe=" ()[]{}+,=@")
    if len(quoted) + len(SUFFIX) > 255 or quoted.startswith("."):
        raise ArgumentError(f"the column name {name!r} cannot be the name of a file: choose a shorter name")
    return quoted + SUFFIX


def folders(manifest: Manifest) -> list[str]:
    """Return the folders where columns may lie: the one that this user chose, then the one beside ``index.json``."""
    own = storage.join(_home(manifest), FOLDER)
    try:
        recorded = os.fsdecode(_record(manifest).read_bytes())
    except (OSError, ArgumentError, DestinationError):
        return [own]
    return [recorded, own]


def prepare(manifest: Manifest, output: Path | None) -> Path:
    """Make the folder that columns are written to, and remember it if the user chose it with ``output``.

    Raises `DestinationError` if it cannot be written.
    """
    if output is None and storage.is_remote(folders(manifest)[0]):
        raise DestinationError(
            f"columns cannot be written to {storage.shown(_home(manifest))}: name a local folder with output="
        )
    folder = Path(folders(manifest)[0]) if output is None else output.absolute()
    own = Path(storage.join(_home(manifest), FOLDER))
    if folder == own and not lies_in(folder / "x", own.parent):  # a link in a data set must not lead out of it
        raise DestinationError(f"{folder} is a link that leads out of the data set: name a folder with output=")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / ".writable"):
            pass
        (folder / ".writable").unlink()
    except OSError as error:
        raise DestinationError(
            f"columns cannot be written to {folder} ({error.strerror}): name another folder with output="
        ) from error
    if output is not None:
        with atomic_write(_record(manifest, make=True)) as stream:
            stream.write(os.fsencode(folder))
    return folder


def _home(manifest: Manifest) -> str:
    """Return the folder of ``index.json``, or of the shards if there is none."""
    return storage.split(manifest.origin)[0] if manifest.origin else manifest.base


def _record(manifest: Manifest, *, make: bool = False) -> Path:
    """Return the file that names the folder where this user put the columns of a data set."""
    if not make and not (user_config_dir() / FOLDER).is_dir():
        raise FileNotFoundError(user_config_dir() / FOLDER)
    return private_config_dir(FOLDER) / hashlib.sha256(_home(manifest).encode("utf-8", "surrogateescape")).hexdigest()


@functools.lru_cache(maxsize=4)
def shard_ids(manifest: Manifest) -> npt.NDArray[np.uint64]:
    """Return uint64 [shards]: a hash of the file name, sample count, size and digest of each shard."""
    digests = bytearray()
    for shard in manifest.shards:
        text = f"{storage.split(shard.name)[1]}\0{shard.num_samples}\0{shard.size}\0{shard.sha256}"
        digests += hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.frombuffer(bytes(digests), "<u8")
