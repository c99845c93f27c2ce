"""Finding the members of tars that others wrote: members a second on one core.

Four ways read the same tar from the page cache, in turn, so that a busy machine slows all of them:

- *tarfile*: ``tarfile.open(...).getmembers()`` of the standard library;
- *a bare loop*: follow the size fields, cut out the names, keep four lists; no checksums, no long names, no check of
  anything, so it reads only the first kind of tar rightly;
- *wdsdist, members*: ``entries``: names, offsets and sizes with every checksum compared;
- *wdsdist, index*: that, and the members grouped to samples, as ``wdsdist index`` needs them; without the digest of the
  contents, which takes 0.5 ms a MB on its own (SHA-256).

The tars hold 100,000 members of 1,000 B and 1 B in turn: plain USTAR headers; as webdataset's ``TarWriter`` writes
them, with a PAX header for each time; with names that need a GNU long-name header.

    taskset -c 0 python tools/bench/bench_index.py [--repeat 7]

Results, medians with (minimum-maximum) of 5 runs in turn on one core of a very busy 4-core AMD EPYC, Python 3.11.7; on
a quieter one, the indexes of plain tars come at 1,000, of webdataset's at 600, of long names at 440 and 500:

    plain, 128,001,024 bytes; thousand members a second:
    tarfile                  48   (46-52)     1.0 x tarfile
    a bare loop             951   (664-1032)    19.7 x tarfile
    wdsdist, members       1129   (436-1630)    21.8 x tarfile
    wdsdist, index          849   (664-1025)    18.3 x tarfile
    webdataset's, 230,410,240 bytes; thousand members a second:
    tarfile                  20   (15-22)     1.0 x tarfile
    wdsdist, members        623   (429-693)    30.2 x tarfile
    wdsdist, index          480   (443-590)    26.3 x tarfile
    long names, PAX, 230,410,240 bytes; thousand members a second:
    tarfile                  16   (15-20)     1.0 x tarfile
    wdsdist, members        527   (474-584)    31.3 x tarfile
    wdsdist, index          367   (243-387)    18.7 x tarfile
    long names, GNU, 230,410,240 bytes; thousand members a second:
    tarfile                  25   (22-29)     1.0 x tarfile
    wdsdist, members        596   (573-738)    25.5 x tarfile
    wdsdist, index          411   (357-417)    15.5 x tarfile

Headers are what costs: webdataset writes two a member, and a long name is a third block to read and a text to make.
"""

from __future__ import annotations

import argparse
import functools
import io
import statistics
import tarfile
import time
from collections.abc import Callable

from webdataset import TarWriter

from wdsdist.shards.scan import from_tar
from wdsdist.shards.tar.reader import END, entries
from wdsdist.shards.tar.writer import header, padding

SAMPLES = 50_000
SIZES = {"jpg": 1000, "cls": 1}


def plain(samples: int) -> bytes:
    """A tar with one header block a member."""
    members = [(f"{number:08}.{extension}", size) for number in range(samples) for extension, size in SIZES.items()]
    return b"".join(header(name, size) + bytes(size) + padding(size) for name, size in members) + END


def by_webdataset(samples: int) -> bytes:
    """A tar as webdataset writes it."""
    buffer = io.BytesIO()
    with TarWriter(buffer, encoder=False) as sink:
        for number in range(samples):
            sink.write({"__key__": f"{number:08}", **{extension: bytes(size) for extension, size in SIZES.items()}})
    return buffer.getvalue()


def with_long_names(samples: int, form: int) -> bytes:
    """A tar with an extended header for each name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for number in range(samples):
            for extension, size in SIZES.items():
                entry = tarfile.TarInfo(f"{'folder' * 20}/{number:08}.{extension}")
                entry.size = size
                tar.addfile(entry, io.BytesIO(bytes(size)))
    return buffer.getvalue()


TARS: dict[str, Callable[[int], bytes]] = {
    "plain": plain,
    "webdataset's": by_webdataset,
    "long names, PAX": functools.partial(with_long_names, form=tarfile.PAX_FORMAT),
    "long names, GNU": functools.partial(with_long_names, form=tarfile.GNU_FORMAT),
}


def standard_library(content: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return len(tar.getmembers())


def bare_loop(content: bytes) -> int:
    names, headers, offsets, sizes = [], [], [], []
    offset = 0
    while content[offset]:
        size = int(content[offset + 124 : offset + 135], 8)
        names.append(content[offset : offset + 100].rstrip(b"\0").decode())
        headers.append(offset)
        offsets.append(offset + 512)
        sizes.append(size)
        offset += 512 + (size + 511 & -512)
    return len(names)


def members(content: bytes) -> int:
    return len(list(entries(content, label="x.tar")))


def index(content: bytes) -> int:
    return len(from_tar(content, label="x.tar").offsets)


WAYS: dict[str, Callable[[bytes], int]] = {
    "tarfile": standard_library,
    "a bare loop": bare_loop,
    "wdsdist, members": members,
    "wdsdist, index": index,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="rounds of all ways in turn")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of each tar, of two members")
    arguments = parser.parse_args()
    for kind, make in TARS.items():
        content = make(arguments.samples)
        ways = dict(WAYS) if kind == "plain" else {name: way for name, way in WAYS.items() if way is not bare_loop}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.repeat):
            for name, way in ways.items():
                start = time.perf_counter()
                found = way(content)
                rates[name].append(found / (time.perf_counter() - start))
                assert found == 2 * arguments.samples
        print(f"{kind}, {len(content):,} bytes; thousand members a second:")
        for name, taken in rates.items():
            rounded = [round(rate / 1e3) for rate in (statistics.median(taken), min(taken), max(taken))]
            times = statistics.median(one / base for one, base in zip(taken, rates["tarfile"], strict=True))
            print(f"{name:<20}{rounded[0]:>7}   ({rounded[1]}-{rounded[2]}){times:>8.1f} x tarfile")


if __name__ == "__main__":
    main()
