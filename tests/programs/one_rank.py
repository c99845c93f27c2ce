"""A program: one rank reads an epoch over a cache with a limit, and writes the keys of its samples as JSON.

Arguments: the URL, the cache, the folder of what is written, the limit of the cache in bytes, the batch size, the world
size. The rank is in the environment, by a name that no launcher has. A warning is an error.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import wdsdist


def main(url: str, cache: str, found: str, limit: int, batch_size: int, world: int) -> None:
    rank = int(os.environ["ONE_RANK"])
    warnings.simplefilter("error")
    dataset = wdsdist.StreamingDataset(
        url, num_replicas=world, rank=rank, cache_dir=cache, cache_limit=limit, shuffle_window=80, download_timeout=500
    )
    loader = wdsdist.StreamingDataLoader(dataset, batch_size, num_workers=2)
    Path(found, f"{rank}.json").write_text(json.dumps([key for batch in loader for key in batch["__key__"]]))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
