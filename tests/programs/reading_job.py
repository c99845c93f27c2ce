"""Reads all shards of a data set in batches of some, over a cache with a limit; prints what it cost.

Arguments: the URL, the folder, its limit in bytes or 0, the seed of the order, shards of a batch.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import wdsdist
from tests.cache.conftest import SAMPLES, member
from wdsdist.cache.cached_shards import CachedShards
from wdsdist.cache.chunk_cache import ChunkCache
from wdsdist.shards.source import CacheOptions


def main(url: str, folder: Path, limit: int, seed: int, together: int) -> None:
    manifest = wdsdist.open(url)
    source = CachedShards(manifest, ChunkCache(CacheOptions(folder, limit or None, 500)))
    order = list(range(len(manifest.counts)))
    random.Random(seed).shuffle(order)
    print("ready", flush=True)
    for start in range(0, len(order), together):
        ahead = order[start : start + 3 * together]
        needs = {source.shard(number).key: (start + place) // together for place, number in enumerate(ahead)}
        source.cache.catalog.expect(f"job {seed}", start // together, needs)
        for number, shard in source.open(dict.fromkeys(order[start : start + together])).items():
            for sample in range(SAMPLES):
                assert bytes(shard.member(sample, 0)) == member(number * SAMPLES + sample)
        source.release()
    print(json.dumps(source.counters()._asdict()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
