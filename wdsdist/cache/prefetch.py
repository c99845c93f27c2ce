"""Prefetch of the shards that a rank needs next, while a worker makes its batches.

Every worker prefetches from its own position in the epoch, with its own threads. All threads of a node fetch the
nearest shards first, and each takes the next chunks that nobody has claimed. A shard that cannot be prefetched is
fetched when it is needed, and raises its error then.

`PrefetchSchedule` decides what to fetch and is pure; `FetchQueue` hands it to threads; `Prefetch` ties both to the
cache.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.cache.cached_shards import CachedShards
from wdsdist.errors import WdsdistError
from wdsdist.sampling.shard_schedule import Use
from wdsdist.sampling.working_set import copy_sizes
from wdsdist.shards.source import Members

_CONNECTIONS, _LEAST_THREADS = 16, 4
"""Requests at once of all workers of a rank, and of each worker at least."""

_UNKNOWN_SIZE = 128 << 20
"""Bytes of a shard whose size is not known: look ahead, but not without limit."""


class PrefetchSchedule:
    """Decides which shards to prefetch. Pure: nothing is fetched.

    Args:
        uses: the shards that the process needs from its first batch on, as `shard_schedule.upcoming` yields them;
            ``None`` if the next one is not known yet.
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
        self._following: Use | None = None  # the first use after them
        self._until = -1  # the last batch for which they are valid

    def advance(self, batch: int) -> dict[int, int] | None:
        """Return the shards to prefetch from a batch on, nearest first, each with the batch that first needs it.

        Returns ``None`` if they have not changed since the last call.
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
    """The queue of shards to fetch, nearest first, for the prefetch threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # All below is changed under the condition's lock only.
        self._shards: list[int] = []  # nearest first
        self._done: set[int] = set()  # of these: there, or claimed by others
        self._is_full = False
        self.is_closed = False

    def replace(self, shards: list[int] | None = None) -> None:
        """Replace the shards to fetch, and try again if there was no room; running fetches continue."""
        if shards is not None or self._is_full:
            with self._changed:
                self._shards = self._shards if shards is None else shards
                self._done.intersection_update(self._shards)
                self._is_full = False
                self._changed.notify_all()

    def take(self) -> int | None:
        """Wait for the nearest shard to fetch and return it, to each thread the same; ``None`` once it is closed."""
        with self._changed:
            while not self.is_closed:
                shard = next((number for number in self._shards if number not in self._done), None)
                if shard is not None and not self._is_full:
                    return shard
                self._changed.wait()
        return None

    def done(self, shard: int, *, has_room: bool) -> None:
        """Record that nothing of a shard is left to fetch, or that it has no room.

        Without room `take` waits: a shard that is needed later must not take the room that a nearer one lacks.
        """
        with self._changed:
            if has_room:
                self._done.add(shard)
            else:
                self._is_full = True

    def close(self) -> None:
        """Close the queue: `take` returns ``None`` from now on."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()


class Prefetch:
    """Prefetches the shards of one worker through an epoch.

    Args:
        source: the shards of the data set.
        uses: the shards that the process needs from its first batch on, as `shard_schedule.upcoming` yields them.
        room: bytes of shards up to which to look ahead.
        job: the same for all processes that go through the same batches.
        epoch: returns which members an epoch reads of a shard; ``None`` if it reads all.
        num_workers: that prefetch for the same batches.
    """

    def __init__(
        self,
        source: CachedShards,
        uses: Iterator[Use | None],
        *,
        room: int,
        job: str = "",
        epoch: Callable[[int], Members | None] = lambda shard: None,
        num_workers: int = 1,
    ) -> None:
        self._source = source
        self._cache = source.cache
        self._job = job
        self._epoch = epoch
        manifest = source.manifest
        sizes = copy_sizes(manifest.counts, manifest.needed_sizes)
        sizes = np.where(sizes > 0, sizes, _UNKNOWN_SIZE)
        self._threads = max(_LEAST_THREADS, _CONNECTIONS // num_workers)
        self._schedule = PrefetchSchedule(uses, sizes, room=room)
        self._queue = FetchQueue()
        self._may_begin = source.first_batch = threading.Event()
        self._process = os.getpid()
        self._is_started = False

    def reach(self, batch: int) -> None:
        """Record that the worker makes this batch now, and prefetch for the batches after it.

        The first time, prefetch begins when this batch has its chunks.
        """
        is_first = not self._is_started
        if not is_first:
            self.begin()
        first_use = self._schedule.advance(batch)
        if first_use is None:
            self._queue.replace()
        else:
            shards = [shard for shard in first_use if self._source.manifest.is_copied[shard]]
            needs = {self._source.shard(shard).key: first_use[shard] for shard in reversed(shards)}
            self._source.coming = frozenset(shard for shard in shards if self._epoch(shard) is None)
            self._cache.catalog.expect(self._job, batch, needs)
            self._queue.replace(shards)
        if is_first:
            self._start()

    def begin(self) -> None:
        """Let prefetch begin, also if no batch is made."""
        self._may_begin.set()

    def _start(self) -> None:
        self._is_started = True
        # An unfinished iteration is dropped at exit, after modules that `close` needs are unloaded.
        atexit.register(self.close)
        for number in range(self._threads):
            threading.Thread(target=self._fetch_all, name=f"wdsdist-prefetch-{number}", daemon=True).start()

    def _fetch_all(self) -> None:
        """Fetch shards from the queue until it is closed; the target of each thread."""
        self._may_begin.wait()
        while (shard := self._queue.take()) is not None:
            has_room = True
            # The batch that needs the shard raises the error.
            with contextlib.suppress(WdsdistError):
                has_room = self._cache.fetch_ahead(self._source.shard(shard), self._epoch(shard))
            self._queue.done(shard, has_room=has_room)

    def close(self) -> None:
        """End the threads without waiting; running fetches finish in the background."""
        # A forked child may drop an inherited object, whose lock a thread of the parent may have held.
        if not self._queue.is_closed and self._process == os.getpid():
            self._queue.close()
            self.begin()  # and find that it is closed
            self._cache.catalog.expect(self._job, 0, {})
            atexit.unregister(self.close)
