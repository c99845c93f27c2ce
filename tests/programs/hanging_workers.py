"""A program: a rank whose two workers hang, as they start or while they read. Starting ones have no ticket yet.

Arguments: the shards, ``as they start`` or ``while they read``, how workers start, and a folder with two pipes: each
worker writes its number into ``hanging``, and goes on once there is a byte in ``gate``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.loader.ipc.workers import WorkersIterator


def hang(*_: Any) -> None:
    with (Path(sys.argv[4]) / "hanging").open("w") as pipe:
        pipe.write(f"{os.getpid()}\n")
    os.read(os.open(Path(sys.argv[4]) / "gate", os.O_RDONLY), 1)


def main(shards: str, when: str, method: str, _: str) -> None:
    dataset = StreamingDataset(shards, transform=hang if when == "while they read" else None)
    init = hang if when == "as they start" else None
    if init:
        WorkersIterator._reset = lambda *_, **__: signal.pause()  # type: ignore[method-assign]
    for _ in StreamingDataLoader(dataset, 10, num_workers=2, worker_init_fn=init, multiprocessing_context=method):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
