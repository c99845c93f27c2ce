"""A program: ends while a fetch waits for a back end that never answers."""

from __future__ import annotations

import threading
from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

from wdsdist import storage

asked = threading.Event()


def never(*_: object) -> None:
    asked.set()
    threading.Event().wait()


if __name__ == "__main__":
    MemoryFileSystem.cat_file = never
    with storage.begin_fetch("memory://a", Path("/dev/null"), size=7):
        asked.wait()
