"""How fast shards come from a store: wdsdist's fetch beside the same number of bare ranged GETs.

What is measured: a web server with 20 ms to the first byte and 90 MB/s a connection, in processes of its own on this
machine, holds shards of 64 MiB. In each round, one after another and with the same number of requests in flight: bare
GETs of 8 MiB by threads that keep nothing of what they read, and `storage.fetch` of all shards at once into files, over
HTTP and, from the same server, through s3fs. Bytes per second, CPU seconds of the reading process per GB, and the
least, median and greatest ratio of a round. A fetch should reach 0.9 of bare requests.

    python tools/bench/bench_remote.py                        # 5 rounds of 16 connections
    python tools/bench/bench_remote.py --connections 32 --rate 45e6

What came out with 16 connections, on 4 cores that other work kept busy (two to three times as many tasks as cores), as
ratios to bare requests, median (least to greatest), of two runs: HTTP 0.96 (0.70 to 1.04) and 0.88 (0.75 to 1.02), S3
0.95 (0.67 to 1.02) and 0.80 (0.58 to 0.99). Bare requests reached 1.15 GB/s with 0.2 CPU seconds per GB; a fetch took
0.52 over HTTP and 0.65 from S3, all in one thread, so a busy machine slows it more than many. With most cores free
both reached 1.15 to 1.18 GB/s, as bare requests did.

Tried beside it, not part of this script: fsspec's `cat_file` from 16 threads, its bytes written when all of a part is
there, 0.58 to 0.74 GB/s with 2.1 to 2.9 CPU seconds per GB where parts written as they arrive reached 1.1 to 1.2; and
obstore 0.12, 0.4 to 1.1 GB/s where a fetch reached 0.7 to 1.1: no reason for another client.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import os
import queue
import resource
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from peers.statistic import paired_ratio, spread, values
from peers.store import started

from wdsdist import storage

PART = 8 << 20


def bare(url: str, names: list[str], size: int, connections: int) -> None:
    """Read all ranges into a buffer, and forget them."""
    wanted: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
    for name in names:
        for start in range(0, size, PART):
            wanted.put((name, start, min(start + PART, size)))

    def work() -> None:
        server = urllib.parse.urlsplit(url)
        connection = http.client.HTTPConnection(server.netloc)
        buffer = memoryview(bytearray(1 << 20))
        while True:
            try:
                name, start, stop = wanted.get_nowait()
            except queue.Empty:
                return
            connection.request("GET", f"{server.path}/{name}", headers={"Range": f"bytes={start}-{stop - 1}"})
            answer = connection.getresponse()
            while start < stop:
                start += answer.readinto(buffer)
            answer.close()

    together([work] * connections)


def fetch(
    base: str, folder: Path, options: dict[str, object], names: list[str], size: int, connections: int
) -> None:  # fmt: skip
    """Fetch all files at once into a folder."""
    shared = storage.Connections(connections)
    together([
        functools.partial(
            storage.fetch, f"{base}/{name}", folder / name, options, size=size, connections=shared
        )
        for name in names
    ])  # fmt: skip


def together(calls: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def reserved(folder: Path, names: list[str], size: int) -> None:
    """Make the files anew with all their room, as the cache does."""
    for name in names:
        with (folder / name).open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, size)


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--shard-bytes", type=int, default=64 << 20)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds to the first byte")
    parser.add_argument("--rate", type=float, default=90e6, help="bytes per second of one connection")
    arguments = parser.parse_args()
    names = [f"{number:06}.tar" for number in range(arguments.shards)]
    size = arguments.shard_bytes
    with tempfile.TemporaryDirectory() as work:
        source, target = Path(work) / "bucket", Path(work) / "target"
        source.mkdir()
        target.mkdir()
        for name in names:
            (source / name).write_bytes(os.urandom(size))
        with started(Path(work), latency=arguments.latency, rate=arguments.rate) as url:
            account = {"key": "nobody", "secret": "nothing", "endpoint_url": url}
            systems: dict[str, Callable[[list[str], int, int], None]] = {
                "bare GETs": functools.partial(bare, f"{url}/bucket"),
                "fetch, HTTP": functools.partial(fetch, f"{url}/bucket", target, {}),
                "fetch, S3": functools.partial(
                    fetch, "s3://bucket", target, {**account, "client_kwargs": {"region_name": "us-east-1"}}
                ),
            }
            measured: list[dict[str, dict[str, float]]] = []
            for number in range(arguments.rounds + 1):
                row: dict[str, dict[str, float]] = {}
                for system, run in systems.items():
                    reserved(target, names, size)
                    row[system] = timed(functools.partial(run, names, size, arguments.connections))
                if number:  # in the first, clients are made and connections opened
                    measured.append(row)
    report(measured, list(systems), size * len(names) / 1e9)


def timed(run: Callable[[], None]) -> dict[str, float]:
    """Return seconds, on the clock and of CPU."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {"value": seconds, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def report(measured: list[dict[str, dict[str, float]]], systems: list[str], gigabytes: float) -> None:
    print("| system | GB/s (median) | least | greatest | CPU seconds per GB |")
    print("| --- | --- | --- | --- | --- |")
    for system in systems:
        found = spread(values(measured, system))
        cpu = spread([row[system]["cpu"] for row in measured]).median
        rates = [f"{gigabytes / seconds:.2f}" for seconds in (found.median, found.greatest, found.least)]
        print(f"| {system} | {' | '.join(rates)} | {cpu / gigabytes:.2f} |")
    for system in systems[1:]:
        ratio = paired_ratio(measured, systems[0], system)
        if ratio is not None:
            print(f"{system} / {systems[0]}: {ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f}), aim 0.9")


if __name__ == "__main__":
    main()
