"""One data set in real stores behind a proxy: where it is, what was fetched of it, and what a cache folder holds."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tests.support.faults import Proxy
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.cache.chunk_cache import chunks_of_members
from wdsdist.cache.chunk_file import OpenCopy, room_of
from wdsdist.cache.locks import LockableFile
from wdsdist.shards import checksums
from wdsdist.shards import index as shard_index

T = TypeVar("T")

SHARDS, SAMPLES, SAMPLE_BYTES = 30, 40, 5000
SHARD = SAMPLES * (512 + 5120) + 1024
COPY = room_of(SHARD, 5000) + 6000
"""What a copy takes with its index, as the arithmetic of working sets has it."""
NAMES = [f"{shard:03}.tar" for shard in range(SHARDS)]
BATCH = 4
WINDOW = 2 * SAMPLES
"""Samples that are shuffled together, so that ranks go through the data set shard by shard."""


@dataclass(frozen=True, slots=True)
class Store:
    """The data set behind a proxy."""

    proxy: Proxy
    url: str
    folder: str
    """The path of its folder, as the proxy sees it."""
    options: dict[str, Any] = field(default_factory=dict)
    """For the client."""

    def through(self, proxy: Proxy) -> Store:
        """Return the same data set behind another proxy in front of this one."""
        endpoint = {"endpoint_url": proxy.url} if self.options else {}
        return Store(proxy, self.url.replace(self.proxy.url, proxy.url), self.folder, {**self.options, **endpoint})

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def downloads(self) -> Counter[str]:
        """Return how often the bytes of each shard were sent, in whole."""
        counts = self.proxy.counts()
        return Counter(
            {name: round(counts[self.path(name)].bytes / SHARD) for name in NAMES if self.path(name) in counts}
        )


def digest(batch: dict[str, Any]) -> str:
    """Return a digest of all that is in a batch."""
    content = hashlib.sha256("\n".join(batch["__key__"]).encode())
    for part in batch["bin"]:
        content.update(part)
    return content.hexdigest()


def expected(folder: Path, rank: int, world_size: int, *, epoch: int = 0) -> list[str]:
    """Return the digests of a rank's batches, read from a local folder in one process."""
    dataset = StreamingDataset(folder, num_replicas=world_size, rank=rank, shuffle_window=WINDOW)
    loader = StreamingDataLoader(dataset, BATCH, num_workers=0)
    loader.set_epoch(epoch)
    return [digest(batch) for batch in loader]


def used(folder: Path) -> int:
    """Return the bytes of disk that the copies in a cache folder take at one moment, with their indexes."""
    sizes = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.lstat().st_blocks * 512)
    return sum(sizes)


def strange_copies(folder: Path, stored: Path) -> list[str]:
    """Return the copies in a cache folder of which a member that is there has other bytes than the shard has.

    A copy without its index was given up by a process that found it wrong while another one used it.
    """
    strange = []
    for path in folder.glob("*/*.tar"):
        with contextlib.suppress(FileNotFoundError, ValueError), LockableFile(path, writable=True) as file:
            if not file.lock(alone=False):
                continue
            shard_index.load(shard_index.beside(path))
            index = shard_index.load(stored / f"{path.name.rpartition('-')[0]}.tar.wdsindex")
            copy = OpenCopy(file, None, index)  # type: ignore[arg-type]
            there = [
                member
                for member in range(len(index.offsets))
                if copy.map[chunks_of_members(index, np.array([member]))].all()
            ]
            if len(checksums.wrong(index, np.array(there, np.int64), copy.data)):
                strange.append(path.name)
    return strange


@contextmanager
def watched(look: Callable[[], T]) -> Iterator[list[T]]:
    """Look over and over until the block ends, and note what is found."""
    found: list[T] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):  # the processes need the lock too
            found.append(look())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
