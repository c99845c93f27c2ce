"""What a cache costs where it holds many copies: shards of one small sample come from memory into a folder.

In each round 300 more shards are fetched, first into a cache that holds so many copies without a limit, then into one
that is full with them, so that each that comes has others evicted. Figures are medians of the rounds, in ms a shard.

    python tools/bench/bench_cache.py --copies 100 1000 10000

What came out on 4 cores, partly busy, 3 rounds: 3.5 and 7.8 ms with 100 copies, 3.3 and 8.8 with 1,000, 1.8 and 5.4
with 10,000. Before the cache kept a sum (`cache.usage.Ledger`), each fetch looked through the folder: 14 ms with 100
copies, 31 with 1,000, and each look took 146 ms at 10,000.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

import fsspec  # noqa: E402 - found only by the line above
from peers.statistic import spread  # noqa: E402

import wdsdist  # noqa: E402
from wdsdist.cache import ShardCache  # noqa: E402
from wdsdist.shards.manifest import Manifest  # noqa: E402

_FETCHED = 300


def stored(shards: int) -> tuple[Manifest, int]:
    """Put shards into a store in memory; return the data set and the bytes that a copy takes."""
    with tempfile.TemporaryDirectory() as folder:
        samples = ({"__key__": f"{number:08}", "txt": str(number)} for number in range(shards))
        wdsdist.pack(samples, folder, shard_samples=1)
        store = fsspec.filesystem("memory")
        for path in Path(folder).iterdir():
            store.pipe_file(f"/shards/{path.name}", path.read_bytes())
        tar = next(Path(folder).glob("*.tar"))
        return wdsdist.open("memory://shards"), tar.stat().st_size + Path(f"{tar}.wdsindex").stat().st_size + 512


def seconds_each(cache: ShardCache, manifest: Manifest, shards: range) -> float:
    began = time.perf_counter()
    for number in shards:
        cache.pin(manifest, number).close()
    return (time.perf_counter() - began) / len(shards)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    manifest, room = stored(max(arguments.copies) + arguments.rounds * _FETCHED)
    print("| copies | without a limit, ms | full, ms |\n| --- | --- | --- |")
    for copies in arguments.copies:
        with tempfile.TemporaryDirectory() as free, tempfile.TemporaryDirectory() as full:
            caches = ShardCache(Path(free)), ShardCache(Path(full), limit=copies * room)
            for cache in caches:
                seconds_each(cache, manifest, range(copies))
            rounds: tuple[list[float], list[float]] = [], []
            for number in range(arguments.rounds):
                start = copies + number * _FETCHED
                for cache, found in zip(caches, rounds, strict=True):
                    found.append(1e3 * seconds_each(cache, manifest, range(start, start + _FETCHED)))
        cells = [f"{one.median:.2f} ({one.least:.2f} to {one.greatest:.2f})" for one in map(spread, rounds)]
        print(f"| {copies:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
