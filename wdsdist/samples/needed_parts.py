"""The parts of shards that an epoch reads: how many bytes of each, in how many ranges, estimated from few indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.cache.chunk_file import CHUNK, GAP, REQUEST, chunks_of, joined, runs
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.fields import Fields, with_raw_images
from wdsdist.shards.index import checksums
from wdsdist.shards.manifest import THIN
from wdsdist.shards.shard_indexes import shard_index

if TYPE_CHECKING:
    from wdsdist.shards.index import ShardIndex
    from wdsdist.shards.manifest import Manifest


def parts_read(
    counts: Int64s, sizes: Int64s, *, manifest: Manifest | None = None, fields: Sequence[str] | None = None
) -> tuple[Int64s, Int64s]:
    """Return the bytes that a node reads of each shard, and the ranges that it asks for: int64 [shards] each.

    Of a shard of which little is read, the cache fetches that; of others all, which is 0 ranges. One shard of each data
    set stands for the others.

    Args:
        counts: int64 [shards]: samples in each.
        sizes: int64 [shards]: bytes of each.
        manifest: the data set, whose view counts too; without one, samples are taken to be alike.
        fields: that are read of each sample; ``None`` for all.

    Raises what `wdsdist.open` raises for a shard, and `ArgumentError` for a field that no sample of it has.
    """
    found = np.zeros((3, len(counts)))
    first = 0
    for part in (None,) if manifest is None else manifest.data_sets:
        here = slice(first, first + len(counts if part is None else part.counts))
        if not counts[here].any():
            first = here.stop
            continue
        number = int(np.argmax(counts[here]))
        found[:, here] = np.outer(
            _figures(int(counts[here][number]), int(sizes[here][number]), part, number, fields), counts[here]
        )
        if part is not None and part.shard(number).is_compressed:
            found[0, here] = sizes[here]
        first = here.stop
    needed, read, ranges = found
    in_parts = needed < THIN * sizes
    read, ranges = (np.where(in_parts, np.ceil(one), whole) for one, whole in ((read, sizes), (ranges, 0)))
    return read.astype(np.int64), ranges.astype(np.int64)


def _figures(
    count: int, size: int, manifest: Manifest | None, number: int, fields: Sequence[str] | None
) -> npt.NDArray[np.float64]:
    """Return the bytes needed and fetched, and the ranges, of each sample of one shard: float64 [3]."""
    chosen, places = np.arange(count), None
    if manifest is not None and (fields is not None or manifest.picks is not None):
        index = shard_index(manifest, number)
        chosen = np.arange(index.num_samples) if manifest.picks is None else np.unique(manifest.picks.of_shard(number))
    if manifest is not None and (fields is not None or manifest.picks is not None):
        offsets, lengths = checksums.needed(index, _fields(manifest, index, fields).members(index, chosen))
        places = np.stack((offsets, offsets + lengths), axis=1)
    else:
        places = np.stack((chosen, chosen + 1), axis=1) * size // count
    ranges = joined(runs(chunks_of(places[:, 0], places[:, 1])), GAP // CHUNK)
    read = np.diff(ranges).sum() * CHUNK
    asked = (-(-np.diff(ranges) * CHUNK // REQUEST)).sum()
    figures: npt.NDArray[np.float64] = np.array([np.diff(places).sum(), read, asked]) / max(1, count)
    return figures


def _fields(manifest: Manifest, index: ShardIndex, names: Sequence[str] | None) -> Fields:
    fields = Fields(with_raw_images(names) if names is not None and manifest.has_raw_images else names)
    try:
        fields.choose(tuple(extension.lower() for extension in index.extensions))
    except SampleError as error:
        raise ArgumentError(f"fields is {names!r}, but a shard of {manifest.shown} {error}") from None
    return fields
