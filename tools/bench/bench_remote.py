"""How fast shards come from a store: single fetches, and whole epochs, beside bare ranged GETs and other loaders.

A web server with 20 ms to the first byte and 90 MB/s a connection, in processes of its own on this machine, holds
shards of 64 MiB; to clients of S3 it is a store. In each round everything is measured once, one after another; figures
are medians of the rounds, ratios are paired by round.

*fetch*: with the same number of requests in flight, bare GETs of 8 MiB by threads that keep nothing of what they read,
and `engine.fetch` of all shards at once into files, over HTTP and through s3fs. A fetch should reach 0.9 of bare GETs.

*epoch*: a first epoch of 16,384 samples of 70,000 random bytes into an empty cache, with 4 workers, each epoch in a
fresh process: from making data set and loader, after all imports, to the last batch. Every epoch's samples, bytes and
checksum must be right. Aims: 0.9 of bare GETs; the first batch within 3 round trips, beyond what it takes from the
local disk and the transfer of one shard (93 ms, its parts side by side); 3 times the others; each shard sent once, as
the server counts. CPU seconds are those of all processes of the loader. The others read as their documentation says:
webdataset through curl, by its own reader of http URLs; MosaicML Streaming and LitData from S3, with a local cache.

*wire*: the same epochs over one link that all connections share, timed from the start of the process with all its
imports, as users see it, on quiet cores and with programs beside it that keep cores busy. What limits is the link, or
the cores. Then what a view of a tenth of the samples and single samples move, beside the bytes that they need; aims:
1.3 times as many, and two requests. ``OBJECTS_SHARD_BYTES=1000000000`` in the environment, and another ``--data``, make
shards of 1 GB, whose first batch should come no later.

    python tools/bench/bench_remote.py --measure wire --samples 6000 --workers 2 --rounds 3
    python tools/bench/bench_remote.py --measure fetch        # 5 rounds of 16 connections
    python tools/bench/bench_remote.py --measure fetch --connections 32 --rate 45e6
    python tools/bench/bench_remote.py --measure epoch --python .venv-peers/bin/python

What came out on 2 cores of a shared machine, the server on them too, with 6,000 samples (420 MB) and 2 workers, in 3
rounds; ratios are medians (least to greatest).

*fetch*, 16 connections: 0.90 of bare requests over HTTP (0.89 to 0.90) and 0.89 from S3, at 1.0 GB/s, with 0.53 CPU
seconds per GB; bare requests take 0.25.

*epoch*: 0.40 GB/s over HTTP (0.24 to 0.41) and from S3, 2.6 times as fast as webdataset (1.7 to 2.7), with 3.5 and 3.4
CPU seconds per GB; webdataset takes 6.1. That is 0.43 of 16 bare requests: both cores are busy, with the server on them
too. The first batch came 6.5 round trips of 20 ms beyond the local one and the transfer (aim 3), after 0.29 s;
webdataset's came after 0.28 s. Each shard was sent 1.01 times.

*wire*, beside webdataset, from the start of the process (2026-11-29):

| link | programs beside | whole epoch | the same from S3 | first batch | the same from S3 |
| --- | --- | --- | --- | --- | --- |
| 100 MB/s | 0 | 1.00 (0.96 to 1.08) | 1.00 | 0.88 (0.75 to 1.06) | 0.86 (0.74 to 1.04) |
| 100 MB/s | 2 | 1.01 (0.99 to 1.02) | 1.00 | 0.93 (0.84 to 1.01) | 0.93 (0.86 to 0.97) |
| 1 GB/s | 0 | 1.88 (1.85 to 1.90) | 1.89 | 1.04 (1.04 to 1.06) | 1.05 (1.04 to 1.05) |
| 1 GB/s | 2 | 1.74 (1.68 to 1.86) | 1.80 | 1.12 (1.03 to 1.14) | 1.08 (1.03 to 1.25) |

The first row is of 8 rounds; of 3 rounds before them it was 0.94, 0.97, 1.13 and 1.05. CPU seconds per GB, with the
imports of clients, are 2.6 to 3.4 over 100 MB/s and 2.3 to 2.5 over 1 GB/s; webdataset takes 4.9 to 6.1. A view of a
tenth moves 1.05 times the bytes that it needs, single samples the same in one request each. With shards of 1 GB, on
busy cores, the first batch came after 1.01 to 1.04 (100 MB/s) and 0.94 to 1.01 (1 GB/s) times the time with 64 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from peers.kinds import OBJECTS  # noqa: E402 - found only by the line above
from peers.runs import TrialError  # noqa: E402
from peers.statistic import paired_ratio, spread, values  # noqa: E402
from peers.store import started  # noqa: E402
from peers.visits import Reader, prepare, visit  # noqa: E402

import wdsdist  # noqa: E402
from wdsdist import storage  # noqa: E402
from wdsdist.storage import engine  # noqa: E402

PART = 8 << 20
OBJECT_BYTES = 70_000


def bare(url: str, sizes: Mapping[str, int], connections: int) -> None:
    """Read all ranges of some files into a buffer, and forget them."""
    wanted: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
    for name, size in sizes.items():
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


def fetch(base: str, folder: Path, options: dict[str, object], names: list[str], size: int, _: int) -> None:
    """Fetch all files at once into a folder."""
    named = storage.named(options, [base])
    together([functools.partial(engine.fetch, f"{base}/{name}", folder / name, named, size=size) for name in names])


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


READERS = (
    Reader("wdsdist, HTTP", "wdsdist"),
    Reader("wdsdist, HTTP, 1 worker", "wdsdist", workers=1),
    Reader("wdsdist, HTTP, 2 ranks", "wdsdist", ranks=2),
    Reader("wdsdist, S3", "wdsdist", is_s3=True),
    Reader("webdataset, HTTP", "webdataset"),
    Reader("MosaicML Streaming, S3", "mosaicml", is_s3=True),
    Reader("LitData, S3", "litdata", is_s3=True),
)
BARE = (16, 64)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", default=["fetch", "epoch"], choices=["fetch", "epoch", "wire"])
    parser.add_argument("--shards", type=int, default=12, help="that are fetched")
    parser.add_argument("--shard-bytes", type=int, default=64 << 20)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds to the first byte")
    parser.add_argument("--rate", type=float, default=90e6, help="bytes per second of one connection")
    links = "bytes per second of all connections together, for wire"
    parser.add_argument("--links", type=float, nargs="+", default=[100e6, 1e9], help=links)
    spinning = "programs beside each run of wire that do nothing but spin"
    parser.add_argument("--spinning", type=int, nargs="+", default=[0, 2], help=spinning)
    parser.add_argument("--samples", type=int, default=OBJECTS.samples, help="in an epoch")
    parser.add_argument("--workers", type=int, default=4, help="of each rank")
    parser.add_argument("--systems", nargs="+", choices=sorted({reader.system for reader in READERS}))
    parser.add_argument("--data", type=Path, default=Path("bench-data"), help="folder for the epochs' data")
    python = "the Python that the other systems run in"
    parser.add_argument("--python", type=os.path.abspath, default=sys.executable, help=python)
    parser.add_argument("--limit", type=float, default=180, help="seconds that an epoch may take")
    arguments = parser.parse_args()
    if "fetch" in arguments.measure:
        fetches(arguments)
    if "epoch" in arguments.measure:
        epochs(arguments)
    if "wire" in arguments.measure:
        for link in arguments.links:
            for programs in arguments.spinning:
                print(f"\nA link of {link / 1e6:,.0f} MB/s, programs that spin beside: {programs}\n")
                with busy_cores(programs):
                    epochs(arguments, link)
        parts(arguments)


def parts(arguments: argparse.Namespace) -> None:
    """Print the bytes and requests of reading a view of 10 % of the samples, and of single samples."""
    import numpy as np

    made = prepare(READERS[:1], {"wdsdist": sys.executable}, arguments.data, arguments.samples, arguments.limit)
    with (
        started(made.files.parents[1], latency=arguments.latency, rate=arguments.rate) as store,
        tempfile.TemporaryDirectory() as cache,
    ):
        data = wdsdist.open(f"{store.url}/{made.files.parent.name}/wdsdist")
        keys = data.column("key")[::10].tolist()
        view = wdsdist.StreamingDataset(data.select(keys=keys), cache_dir=f"{cache}/view")
        single = wdsdist.StreamingDataset(data, cache_dir=f"{cache}/single")
        picks = np.random.default_rng(0).integers(len(single), size=20).tolist()
        print("\n| read | bytes moved / needed (shards and indexes) | of all bytes | requests |")
        print("| --- | --- | --- | --- |")
        for name, read, needed in (
            ("a view of 10 %", lambda: epoch(view), len(view)),
            ("20 samples, one by one", lambda: [single[number] for number in picks], len(picks)),
        ):
            store.requests()
            read()
            seen = store.requests()
            moved = sum(request.bytes for request in seen)
            tars = sum(request.bytes for request in seen if request.path.partition("?")[0].endswith(".tar"))
            share = moved / (made.tally.samples * OBJECT_BYTES)
            print(f"| {name} | {tars / (needed * OBJECT_BYTES):.2f} | {100 * share:.1f} % | {len(seen):,} |")


def epoch(dataset: wdsdist.StreamingDataset) -> None:
    """Read all samples once; the workers end with the loader, for they keep the store's standard input open."""
    for _ in wdsdist.StreamingDataLoader(dataset, 64, num_workers=2, drop_last=False):
        pass


