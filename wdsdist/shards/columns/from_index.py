"""Columns that a data set has without any file: what the indexes of its shards say of each sample."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.errors import StorageError
from wdsdist.shards import index as shard_files
from wdsdist.shards import scan_local, scan_remote
from wdsdist.shards.columns.column import Column
from wdsdist.shards.index import ShardIndex

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

KEY, SHARD, BYTES = ALWAYS = "key", "shard", "bytes"

_BYTES_OF = re.compile(r"(?P<extension>.+)\.bytes")


def is_free(name: str) -> bool:
    """Return whether a name is that of a column without a file, whatever members there are."""
    return name in ALWAYS or bool(_BYTES_OF.fullmatch(name))


def shard_index(manifest: Manifest, number: int) -> ShardIndex:
    """Return the index of a shard, local or remote, without its members' bytes where it has an index.

    Raises what `wdsdist.open` raises for a shard.
    """
    manifest, number = manifest.part(number)
    location = manifest.location(number)
    if not storage.is_remote(location):
        path = storage.local_path(location)
        return scan_local.shard_index(path, listed_in=manifest.base, name=manifest.index_name(number))
    sidecar = storage.beside(location, shard_files.SUFFIX)
    listed = manifest.index_name(number)
    options = manifest.client_options
    for place in (storage.join(manifest.base, listed), sidecar):
        try:
            return shard_files.loads(storage.read(place, options), storage.shown(place))
        except (FileNotFoundError, NotADirectoryError):
            continue
    size = int(manifest.sizes[number])
    try:
        return scan_remote.index_remote(location, size if size >= 0 else None, options)
    except FileNotFoundError as error:
        raise StorageError(f"shard {manifest.shown_name(number)} does not exist") from error


def columns_of(manifest: Manifest, names: list[str]) -> dict[str, Column]:
    """Return free columns over all samples that lie in the shards of a data set."""
    parts: dict[str, list[Column]] = {name: [] for name in names}
    for number in range(len(manifest.counts)):
        for name, column in columns_of_shard(manifest, number, names).items():
            parts[name].append(column)
    return {name: Column.joined(listed) for name, listed in parts.items()}


def columns_of_shard(manifest: Manifest, number: int, names: list[str]) -> dict[str, Column]:
    """Return free columns over the samples that lie in one shard."""
    count = int(manifest.whole.counts[number])
    if names == [SHARD]:
        return {SHARD: _shard_column(manifest, number, count)}
    index = shard_index(manifest, number)
    part, place = manifest.part(number)
    part.check_count(place, index.num_samples, part.shown_name(place))
    return {name: _column(manifest, number, index, name) for name in names}


def _column(manifest: Manifest, number: int, index: ShardIndex, name: str) -> Column:
    if name == KEY:
        return Column("text", index.key_bytes, index.key_starts)
    if name == SHARD:
        return _shard_column(manifest, number, index.num_samples)
    if name == BYTES:
        return Column("int", _sums(index.sizes, index.sample_starts))
    found = _BYTES_OF.fullmatch(name)
    assert found is not None  # `is_free` was asked
    wanted = [extension.lower() == found["extension"] for extension in index.extensions]
    of_wanted = np.array([*wanted, False])[index.extension_ids]
    missing = _sums(of_wanted.astype(np.int64), index.sample_starts) == 0
    sizes = _sums(np.where(of_wanted, index.sizes, 0), index.sample_starts)
    return Column("int", sizes, None, missing.view(np.uint8) if missing.any() else None)


def _shard_column(manifest: Manifest, number: int, count: int) -> Column:
    text = np.frombuffer(storage.split(manifest.shown_name(number))[1].encode(), np.uint8)
    values: npt.NDArray[np.uint8] = np.tile(text, count)
    return Column("text", values, np.arange(count + 1) * len(text))


def _sums(values: Int64s, starts: Int64s) -> Int64s:
    """Return the sum of each sample's members, of which each has at least one."""
    return np.add.reduceat(values, starts[:-1]) if len(starts) > 1 else np.zeros(0, np.int64)


def extensions_in(manifest: Manifest) -> list[str]:
    """Return the extensions of a data set: as its packer noted, or else those of its first shard."""
    noted = manifest.extra.get("fields")
    if isinstance(noted, list):
        return [str(extension).lower() for extension in noted]
    filled = np.flatnonzero(manifest.whole.counts)
    return sorted({one.lower() for one in shard_index(manifest, int(filled[0])).extensions}) if len(filled) else []
