"""A program: packs an iterable, and prints what it holds in memory after the second shard and at the end, in bytes.

Arguments: how many samples, dest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wdsdist.packing.options import Options
from wdsdist.packing.run import run


def main(count: int, dest: str) -> None:
    held = []

    def measure(state: object) -> None:
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    samples = ({"txt": f"{number:0500}"} for number in range(count))
    run(samples, dest, Options(shard_samples=10_000), progress=measure)
    print(held[1], held[-1])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