@contextlib.contextmanager
def busy_cores(programs: int) -> Iterator[None]:
    """Keep so many cores busy until the block ends."""
    with contextlib.ExitStack() as running:
        for _ in range(programs):
            program = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(program.kill)
        yield


def epochs(arguments: argparse.Namespace, link: float = 0.0) -> None:
    """Measure whole epochs from an empty cache, over a link that limits all connections where one is given."""
    chosen = arguments.systems or ({"wdsdist", "webdataset"} if link else {reader.system for reader in READERS})
    readers = [
        reader for reader in READERS if reader.system in chosen and not (link and (reader.workers or reader.ranks > 1))
    ]
    pythons = {reader.system: arguments.python for reader in readers} | {"wdsdist": sys.executable}
    made = prepare(readers, pythons, arguments.data, arguments.samples, arguments.limit)
    sizes = {path.name: path.stat().st_size for path in made.packed("wdsdist").glob("*.tar")}
    gigabytes = sum(sizes.values()) / 1e9
    measured: list[dict[str, dict[str, float]]] = []
    place = made.files.parents[1]
    with started(place, latency=arguments.latency, rate=arguments.rate, total=link) as store:
        for _ in range(arguments.rounds):
            row: dict[str, dict[str, float]] = {}
            for connections in BARE[:1] if link else BARE:
                url = f"{store.url}/{made.files.parent.name}/wdsdist"
                found = timed(functools.partial(bare, url, sizes, connections))
                row[f"bare GETs, {connections}"] = {"rate": gigabytes / found["value"], "cpu": found["cpu"] / gigabytes}
            for reader in readers:
                python = pythons[reader.system]
                try:
                    run = functools.partial(visit, reader, python, made, workers=arguments.workers,
                                            limit=arguments.limit, is_new=bool(link))  # fmt: skip
                    found = run(store)
                    if reader.system == "wdsdist" and not link:
                        local = run(None)
                        beyond = found["first"] - local["first"] - PART / arguments.rate
                        found["round trips"] = beyond / arguments.latency
                    row[reader.title] = found
                except (TrialError, ValueError) as error:
                    print(f"{reader.title}: {error}", file=sys.stderr)
            print(json.dumps(row), file=sys.stderr, flush=True)
            measured.append(row)
    report_epochs(measured, [reader.title for reader in readers])
    if link:
        report_wire(measured, [reader.title for reader in readers], f"{link / 1e6:,.0f} MB/s")


