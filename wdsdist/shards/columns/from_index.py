"""Columns that a data set has without any file: what the indexes of its shards say of each sample."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.shards.columns.column import Column
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.shard_indexes import shard_index, shard_indexes

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

KEY, SHARD, BYTES = ALWAYS = "key", "shard", "bytes"

_BYTES_OF = re.compile(r"(?P<extension>.+)\.bytes")


def is_free(name: str) -> bool:
    """Return whether a name is that of a column without a file, whatever members there are."""
    return name in ALWAYS or bool(_BYTES_OF.fullmatch(name))


def column_of(manifest: Manifest, name: str) -> Column:
    """Return a free column over all samples that lie in the shards of a data set."""
    numbers = range(len(manifest.counts))
    if name == SHARD:
        return Column.joined([column_of_shard(manifest, number, name) for number in numbers])
    return Column.joined([of_index(index, name) for _, index in shard_indexes(manifest, numbers)])


def column_of_shard(manifest: Manifest, number: int, name: str) -> Column:
    """Return a free column over the samples that lie in one shard."""
    if name == SHARD:
        text = np.frombuffer(storage.split(manifest.shown_name(number))[1].encode(), np.uint8)
        count = int(manifest.whole.counts[number])
        return Column("text", np.tile(text, count), np.arange(count + 1) * len(text))
    return of_index(shard_index(manifest, number), name)


def of_index(index: ShardIndex, name: str) -> Column:
    """Return a free column other than ``"shard"`` over the samples of an index."""
    if name == KEY:
        return Column("text", index.key_bytes, index.key_starts)
    if name == BYTES:
        return Column("int", _sums(index.sizes, index.sample_starts))
    found = _BYTES_OF.fullmatch(name)
    assert found is not None  # `is_free` was asked
    wanted = [extension.lower() == found["extension"] for extension in index.extensions]
    of_wanted = np.array([*wanted, False])[index.extension_ids]
    missing = _sums(of_wanted.astype(np.int64), index.sample_starts) == 0
    sizes = _sums(np.where(of_wanted, index.sizes, 0), index.sample_starts)
    return Column("int", sizes, None, missing.view(np.uint8) if missing.any() else None)


def _sums(values: Int64s, starts: Int64s) -> Int64s:
    """Return the sum of each sample's members, of which each has at least one."""
    return np.add.reduceat(values, starts[:-1]) if len(starts) > 1 else np.zeros(0, np.int64)
