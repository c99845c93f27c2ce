"""Prefetch of the shards that a rank needs next, while a worker makes its batches.

Every worker prefetches from its own position in the epoch, with its own threads; the workers of one node share the work
because each shard is fetched by one of them. A shard that cannot be prefetched is fetched when it is needed, and raises
its error then.

`PrefetchSchedule` decides what to fetch and is pure; `FetchQueue` hands it to threads; `Prefetch` ties both to the
cache. `warm` fetches the first shards of a schedule before training runs.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.pools import Threads, completed
from wdsdist.cache.folders import copy_key
from wdsdist.cache.parts import Members
from wdsdist.cache.priorities import Need
from wdsdist.cache.shard_cache import BUSY, ShardCache
from wdsdist.sampling.shard_schedule import Use
from wdsdist.sampling.working_set import copy_sizes
from wdsdist.shards.manifest import Manifest
from wdsdist.storage import waits

_BYTES_AT_A_TIME = 256 << 20
_LEAST_SHARDS, _MOST_THREADS = 2, 8
"""Bounds of the shards that are fetched at once, in bytes and shards by all workers of a rank and in threads by one of
them: enough for all connections of a process, and for a link that does not idle while shards whose bytes came in side
by side are verified. With more, shards share the link that are needed one after another, and the first of them comes as
late as the last."""

_UNKNOWN_SIZE = 128 << 20
"""Of a shard whose size nobody has noted: look ahead, but not without limit."""

_WARMED_AT_ONCE = 4
"""Shards that `warm` fetches at once; each takes several connections."""

_PATIENCE = 50
"""Other processes may free space at any time. To check takes the lock of the whole cache, so a check is repeated only
after this many times its own duration."""


class PrefetchSchedule:
    """Decides which shards to prefetch. Pure: nothing is fetched.

    Args:
        uses: the shards that the process needs from its first batch on, as `shard_schedule.upcoming` yields them;
            ``None`` where the next one is not known yet.
        sizes: int64 [shards]: bytes that the copy of each takes.
        room: bytes of shards up to which to look ahead.

    >>> uses = [Use(0, 1, 7), Use(2, 3, 5), Use(4, 5, 6)]
    >>> schedule = PrefetchSchedule(iter(uses), np.full(8, 100), room=200)
    >>> schedule.advance(0)
    {7: 0, 5: 2}
    >>> schedule.advance(1) is None  # still within the windows that are known
    True
    >>> schedule.advance(2)
    {5: 2, 6: 4}
    """

    def __init__(self, uses: Iterator[Use | None], sizes: Int64s, *, room: int) -> None:
        self._uses = uses
        self._sizes = sizes
        self._room = room
        self._known: list[Use] = []  # nearest first
        self._following: Use | None = None  # the first one after them
        self._until = -1  # the last batch for which they are valid

    def advance(self, batch: int) -> dict[int, int] | None:
        """Return the shards to prefetch from a batch on, nearest first, each with the batch that first needs it.

        Returns ``None`` where they have not changed since the last call.
        """
        if batch <= self._until:
            return None
        if self._following is None:
            self._following = next(self._uses, None)
        known = [use for use in self._known if use.last >= batch]
        ahead = int(self._sizes[list({use.shard for use in known})].sum())
        while self._following is not None and ahead + self._sizes[self._following.shard] <= self._room:
            known.append(self._following)
            ahead += int(self._sizes[self._following.shard])
            self._following = next(self._uses, None)
        self._known = known
        self._until = min((use.last for use in known), default=batch)
        first_use: dict[int, int] = {}
        for use in known:
            first_use.setdefault(use.shard, use.first)
        return {shard: max(batch, first) for shard, first in first_use.items()}


class FetchQueue:
    """The queue of shards to fetch, nearest first, for the prefetch threads.

    Where there was no space for a shard, `take` returns none until `try_again`: a shard that is needed later must not
    take the space that a nearer one waits for.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # All below is changed under the condition's lock only.
        self._shards: list[int] = []  # nearest first
        self._taken: set[int] = set()  # those of them that are cached, or being fetched
        self._retry_at: float | None = None  # set where there was no space
        self.is_closed = False

    def replace(self, shards: list[int]) -> None:
        """Replace the shards to fetch; running fetches continue."""
        with self._changed:
            self._shards = shards
            self._taken.intersection_update(shards)
            self._retry_at = None
            self._changed.notify_all()

    def take(self) -> int | None:
        """Wait for the nearest shard to fetch and return it; ``None`` once the queue is closed."""
        with self._changed:
            while not self.is_closed:
                shard = next((one for one in self._shards if one not in self._taken), None)
                if shard is not None and self._retry_at is None:
                    self._taken.add(shard)
                    return shard
                self._changed.wait()
        return None

    def refused(self, shard: int, *, retry_at: float) -> None:
        """Record that there was no space for a shard: retry then."""
        with self._changed:
            self._taken.discard(shard)
            self._retry_at = retry_at
            self._changed.notify_all()

    def try_again(self) -> None:
        """Let `take` return shards again once the time to retry is over."""
        if self._retry_at is not None and time.monotonic() > self._retry_at:
            with self._changed:
                self._retry_at = None
                self._changed.notify_all()

    def close(self) -> None:
        """Close the queue: `take` returns ``None`` from now on."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()


class Prefetch:
    """Prefetches the shards of one worker through an epoch.

    Args:
        cache: where shards are fetched to.
        manifest: the data set.
        uses: what is needed from the process's first batch on, as `shard_schedule.upcoming` yields it.
        room: bytes of shards up to which to look ahead.
        job: the same for all processes that go through the same batches.
        epoch: returns what an epoch reads of a shard; ``None`` where that is all.
        num_workers: that prefetch for the same batches.
        needed: int64 [shards]: bytes that are needed of each; by default what the manifest says.
    """

    def __init__(
        self,
        cache: ShardCache,
        manifest: Manifest,
        uses: Iterator[Use | None],
        *,
        room: int,
        job: str = "",
        epoch: Callable[[int], Members | None] = lambda shard: None,
        num_workers: int = 1,
        needed: Int64s | None = None,
    ) -> None:
        self._cache = cache
        self._manifest = manifest
        self._job = job
        self._epoch = epoch
        sizes = copy_sizes(manifest.counts, manifest.needed_sizes if needed is None else needed)
        sizes = np.where(sizes > 0, sizes, _UNKNOWN_SIZE)
        at_a_time = max(_LEAST_SHARDS, -(-_BYTES_AT_A_TIME // max(1, int(sizes.mean()))))  # of all workers
        self._threads = min(_MOST_THREADS, -(-at_a_time // num_workers))
        self._schedule = PrefetchSchedule(uses, sizes, room=room)
        self._queue = FetchQueue()
        self._may_begin = cache.first_batch()
        self._process = os.getpid()
        self._is_started = False

    def reach(self, batch: int) -> None:
        """Record that the worker makes this batch now, and prefetch for the batches after it.

        The first time, prefetch begins when this batch has got parts of the shards that it needs, or waits for them.
        """
        is_first = not self._is_started
        if not is_first:
            self.begin()
        first_use = self._schedule.advance(batch)
        if first_use is None:
            self._queue.try_again()
        else:
            shards = [shard for shard in first_use if self._manifest.is_copied[shard]]
            needs = [Need(copy_key(self._manifest, shard), first_use[shard]) for shard in shards]
            self._cache.expect(needs, self._job)
            self._queue.replace(shards)
        if is_first:
            self._start()

    def begin(self) -> None:
        """Let prefetch begin, also where no batch is made."""
        self._may_begin.set()

    def _start(self) -> None:
        self._is_started = True
        # An unfinished iteration is dropped at exit, after modules that `close` needs are unloaded.
        atexit.register(self.close)
        for number in range(self._threads):
            threading.Thread(target=self._fetch_all, name=f"wdsdist-prefetch-{number}", daemon=True).start()

    def _fetch_all(self) -> None:
        """Fetch shards from the queue until it is closed; the target of each thread."""
        waits.fetch_ahead()
        self._may_begin.wait()
        while (shard := self._queue.take()) is not None:
            began = time.monotonic()
            refusal = self._cache.fetch_ahead(self._manifest, shard, self._epoch(shard))
            if refusal not in (None, BUSY):
                ended = time.monotonic()
                self._queue.refused(shard, retry_at=ended + _PATIENCE * (ended - began))

    def close(self) -> None:
        """End the threads without waiting; running fetches finish in the background."""
        # A forked child may drop an inherited object, whose lock a thread of the parent may have held.
        if not self._queue.is_closed and self._process == os.getpid():
            self._queue.close()
            self.begin()  # and find that it is closed
            self._cache.expect([], self._job)
            atexit.unregister(self.close)


def first_shards(manifest: Manifest, uses: Iterable[Use], room: int, needed: Int64s) -> list[int]:
    """Return the first shards of a schedule that are read through the cache, as many as fit into ``room`` bytes.

    ``needed`` are the bytes that are needed of each shard of the data set: int64 [shards].
    """
    sizes = copy_sizes(manifest.counts, np.where(manifest.is_copied, needed, 0))
    chosen: dict[int, None] = {}
    for use in uses:
        if manifest.is_copied[use.shard] and use.shard not in chosen:
            room -= int(sizes[use.shard])
            if room < 0 and chosen:
                break
            chosen[use.shard] = None
    return list(chosen)


def warm(
    cache: ShardCache,
    manifest: Manifest,
    shards: list[int],
    progress: Callable[[int, int], None] | None = None,
    *,
    needed: Int64s,
    epoch: Callable[[int], Members | None] = lambda shard: None,
) -> None:
    """Fetch shards into a cache, in this order, and keep them from eviction until all are there.

    Args:
        cache: where to.
        manifest: the data set.
        shards: numbers of its shards.
        progress: called with the number of shards and the bytes needed of them after each.
        needed: int64 [shards]: bytes that are needed of each.
        epoch: returns what an epoch reads of a shard, as `Prefetch` takes it: little of it is fetched in parts.

    Raises what `ShardCache.pin` raises.
    """
    cache.expect([Need(copy_key(manifest, shard), place) for place, shard in enumerate(shards)])
    done = taken = 0
    try:
        with Threads(_WARMED_AT_ONCE) as executor:
            futures = {executor.submit(_fetch, cache, manifest, shard, epoch(shard)): shard for shard in shards}
            try:
                for future in completed(futures):
                    future.result()
                    done, taken = done + 1, taken + max(0, int(needed[futures[future]]))
                    if progress is not None:
                        progress(done, taken)
            finally:
                executor.shutdown(wait=False, cancel_futures=True)
    finally:
        cache.expect([])


def _fetch(cache: ShardCache, manifest: Manifest, shard: int, epoch: Members | None) -> None:
    """Fetch a shard, or wait until another process has."""
    if cache.fetch_ahead(manifest, shard, epoch) is not None:
        cache.pin(manifest, shard).close()  # which waits, or raises why it cannot be fetched
