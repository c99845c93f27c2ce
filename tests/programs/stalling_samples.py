"""A program: packs 300 samples that Python makes, but stops at one of them for ever, and says so by a byte.

Arguments: ``data set`` or ``iterable``, the number of the sample to stop at, dest, workers.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

import wdsdist


def sample(number: int, stall: int) -> dict[str, Any]:
    if number == stall:
        os.write(1, b"x")
        threading.Event().wait()
    return {"txt": "text " * (number % 7), "cls": number}


class Dataset:
    """The samples by their numbers."""

    def __init__(self, stall: int) -> None:
        self.stall = stall

    def __len__(self) -> int:
        return 300

    def __getitem__(self, number: int) -> dict[str, Any]:
        return sample(number, self.stall)


def main(kind: str, stall: int, dest: str, workers: int) -> None:
    source = Dataset(stall) if kind == "data set" else map(functools.partial(sample, stall=stall), range(300))
    wdsdist.pack(source, dest, shard_samples=20, workers=workers)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
