"""Reads all shards of a data set in batches of some, over a cache with a limit; prints what it cost.

Arguments: the URL, the folder, its limit in bytes or 0, the seed of the order, shards of a batch.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from wdsdist.samples.shard_reader import ShardReader

import wdsdist
from wdsdist.cache import Need, ShardCache, copy_key


def main(url: str, folder: Path, limit: int, seed: int, together: int) -> None:
    manifest = wdsdist.open(url)
    cache = ShardCache(folder, limit=limit or None, timeout=500)
    reader = ShardReader(manifest, cache)
    order = list(range(len(manifest.counts)))
    random.Random(seed).shuffle(order)
    print("ready", flush=True)
    for start in range(0, len(order), together):
        keys = [copy_key(manifest, number) for number in order[start : start + 3 * together]]
        cache.expect([Need(key, (start + ahead) // together) for ahead, key in enumerate(keys)])
        batch = order[start : start + together]
        reader.hold(batch)
        for number in batch:
            shard = reader.shard(number)
            wanted = [f"shard{number:02}-{sample:04}.txt".encode() for sample in range(20)]
            assert [bytes(shard.member(sample, 0)) for sample in range(20)] == wanted
        reader.release()
    print(json.dumps({"fetches": cache.counters().shards_fetched}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
