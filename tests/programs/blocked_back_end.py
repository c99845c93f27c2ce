"""A program: ends while a fetch waits for a back end that never answers."""

from __future__ import annotations

from tests.support.memory_store import Fault, MemoryStore
from wdsdist.storage import engine

if __name__ == "__main__":
    store, stall = MemoryStore({"a": b"content"}), Fault("a", "stall")
    store.plant(stall)
    with engine.begin_ranges(f"{store.url}/a", [(0, 7)], lambda *_: None):
        stall.reached.wait()
