"""Memory that the listing of a source takes: bytes a member, in a process of its own.

A data set of ``--members`` empty members of two a sample is made, without its data where a listing asks for none, and
listed by a fresh process. Its memory of its own (``RssAnon``) is looked at every 10 ms from outside. Pages of mapped
archives, which the system takes back when it needs them, count in the last column only (``ru_maxrss``).

- *folder*: what ``os.scandir`` would tell of a tree of 1,000 folders;
- *zip*, *tar*: an archive of 1,000 folders; of the zip, the directory alone;
- *shards*: WebDataset shards of 100,000 members, all keys different; *shards, same keys*: each with the same keys;
- *csv*: a manifest with a key and a number in each row, which count as two members.

    python tools/bench/bench_listing.py [--members 1000000] [--kinds zip tar]

Results on 2 busy cores, Python 3.11.7, 2026-11-29 (one run each; of the folder, four runs: 60 or 61 bytes; a CSV has
some 90 MB for its reader, and 22 bytes a member beyond that):

    1,000,000 members: bytes a member, held and at most; most in all; members a second; with pages
    folder                   61     61       84 MB      342 k      102 MB
    zip                      82    543      567 MB       69 k      586 MB
    tar                      68     70       94 MB      137 k      591 MB
    shards                   36     36       57 MB     8473 k       78 MB
    csv                      88     88      112 MB      315 k      175 MB
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wdsdist.packing.sources import find
from wdsdist.packing.sources.listing import Folder, list_samples
from wdsdist.shards import index as shardindex
from wdsdist.shards import manifest
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest, Shard
from wdsdist.shards.tar.reader import BLOCK, END
from wdsdist.shards.tar.writer import header

FOLDERS = 1000
EXTENSIONS = "cls", "jpg"
SHARD = 50_000
"""Samples of a shard."""


def names(members: int) -> Iterator[str]:
    """Names as long as those of most data sets, folder by folder."""
    for number in range(members // 2):
        for extension in EXTENSIONS:
            yield f"{number * 2 * FOLDERS // members:04}/{number:08}.{extension}"


def make_folder(path: Path, members: int) -> None:
    path.write_text(str(members))


def make_zip(path: Path, members: int) -> None:
    entry = struct.Struct("<4s4B4HL2L5H2L")
    place = 64  # bytes for the header and the name before each empty file, which nobody reads here: they are a hole
    start = place * members
    with path.open("wb") as stream:
        stream.seek(start)
        for at, name in zip(range(0, start, place), names(members), strict=True):
            stream.write(entry.pack(b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 33, 0, 0, 0, len(name), 0, 0, 0, 0, 0, at))
            stream.write(name.encode())
        size = stream.tell() - start
        stream.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, members, members, size, start))
        stream.write(struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1))
        sizes = (min(one, 2**32 - 1) for one in (size, start))
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, *sizes, 0))


def make_tar(path: Path, members: int) -> None:
    with path.open("wb") as stream:
        for name in names(members):
            stream.write(header(name, 0))
        stream.write(END)


def make_shards(path: Path, members: int, *, same_keys: bool = False) -> None:
    path.mkdir()
    shards = []
    for number in range(-(-members // 2 // SHARD)):
        count = min(SHARD, members // 2 - number * SHARD)
        keys = [b"%08d" % (sample + (0 if same_keys else number * SHARD)) for sample in range(count)]
        index = ShardIndex(
            size=2 * count * BLOCK + len(END),
            sha256=f"{number:064x}",
            extensions=EXTENSIONS,
            sample_starts=2 * np.arange(count + 1),
            offsets=(np.arange(2 * count) + 1) * BLOCK,
            sizes=np.zeros(2 * count, np.int64),
            extension_ids=np.tile(np.arange(2, dtype=np.uint32), count),
            key_starts=8 * np.arange(count + 1),
            key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        )
        shards.append(Shard(f"{number:05}.tar", count, index.size, index.sha256))
        with (path / shards[-1].name).open("wb") as stream:
            stream.truncate(index.size)
        shardindex.beside(path / shards[-1].name).write_bytes(shardindex.dumps(index))
    (path / manifest.FILE_NAME).write_bytes(manifest.dumps(Manifest.of(str(path), shards)))


def make_same_keys(path: Path, members: int) -> None:
    make_shards(path, members, same_keys=True)


def make_csv(path: Path, members: int) -> None:
    with path.open("w") as stream:
        stream.write("id,label\n")
        stream.writelines(f"{number:08},{number % 1000}\n" for number in range(members // 2))


KINDS = {
    "folder": (make_folder, "members"),
    "zip": (make_zip, "a.zip"),
    "tar": (make_tar, "a.tar"),
    "shards": (make_shards, "shards"),
    "shards, same keys": (make_same_keys, "shards"),
    "csv": (make_csv, "a.csv"),
}


def list_folder(members: int) -> object:
    """List a folder of files that are not there."""
    every = names(members)

    folders = {f"{number:04}/": Folder() for number in range(FOLDERS)}
    for folder in folders.values():
        for _ in range(members // FOLDERS):
            folder.add(next(every).partition("/")[2], 0, mtime_ns=0)
    return list_samples(folders)


def own_memory(process: int | str = "self") -> int:
    """Bytes that belong to a process alone; 0 once it has ended."""
    try:
        found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except FileNotFoundError:
        return 0
    return 1024 * int(found[1]) if found else 0


def list_once(kind: str, path: Path) -> None:
    """In a process of its own: list a source, and print what it holds then."""
    before, start = own_memory(), time.perf_counter()
    kept = list_folder(int(path.read_text())) if kind == "folder" else find(path)
    print(before, own_memory() - before, time.perf_counter() - start, flush=True)
    del kept


def measure(kind: str, path: Path, members: int) -> str:
    command = [sys.executable, __file__, "--list", kind, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        peak = 0
        while now := own_memory(process.pid):
            peak = max(peak, now)
            time.sleep(0.01)
        line = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
    before, held, seconds = line.split()
    return (
        f"{kind:<20}{int(held) / members:>7.0f}{(peak - int(before)) / members:>7.0f}{peak / 1e6:>9.0f} MB"
        f"{members / float(seconds) / 1e3:>9.0f} k{usage.ru_maxrss * 1024 / 1e6:>9.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--list", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list:
        list_once(arguments.list[0], Path(arguments.list[1]))
        return
    print(f"{arguments.members:,} members: bytes a member, held and at most; most in all; members a second; with pages")
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            make, name = KINDS[kind]
            make(Path(folder) / name, arguments.members)
            print(measure(kind, Path(folder) / name, arguments.members), flush=True)


if __name__ == "__main__":
    main()