def report_wire(measured: list[dict[str, dict[str, float]]], readers: list[str], link: str) -> None:
    """Print the ratios of one link."""
    print("\n| link | reader | of bare GETs | first batch, webdataset's = 1 | CPU s/GB | requests |")
    print("| --- | --- | --- | --- | --- | --- |")
    for title in readers:
        rate = paired_ratio(only(measured, "rate"), title, f"bare GETs, {BARE[0]}")
        first = paired_ratio(only(measured, "first"), title, "webdataset, HTTP")
        cells = [
            f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f})" if ratio else ""
            for ratio in (rate, first)
        ]
        for name, form in (("cpu", ".1f"), ("requests", ".0f")):
            found = values(measured, title, name)
            cells.append(f"{spread(found).median:{form}}" if found else "")
        print(f"| {link} | {title} | {' | '.join(cells)} |")


def only(measured: list[dict[str, dict[str, float]]], figure: str) -> list[dict[str, dict[str, float]]]:
    """Return one figure of all that were measured, as ratios take it."""
    return [{name: {"value": one[figure]} for name, one in row.items() if figure in one} for row in measured]


def report_epochs(measured: list[dict[str, dict[str, float]]], readers: list[str]) -> None:
    """Print a table, and the ratios that there are aims for, each the median of the rounds."""
    print("| reader | epochs | GB/s | first batch, s | CPU seconds per GB | requests | downloads of a shard |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    bare_gets = [title for title in measured[0] if title.startswith("bare")]
    for title in [*bare_gets, *readers]:
        rates = values(measured, title, "rate")
        if not rates:
            print(f"| {title} | 0 of {len(measured)} | | | | | |")
            continue
        rate, cpu = spread(rates), spread(values(measured, title, "cpu"))
        cells = [f"{rate.median:.2f} ({rate.least:.2f} to {rate.greatest:.2f})"]
        for figure, form in (("first", ".2f"), ("cpu", ".2f"), ("requests", ".0f"), ("most times", ".2f")):
            found = values(measured, title, figure)
            cells.append(f"{cpu.median:.2f}" if figure == "cpu" else f"{spread(found).median:{form}}" if found else "")
        print(f"| {title} | {len(rates)} of {len(measured)} | {' | '.join(cells)} |")
    rated = only(measured, "rate")
    for title in (title for title in readers if title.startswith("wdsdist")):
        for other in bare_gets:
            say_ratio(rated, title, other, "aim 0.9")
        if not values(measured, title, "round trips"):
            continue
        beyond, depth = (spread(values(measured, title, figure)) for figure in ("round trips", "depth"))
        print(
            f"{title}: first batch, beyond that from the local disk and the transfer of one shard, "
            f"{beyond.median:.1f} round trips ({beyond.least:.1f} to {beyond.greatest:.1f}), aim 3; "
            f"{depth.median:.0f} requests one after another"
        )
    for title in (title for title in readers if not title.startswith("wdsdist")):
        say_ratio(rated, readers[0], title, "aim 3")


def say_ratio(measured: list[dict[str, dict[str, float]]], system: str, other: str, aim: str) -> None:
    """Print one ratio, paired by round, where there is one."""
    ratio = paired_ratio(measured, system, other)
    if ratio is not None:
        print(f"{system} / {other}: {ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f}), {aim}")


def fetches(arguments: argparse.Namespace) -> None:
    """Measure fetches beside bare requests."""
    names = [f"{number:06}.tar" for number in range(arguments.shards)]
    size = arguments.shard_bytes
    with tempfile.TemporaryDirectory() as work:
        source, target = Path(work) / "bucket", Path(work) / "target"
        source.mkdir()
        target.mkdir()
        for name in names:
            (source / name).write_bytes(os.urandom(size))
        with started(Path(work), latency=arguments.latency, rate=arguments.rate) as store:
            account = {"key": "nobody", "secret": "nothing", "endpoint_url": store.url}
            systems: dict[str, Callable[[list[str], int, int], None]] = {
                "bare GETs": lambda names, size, connections: bare(
                    f"{store.url}/bucket", dict.fromkeys(names, size), connections
                ),
                "fetch, HTTP": functools.partial(fetch, f"{store.url}/bucket", target, {}),
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
    rates = [{name: {"value": gigabytes / one["value"]} for name, one in row.items()} for row in measured]
    for system in systems[1:]:
        say_ratio(rates, system, systems[0], "aim 0.9")


if __name__ == "__main__":
    main()
