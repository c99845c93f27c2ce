"""A program: reads through two workers where /dev/shm is small: with and without anonymous memory.

Argument: the shards. Each of the two prints a line: how many bytes were seen, or why it was refused.
"""

from __future__ import annotations

import os
import sys

import wdsdist


def show() -> None:
    dataset = wdsdist.StreamingDataset(sys.argv[1])
    loader = wdsdist.StreamingDataLoader(dataset, 40, num_workers=2)
    try:
        print("seen", sum(len(view) for batch in loader for view in batch["bin"]))
    except wdsdist.errors.SharedMemoryError as error:
        print("refused", error)


if __name__ == "__main__":
    show()
    del os.memfd_create
    show()
