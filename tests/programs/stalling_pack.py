"""A program: packs a folder, but stops in the middle of the third shard for ever, and says so on standard output.

Arguments: source, dest, workers, and how to compress, which may be left out. What it says is one byte.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from wdsdist.packing import pack, sources


class Stalling:
    """Samples of which the fourth never comes."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self.samples):
            if number == 3:
                os.write(1, b"x")
                threading.Event().wait()
            yield sample


class Source:
    """A source whose third shard stalls."""

    taken = 0

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Any) -> Any:
        self.taken += 1
        samples = self.source.take(indices)
        return Stalling(samples) if self.taken == 3 else samples


def main(source: str, dest: str, workers: str, compress: str | None = None) -> None:
    find = sources.find
    sources.find = lambda *args, **options: Source(find(*args, **options))
    pack(source, dest, shard_samples=5, workers=int(workers), compress=compress)


if __name__ == "__main__":
    main(*sys.argv[1:])
