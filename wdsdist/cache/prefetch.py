"""Fetches the shards that a rank needs next, while the process that reads makes its batches.

Every process that reads does this from its own place in the epoch on, with threads of its own; those of one node share
the work because each shard is fetched by one of them. What cannot be fetched ahead is left to who needs it, and
its error too.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator

import numpy as np

from wdsdist.cache import Need, ShardCache, copy_key
from wdsdist.sampling.shard_schedule import Use
from wdsdist.sampling.working_set import copy_sizes
from wdsdist.shards.manifest import Manifest

_BYTES_AT_A_TIME = 192 << 20
_LEAST_THREADS, _MOST_THREADS = 2, 8
"""Shards are fetched at a time until they make up so many bytes, or are so many: what all connections of a process
carry, and half as much again that is being verified. Else they would idle in step while all shards are hashed."""

_PATIENCE = 50
"""Other processes may have made room at any time. To look for it takes the lock of the whole cache, so it is done again
only after this many times the time that it took."""


_PAUSE = 0.01
"""Seconds after which to look again whether another process has fetched a shard that the first batch waits for."""


class Prefetch:
    """Follows one process through an epoch.

    Args:
        cache: where shards are fetched to.
        manifest: the data set.
        uses: what is needed from the process's first batch on, as `lookahead.upcoming` tells.
        room: bytes of shards up to which to look ahead.
        job: the same for all processes that go through the same batches.
    """

    def __init__(self, cache: ShardCache, manifest: Manifest, uses: Iterator[Use], *, room: int, job: str = "") -> None:
        self._job = job
        self._cache = cache
        self._manifest = manifest
        self._uses = uses
        self._following: Use | None = None  # the first of those that are not known
        self._room = room
        self._known: list[Use] = []  # nearest first
        self._until = -1  # the last batch for which they hold
        self._process = os.getpid()
        self._changed = threading.Condition()
        # All below is changed under the condition's lock only.
        self._wanted: list[int] = []  # shards, nearest first
        self._settled: set[int] = set()  # those of them that are there, or being fetched
        self._urgent: set[int] = set()  # those that the first batch waits for
        self._is_refused = False  # whether there was no room for one of them
        self._retry_at = 0.0
        self._is_closed = False
        sizes = copy_sizes(manifest.counts, manifest.read_sizes)
        self._sizes = np.where(sizes > 0, sizes, _BYTES_AT_A_TIME)  # where none is known: look ahead, but not for ever

    def reach(self, batch: int) -> None:
        """Note that the process makes this batch now, and will read what comes after it."""
        if batch > self._until:
            self._look_ahead(batch)
        elif self._is_refused and time.monotonic() > self._retry_at:
            with self._changed:
                self._try_again()

    def _look_ahead(self, batch: int) -> None:
        """Leave the windows that end before a batch, and look as far ahead as there is room."""
        is_first = self._until < 0
        if is_first:
            self._following = next(self._uses, None)
        known = [use for use in self._known if use.last >= batch]
        ahead = int(self._sizes[list({use.shard for use in known})].sum())
        while self._following is not None and ahead + self._sizes[self._following.shard] <= self._room:
            known.append(self._following)
            ahead += int(self._sizes[self._following.shard])
            self._following = next(self._uses, None)
        self._known = known
        self._until = min((use.last for use in known), default=batch)
        first = {use.shard: use.first for use in reversed(known)}
        wanted = [shard for shard in dict.fromkeys(use.shard for use in known) if self._manifest.is_copied[shard]]
        needs = [Need(copy_key(self._manifest, shard), max(batch, first[shard])) for shard in wanted]
        self._cache.expect(needs, self._job)
        with self._changed:
            self._wanted = wanted
            self._settled.intersection_update(wanted)
            self._urgent = {shard for shard in wanted if is_first and first[shard] <= batch}
            self._try_again()
        if is_first:
            threads = -(-_BYTES_AT_A_TIME // max(1, int(self._sizes.mean())))
            # An iteration that the program leaves unfinished is dropped when modules are gone that closing needs.
            atexit.register(self.close)
            for number in range(max(_LEAST_THREADS, min(_MOST_THREADS, threads))):
                threading.Thread(target=self._fetch, name=f"wdsdist-prefetch-{number}", daemon=True).start()

    def _try_again(self) -> None:
        self._is_refused = False
        self._changed.notify_all()

    def _fetch(self) -> None:
        while (shard := self._next()) is not None:
            began = time.monotonic()
            is_there = self._cache.fetch_ahead(self._manifest, shard)
            ended = time.monotonic()
            while is_there is None and shard in self._urgent and not self._is_closed:
                time.sleep(_PAUSE)
                is_there = self._cache.fetch_ahead(self._manifest, shard)
            with self._changed:
                self._urgent.discard(shard)
                if is_there is False:
                    self._settled.discard(shard)
                    self._is_refused = True
                    self._retry_at = ended + _PATIENCE * (ended - began)
                self._changed.notify_all()

    def _next(self) -> int | None:
        """Wait for the nearest shard that is to be fetched; ``None`` where there will be none."""
        with self._changed:
            while not self._is_closed:
                # What is needed later must not take the room for which something nearer waits.
                shard = next((one for one in self._wanted if one not in self._settled), None)
                # Nor must it take bandwidth from what the first batch waits for.
                is_time = not self._urgent or shard in self._urgent
                if shard is not None and is_time and not self._is_refused:
                    self._settled.add(shard)
                    return shard
                self._changed.wait()
        return None

    def close(self) -> None:
        """End the threads; a shard that is being fetched is finished first, behind the caller's back."""
        # A forked child may drop what it inherited, with a lock that a thread of its parent held.
        if not self._is_closed and os.getpid() == self._process:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._cache.expect([], self._job)
            atexit.unregister(self.close)
