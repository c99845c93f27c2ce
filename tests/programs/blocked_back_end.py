"""A program: ends while a fetch waits for a back end that never answers."""

from __future__ import annotations

from pathlib import Path

from tests.support.memory_store import Fault, MemoryStore
from wdsdist import storage

if __name__ == "__main__":
    store, stall = MemoryStore({"a": b"content"}, is_blocking=True), Fault("a", "stall")
    store.plant(stall)
    with storage.begin_fetch(f"{store.url}/a", Path("/dev/null"), size=7):
        stall.reached.wait()
