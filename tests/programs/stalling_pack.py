"""A program: packs a source, but stops in the middle of the third shard for ever, and says so on standard output.

Arguments: source (a path, or the name of a function in `tests.support.made`), dest, workers, and how to compress and
whether to append, which may be left out. What it says is one byte.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.support import made
from wdsdist.packing import pack, parallel, sources


class Stalling:
    """Samples of which one never comes."""

    def __init__(self, samples: Any, missing: int) -> None:
        self.samples = samples
        self.missing = missing

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self.samples):
            if number == self.missing:
                os.write(1, b"x")
                threading.Event().wait()
            yield sample


def stalling(source: sources.Source) -> sources.Source:
    """Return a source whose third shard of five samples stalls."""
    taken = itertools.count(1)

    def take(indices: Any) -> Any:
        samples = source.take(indices)
        return Stalling(samples, 3) if next(taken) == 3 else samples

    if source.is_stream:
        return replace(source, load=lambda: replace(source.contents, stream=iter(Stalling(source.contents.stream, 13))))
    return replace(source, load=lambda: replace(source.contents, take=take))


def main(source: str, dest: str, workers: str, compress: str = "", append: str = "") -> None:
    parallel._ABREAST = 1  # one shard at a time, so that those before it are whole
    find = sources.find
    sources.find = lambda *args, **options: stalling(find(*args, **options))
    pack(
        getattr(made, source, lambda: source)(),
        dest,
        shard_samples=5,
        workers=int(workers),
        compress=compress or None,
        append=bool(append),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
