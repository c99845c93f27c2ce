"""A program: reads three compressed shards through a cache once standard input ends; prints which it decompressed.

Arguments: the data set, the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import wdsdist
from tests.support.sources import Shards
from wdsdist.storage import compression

unpack = compression.unpack


def counted(file: Path, *args: Any, **more: Any) -> None:
    print(file.name)
    unpack(file, *args, **more)


if __name__ == "__main__":
    compression.unpack = counted
    reader = Shards(wdsdist.open(sys.argv[1]), Path(sys.argv[2]))
    print("ready", flush=True)
    sys.stdin.read()
    assert [reader.shard(number).index.num_samples for number in range(3)] == [4, 4, 4]
