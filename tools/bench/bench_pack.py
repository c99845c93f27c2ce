"""How fast `wdsdist pack` is, beside webdataset's ShardWriter and GNU tar; and what a listing of many files costs.

What is measured: 100,000 PNG files of about 2.5 KB and 10,000 JPEG files of about 65 KB, in the page cache, become
shards of 64 MiB on the same disk. In each round, one after another:

- *wdsdist, 1 process* and *wdsdist*, with two workers for each core, the default: with the listing, the plan, a
  shuffled order, SHA-256 digests, indexes and fsync, of which the others do none;
- *ShardWriter*: one process, which is given what `open` reads; as its documentation uses it, and with the options that
  make it fastest (``encoder=False``, and ``mtime=0``, which spares the PAX header before every member);
- *tar cf*: one archive, not shards; and the same with ``sync`` after it, until it is on the disk too;
- *write and fsync*: as many bytes as our shards have, of one buffer, in files of 64 MiB, each with an fsync: what the
  disk alone takes of our time. A system that does not wait for the disk can be faster than that.

Medians, and the least and greatest ratio of a round.

    python tools/bench/bench_pack.py                      # 5 rounds of both
    python tools/bench/bench_pack.py --files 10000 1000 --rounds 3
    python tools/bench/bench_pack.py --listing 10000000   # no files: memory of a listing and its plan

Results of ``--files 60000 6000``, medians with (minimum-maximum) of 5 rounds on 2 cores, Python 3.11.7, 2026-11-29, in
seconds; the files lie on a virtual disk that takes 2 GB/s:

                            60,000 of 2.4 KB       6,000 of 65.2 KB
    wdsdist, 1 process      1.14 (1.06-1.36)       0.46 (0.44-0.48)
    ShardWriter             3.92 (3.81-5.40)       0.83 (0.81-0.86)
    ShardWriter, fastest    2.52 (2.49-2.64)       0.67 (0.66-0.79)
    wdsdist                 0.81 (0.79-0.86)       0.43 (0.42-0.44)
    tar cf                  0.52 (0.52-0.53)       0.39 (0.38-0.40)
    tar cf, sync            0.64 (0.63-0.64)       0.59 (0.57-0.62)
    write and fsync         0.10 (0.09-0.11)       0.20 (0.19-0.22)

    ShardWriter / wdsdist, 1 process: 3.47 and 1.81, fastest 2.20 and 1.49 (aim: 6, not reached)
    wdsdist / tar cf: 1.58 and 1.10 (aim: at most 1.5)
    wdsdist / tar cf, sync: 1.30 and 0.71 (aim: at most 1.3)

A plan of shards needs all sizes, so the listing comes first: of 60,000 files it takes 0.25 s, in two processes after
the first 10,000. Three processes, one for each shard, write them in the rest. In a process that has threads already
others start slowly, and the whole takes 1.36 s (1.26 s if it lists alone: helpers pay from some 100,000 files on).

What bounds each: a small file costs 7 us of system calls (stat, open, read, close) and 7 us of Python. A bare loop in
Python that only lists, and then in two processes reads, digests, writes and waits for the disk, takes 0.54 s (0.19 and
0.35). Looking at the names of a thousand files at once would gain 0.6 us a file. Digest and write in the thread that
reads take as much CPU time as in threads of their own. A large file costs SHA-256 (1.8 GB/s a core, with the
processor's instructions for it) and the disk: 6 x ShardWriter would ask more of one process than ``write and fsync``
alone gets. ``copy_file_range`` and ``sendfile`` gain nothing, for the digest has to read the bytes all the same; nor
does writing past the page cache, and opening files relative to their folder hardly anything (4.5 us instead of 5.2).
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from peers import data
from peers.kinds import KINDS
from peers.statistic import paired_ratio, spread, values

SHARD_BYTES = 64 * 2**20
PER_FOLDER = 1000


def ours(files: Path, dest: Path, workers: int | None = None) -> None:
    from wdsdist.packing import pack

    pack(files, dest, shard_bytes=SHARD_BYTES, workers=workers, class_folders=False)


def shard_writer(files: Path, dest: Path, **options: object) -> None:
    import webdataset

    dest.mkdir()
    pattern = str(dest / "%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=10**9, maxsize=SHARD_BYTES, verbose=0, **options) as sink:
        for folder in sorted(os.scandir(files), key=lambda entry: entry.name):
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                key, _, extension = entry.name.partition(".")
                with open(entry.path, "rb") as stream:  # noqa: PTH123 - as fast as it gets
                    sink.write({"__key__": f"{folder.name}/{key}", extension: stream.read()})


def tar(files: Path, dest: Path) -> None:
    dest.mkdir()
    subprocess.run(["tar", "cf", dest / "all.tar", "-C", files, "."], check=True)


def tar_and_sync(files: Path, dest: Path) -> None:
    tar(files, dest)
    os.sync()


@functools.cache
def stored(files: Path) -> int:
    """Return the bytes that the files take in a tar; reading them brings them into the page cache."""
    sizes = (len(path.read_bytes()) for path in files.rglob("*") if path.is_file())
    return sum(512 + size + -size % 512 for size in sizes)


def write_and_fsync(files: Path, dest: Path) -> None:
    dest.mkdir()
    piece = os.urandom(2**20)
    for number, start in enumerate(range(0, stored(files), SHARD_BYTES)):
        with open(dest / f"{number}", "wb", buffering=0) as stream:  # noqa: PTH123 - as fast as it gets
            for _ in range(start, min(start + SHARD_BYTES, stored(files)), len(piece)):
                stream.write(piece)
            os.fsync(stream.fileno())


SYSTEMS: dict[str, Callable[[Path, Path], None]] = {
    "wdsdist, 1 process": lambda files, dest: ours(files, dest, 1),
    "ShardWriter": shard_writer,
    "ShardWriter, fastest": functools.partial(shard_writer, encoder=False, mtime=0),
    "wdsdist": ours,
    "tar cf": tar,
    "tar cf, sync": tar_and_sync,
    "write and fsync": write_and_fsync,
}


def compare(files: Path, rounds: int) -> None:
    """Time every system in every round, and print a table."""
    stored(files)
    seconds: list[dict[str, dict[str, float]]] = []
    for _ in range(rounds):
        seconds.append({})
        for name, run in SYSTEMS.items():
            with tempfile.TemporaryDirectory(dir=files.parent) as place:
                os.sync()  # what others have written must not be written in our time
                began = time.perf_counter()
                run(files, Path(place) / "dest")
                seconds[-1][name] = {"value": time.perf_counter() - began}
    print("| system | seconds (median) | least | greatest |")
    print("| --- | --- | --- | --- |")
    for name in SYSTEMS:
        found = spread(values(seconds, name))
        print(f"| {name} | {found.median:.2f} | {found.least:.2f} | {found.greatest:.2f} |")
    for system, other, aim in (
        ("ShardWriter", "wdsdist, 1 process", "at least 6"),
        ("ShardWriter, fastest", "wdsdist, 1 process", "at least 6"),
        ("wdsdist", "tar cf", "at most 1.5"),
        ("wdsdist", "tar cf, sync", "at most 1.3"),
        ("wdsdist, 1 process", "write and fsync", "none: 1 would be the disk's own time"),
    ):
        ratio = paired_ratio(seconds, system, other)
        if ratio is not None:
            print(f"{system} / {other}: {ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f}), aim {aim}")


def listing(count: int) -> None:
    """List files that are not there, plan their shards, and print time and memory."""
    from wdsdist.packing.plan import make_plan
    from wdsdist.packing.sources.listing import Folder, list_samples

    folders: dict[str, Folder] = {}
    for number in range(count):
        path = f"n{number // PER_FOLDER:08}/"
        folder = folders.setdefault(path, Folder())
        folder.add(f"{path[:-1]}_{number:08}.JPEG", 110_000 + number % 1000, mtime_ns=number)

    def report(what: str, began: float) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        print(f"{what}: {time.perf_counter() - began:.1f} s, peak memory of the process {peak:,.0f} MB", flush=True)

    began = time.perf_counter()
    found = list_samples(folders)
    report(f"listing {len(found.index.sizes):,} files", began)
    began = time.perf_counter()
    plan = make_plan(found.stored_sizes(), shuffle_seed=0, shard_bytes=SHARD_BYTES, shard_samples=None)
    report(f"planning {len(plan):,} shards", began)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Packing speed beside ShardWriter and tar.")
    parser.add_argument("--files", type=int, nargs=2, default=(100_000, 10_000), help="small and large ones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path("bench-data"), help="where the files are made, once")
    parser.add_argument("--listing", type=int, help="only list so many files that are not there")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.listing:
        listing(options.listing)
        return
    if shutil.which("tar") is None:
        parser.error("there is no tar to compare with")
    for kind, count in zip(("png2k", "jpeg70k"), options.files, strict=True):
        files, tally = data.make(replace(KINDS[kind], samples=count), options.data, count)
        print(f"\n{tally.samples:,} files of {tally.size / tally.samples / 1000:.1f} KB\n")
        compare(files, options.rounds)


if __name__ == "__main__":
    main()
