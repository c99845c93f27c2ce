"""Prefetch of the shards that a rank needs next, while a worker makes its batches.

Every worker prefetches from its own position in the epoch, with its own threads. All threads of a node fetch the
nearest shards first, and each takes the next chunks that nobody has claimed. A shard that cannot be prefetched is
fetched when it is needed, and raises its error then.
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
from wdsdist.cache.chunk_file import OpenCopy
from wdsdist.cache.folder import clear_errors
from wdsdist.errors import WdsdistError
from wdsdist.sampling.shard_schedule import Use, copy_sizes
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
        self._job = job
        self._epoch = epoch
        manifest = source.manifest
        sizes = copy_sizes(manifest.counts, manifest.needed_sizes)
        sizes = np.where(sizes > 0, sizes, _UNKNOWN_SIZE)
        self._schedule = PrefetchSchedule(uses, sizes, room=room)
        self._num_threads = max(_LEAST_THREADS, _CONNECTIONS // num_workers)
        self._may_begin = source.first_batch = threading.Event()
        self._process = os.getpid()
        self._is_started = False
        self._changed = threading.Condition()
        # All below is changed under the condition's lock only.
        self._shards: list[int] = []  # nearest first
        self._done: set[int] = set()  # of these: there, or claimed by others
        self._copies: dict[int, OpenCopy | None] = {}  # of these, for all threads; ``None`` while a thread opens it
        self._is_full = False
        self._is_closed = False

    def reach(self, batch: int) -> None:
        """Record that the worker makes this batch now, and prefetch for the batches after it.

        The first time, prefetch begins when this batch has its chunks.
        """
        if self._is_started:
            self.begin()
        first_use, shards = self._schedule.advance(batch), self._shards
        if first_use is not None:
            shards = [shard for shard in first_use if self._source.manifest.is_copied[shard]]
            needs = {self._source.shard(shard).key: first_use[shard] for shard in reversed(shards)}
            self._source.coming = {shard: self._epoch(shard) for shard in shards}
            self._source.cache.catalog.expect(self._job, batch, needs)
        with self._changed:
            if first_use is not None or self._is_full:  # else no thread has more to do: to wake them takes the GIL
                self._shards = shards
                self._done.intersection_update(shards)
                self._copies = {number: copy for number, copy in self._copies.items() if number in shards}
                self._is_full = False
                self._changed.notify_all()
        if not self._is_started:
            self._is_started = True
            # An unfinished iteration is dropped at exit, after modules that `close` needs are unloaded.
            atexit.register(self.close)
            for number in range(self._num_threads):
                threading.Thread(target=self._fetch_all, name=f"wdsdist-prefetch-{number}", daemon=True).start()

    def begin(self) -> None:
        """Let prefetch begin, also if no batch is made."""
        self._may_begin.set()

    def _fetch_all(self) -> None:
        """Open or fetch the nearest shards, together with other threads, until `close`; the target of each thread."""
        self._may_begin.wait()
        while (nearest := self._nearest()) is not None:
            self._advance(*nearest)
            del nearest  # a thread that waits must not hold a copy

    def _advance(self, number: int, copy: OpenCopy | None) -> None:
        """Open the cached copy of a shard, or prefetch the chunks of it that no thread or process has claimed."""
        cache, shard, opened, has_room = self._source.cache, self._source.shard(number), None, True
        # The batch that needs the shard asks again with all retries, and raises the error.
        with contextlib.suppress(WdsdistError), clear_errors(cache.root, shard.described):
            if copy is None:
                opened = cache.open(shard, cache.deadline())
            else:
                has_room = cache.fetch_ahead(copy, self._epoch(number), lambda: not self._is_closed)
        with self._changed:
            self._copies.pop(number, None)
            if opened is not None and not self._is_full:
                self._copies[number] = opened
            elif opened is None and has_room:
                self._done.add(number)
            else:  # all wait for the next batch: a shard that is needed later must not take the room
                self._is_full = True
                self._copies.clear()
            self._changed.notify_all()

    def _nearest(self) -> tuple[int, OpenCopy | None] | None:
        """Wait for the nearest shard; return it with its copy to fetch, or ``None`` to open it; ``None`` once closed.

        While one thread opens a copy, others open the copies behind it, unless these have to make room for others.
        """
        with self._changed:
            while not self._is_closed:
                left = [number for number in self._shards if number not in self._done]
                left = left[: 1 if self._source.is_bounded else self._num_threads]
                if left and not self._is_full:
                    if (copy := self._copies.get(left[0])) is not None:
                        return left[0], copy
                    for number in left:
                        if number not in self._copies:
                            self._copies[number] = None
                            return number, None
                self._changed.wait()
        return None

    def close(self) -> None:
        """End the threads without waiting; requests that run finish, or fail soon, in the background."""
        # A forked child may drop an inherited object, whose lock a thread of the parent may have held.
        if not self._is_closed and self._process == os.getpid():
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self.begin()  # and find that it is closed
            self._source.cache.catalog.expect(self._job, 0, {})
            atexit.unregister(self.close)
