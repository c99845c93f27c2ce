"""Columns and views of many samples: opening a view, choosing by a column, and joining a table by identifiers.

Each step runs in a process of its own, so that its peak memory is its own. The shards need not exist: an ``index.json``
names them, and two columns, a number and an identifier of 32 digits, stand in files.

- *select*: ``select('"n" < 0.5')`` over the number, in seconds, and the peak of resident memory;
- *open*: open the saved view and find the samples of its first and last shard: seconds, and the memory that this
  process alone has for that, beside the bytes of the mapped file for each chosen sample;
- *join*: ``add_columns`` of a Parquet file with a row for each sample, in another order: seconds and peak memory, which
  holds what is mapped of the column and of the Parquet file too.

    python tools/bench/bench_columns.py [--samples 1000000] [--shards 100] [--data FOLDER]

Results of ``--samples 100000000 --shards 10000`` on 2 cores, Python 3.11, DuckDB 2.0, beside other programs. *select*
and *open*: 2026-11-25, with the files in the page cache; *open* compares all bytes of the view with their digest.
*join*: 2026-11-24.

    select: 49,999,801 of 100,000,000 samples in 4.61 s, 1.48 GiB resident at most
    open:   0.20 s, 4.2 MiB private, 4.00 bytes of file a sample
    join:   100,000,000 rows in 129.6 s, 9.92 GiB resident at most
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import wdsdist
from wdsdist.curation import column_file
from wdsdist.shards.manifest import Manifest, Shard, index_json

CHUNK = 1_000_000
DIGITS = 32
STRIDE = 982_451_653  # a prime, so that its multiples visit all samples, unless their number is a multiple of it
HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def identifiers(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Return uint8 [numbers, 32]: different hexadecimal digits for different numbers, without an order."""
    words = numbers * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(31)
    both = np.stack([words * np.uint64(0xBF58476D1CE4E5B9), words], axis=1).view(np.uint8)
    return np.stack([HEX[both >> 4], HEX[both & 15]], axis=2).reshape(len(numbers), DIGITS)


def strings(digits: npt.NDArray[np.uint8]) -> pa.Array:
    """Return rows of digits as an array of strings."""
    starts = np.arange(len(digits) + 1, dtype=np.int64) * DIGITS
    return pa.LargeStringArray.from_buffers(len(digits), pa.py_buffer(starts), pa.py_buffer(digits.reshape(-1).copy()))


def make(folder: Path, samples: int, shards: int) -> None:
    """Write the ``index.json``, the columns and the table."""
    counts = np.full(shards, samples // shards)
    counts[: samples % shards] += 1
    listed = (Shard(f"{n:06}.tar", count, 10_000 * count, f"{n:064x}") for n, count in enumerate(counts.tolist()))
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest.of(str(folder), listed, extra={"fields": ["jpg"]})
    (folder / index_json.FILE_NAME).write_bytes(index_json.dumps(manifest))
    data = wdsdist.open(folder)
    with column_file.adding(data) as write:
        write("n", pa.chunked_array([np.random.default_rng(0).random(samples)]))
        starts = range(0, samples, CHUNK)
        parts = [identifiers(np.arange(first, min(first + CHUNK, samples), dtype=np.uint64)) for first in starts]
        write("id", pa.chunked_array(map(strings, parts)))
    schema = pa.schema([("id", pa.large_string()), ("score", pa.float64())])
    with pq.ParquetWriter(folder / "table.parquet", schema, compression="snappy", use_dictionary=False) as writer:
        for first in range(0, samples, CHUNK):
            chunk = np.arange(first, min(first + CHUNK, samples), dtype=np.uint64)
            rows = chunk * np.uint64(STRIDE) % np.uint64(samples)
            writer.write_table(pa.table([strings(identifiers(rows)), pa.array(rows.astype(np.float64))], schema=schema))


def private() -> int:
    """Return the bytes of memory that this process alone has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def select(folder: Path) -> str:
    data = wdsdist.open(folder)
    began = time.perf_counter()
    view = data.select('"n" < 0.5')
    taken = time.perf_counter() - began
    view.save(folder / "half")
    return f"{view.num_samples:,} of {data.num_samples:,} samples in {taken:.2f} s, {peak()}"


def open_view(folder: Path) -> str:
    before, began = private(), time.perf_counter()
    view = wdsdist.open(folder / "half")
    assert view.picks is not None
    ends = [len(view.picks.of_shard(shard)) for shard in (0, len(view.counts) - 1)]
    taken, added = time.perf_counter() - began, private() - before
    each = (folder / "half").stat().st_size / view.num_samples
    assert sum(ends) > 0
    return f"{taken:.2f} s, {added / 2**20:.1f} MiB private, {each:.2f} bytes of file a sample"


def join(folder: Path) -> str:
    data = wdsdist.open(folder)
    began = time.perf_counter()
    data.add_columns(join=folder / "table.parquet", on="id")
    taken = time.perf_counter() - began
    assert data.column("score")[1:4].tolist() == [1, 2, 3]
    return f"{data.num_samples:,} rows in {taken:.1f} s, {peak()}"


def peak() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB resident at most"


STEPS = {"select": select, "open": open_view, "join": join}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--data", type=Path, help="folder for the files  [default: a temporary one]")
    parser.add_argument("--step", choices=["make", *STEPS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step == "make":
        make(arguments.data, arguments.samples, arguments.shards)
        return
    if arguments.step:
        print(STEPS[arguments.step](arguments.data))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.data or Path(temporary)) / "data"
        sizes = ["--samples", str(arguments.samples), "--shards", str(arguments.shards)]
        for step in ("make", *STEPS):
            command = [sys.executable, __file__, "--step", step, "--data", str(folder), *sizes]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            if step != "make":
                print(f"{step + ':':<8}{done.stdout.strip()}")


if __name__ == "__main__":
    main()
