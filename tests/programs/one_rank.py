"""A program: one rank reads an epoch over a cache with a limit, and prints the keys of its samples as JSON.

Arguments: the URL, the cache, its limit in bytes, the batch size, the world size, the rank.
"""

from __future__ import annotations

import json
import sys

import wdsdist


def main(url: str, cache: str, limit: int, batch_size: int, world: int, rank: int) -> None:
    dataset = wdsdist.StreamingDataset(
        url, num_replicas=world, rank=rank, cache_dir=cache, cache_limit=limit, shuffle_window=80, download_timeout=500
    )
    loader = wdsdist.StreamingDataLoader(dataset, batch_size, num_workers=2)
    json.dump([key for batch in loader for key in batch["__key__"]], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
