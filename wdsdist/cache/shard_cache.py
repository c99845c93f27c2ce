"""One verified copy of each remote shard per node, for all processes that share a folder."""

from __future__ import annotations

import contextlib
import errno
import functools
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist.cache import paths as places
from wdsdist.cache import stamps
from wdsdist.cache.counters import Counters
from wdsdist.cache.fetch import Wanted
from wdsdist.cache.locks import LockableFile, PlantedError, pauses
from wdsdist.cache.pins import Pinned
from wdsdist.cache.priorities import Need
from wdsdist.cache.space import Room
from wdsdist.distributed import user_cache_dir
from wdsdist.errors import CacheError, ShardDamagedError, WdsdistError
from wdsdist.shards import scan_local as tarindex
from wdsdist.shards.manifest import Manifest

TIMEOUT = 300.0
"""Seconds in which a shard has to be had."""

_PATIENCE_AHEAD = 0.8
"""Part of the timeout in which a shard is fetched ahead: who waits for it then has time to find out what is wrong."""

_LAST_LOOK = 2.0
"""Seconds for the store to say what is wrong, once the time is over for a shard that another process was to fetch."""

_BUSY = "another process is fetching it, or looking at its copy"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ShardCache:
    """The copies of remote shards in one folder, which all processes of a node share.

    A copy is verified before it gets its name, and again where the file has changed since. With a limit, room is made
    by evicting copies that nobody is reading, those first whose next use is furthest. Local shards are read in place.

    Args:
        folder: where the copies are; by default ``shards`` in the user's cache folder.
        limit: bytes that the folder may take at any time, parts and indexes included, the short lists of who needs
            what aside. Without one nothing is evicted.
        timeout: seconds in which a shard has to be had, with all attempts and all waiting.
    """

    def __init__(self, folder: Path | None = None, *, limit: int | None = None, timeout: float = TIMEOUT) -> None:
        self.folder = folder
        self.limit = limit
        self.timeout = timeout
        self.hits = 0
        """Shards that were asked for and that this process did not have to fetch."""
        self.fetches = 0
        """Shards that this process has fetched."""
        self.bytes_fetched = 0
        """Bytes of those shards."""
        self.retries = 0
        """Requests that were made again, and fetches whose bytes were wrong."""
        self.seconds_waited = 0.0
        """Time in `pin` for shards that were not there."""

        self._when_fetched: Callable[[], None] = lambda: None

    def counters(self) -> Counters:
        """Return what this process has had so far."""
        return Counters(self.hits, self.fetches, self.bytes_fetched, self.retries)

    def tell(self, when_fetched: Callable[[], None]) -> None:
        """Call something, from any thread, after each shard that was fetched, before others can read that."""
        self._when_fetched = when_fetched

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process joins on its own, and counts on its own.
        return functools.partial(ShardCache, limit=self.limit, timeout=self.timeout), (self.folder,)

    @functools.cached_property
    def _room(self) -> Room:
        return Room(self.folder or user_cache_dir() / "shards", self.limit)

    def pin(
        self,
        manifest: Manifest,
        number: int,
        *,
        batch: Collection[int] = (),
        let_go: Callable[[], object] | None = None,
        anew: bool = False,
    ) -> Pinned:
        """Return a shard, locked; fetch it where it is remote and there is no copy.

        Args:
            manifest: the data set.
            number: which of its shards.
            batch: all shards that are needed at the same time. Until `rest`, none of them is evicted for a process
                that began to wait later.
            let_go: called before each pause, to unlock what is locked: two processes that each hold what the other
                waits for would wait for ever.
            anew: fetch it even where there is a copy.

        Raises:
            ShardNotFoundError: the store does not have it.
            ShardDamagedError: it is not what the manifest lists, however often it is fetched.
            StorageError: it cannot be read from its store.
            CacheError: there is no room for it, or none in time, or the folder cannot be written.
        """
        if not manifest.is_copied[number]:
            part, number = manifest.part(number)
            path = storage.local_path(part.location(number))
            return Pinned(path, tarindex.shard_index(path, listed_in=part.base), None)
        wanted = self._wanted(manifest, number)
        with self._clear_errors(wanted.described):
            if not anew and (pinned := self._copy(wanted)):
                self.hits += 1
                return pinned
            keys = {places.copy_key(manifest, one) for one in (number, *batch)}
            self._check_limit(sum(max(0, int(manifest.read_sizes[one])) for one in {number, *batch}), len(keys))
            began = time.monotonic()
            try:
                return self._obtain(wanted, keys, let_go, anew=anew)
            finally:
                self.seconds_waited += time.monotonic() - began
                if not batch:
                    self.rest()

    def fetch_ahead(self, manifest: Manifest, number: int) -> bool | None:
        """Fetch a remote shard that will be needed, where there is room for it; say whether there is a copy now.

        Nothing that is needed sooner is evicted for it. It is false where there is no room, or the shard cannot be had:
        `pin` raises what is wrong. It is None where another process or thread is at it.
        """
        if not manifest.is_copied[number]:
            return True
        wanted = self._wanted(manifest, number, _PATIENCE_AHEAD)
        try:
            with self._clear_errors(wanted.described):
                pinned = self._copy(wanted) or (self._room.may_fit(wanted) and self._fetch(wanted, None))
        except WdsdistError:
            return False
        if isinstance(pinned, Pinned):
            pinned.close()
            return True
        return None if pinned == _BUSY else False

    def refetch(self, manifest: Manifest, number: int) -> Path:
        """Fetch a remote shard even where there is a copy, which it replaces once it has proved to be whole.

        Raises what `pin` raises; the copy stays as it is then.
        """
        wanted = self._wanted(manifest, number)
        with self._clear_errors(wanted.described):
            self._obtain(wanted, {wanted.place.key}, None, anew=True).close()
        return wanted.place.copy

    def expect(self, needs: Sequence[Need], job: str = "") -> None:
        """Say what this process will read, nearest first: others evict what nobody needs, or needs last.

        ``job`` is the same for all processes that go through the same batches.
        """
        if needs or self._room.reader.has_joined:
            with self._clear_errors("the list of what this process needs"):
                self._room.expect(needs, job, storage.Deadline(self.timeout))

    def rest(self) -> None:
        """Say that this thread has all the shards of a batch, locked, and waits for none."""
        if "_room" in self.__dict__:
            self._room.reader.rest()

    def path(self, manifest: Manifest, number: int) -> Path:
        """Return where the copy of a remote shard is, or would be."""
        return places.place_of(self._room.root, manifest, number).copy

    def _check_limit(self, needed: int, shards: int) -> None:
        if self.limit is not None and needed > self.limit:
            raise CacheError(
                f"cache_limit is {self.limit:,} bytes but {shards} shards of {needed:,} bytes are needed at once: "
                f"raise it, or take smaller batches"
            )

    def _wanted(self, manifest: Manifest, number: int, patience: float = 1.0) -> Wanted:
        place = places.place_of(self._room.root, manifest, number)
        return Wanted(manifest, number, place, storage.Deadline(patience * self.timeout))

    def _obtain(
        self, wanted: Wanted, batch: Collection[str], let_go: Callable[[], object] | None, *, anew: bool = False
    ) -> Pinned:
        """Fetch a shard, or wait until another process has."""
        found: Pinned | str = ""
        for _ in pauses(wanted.deadline.end):
            if not anew and (pinned := self._copy(wanted)):
                self.hits += 1
                return pinned
            found = self._fetch(wanted, batch, anew=anew)
            if isinstance(found, Pinned):
                return found
            if let_go is not None:
                let_go()
        if found == _BUSY:
            wanted.look(storage.Deadline(_LAST_LOOK))  # what keeps the others from it
        raise CacheError(
            f"{wanted.shown} could not be had within {self.timeout:g} seconds: {found}; raise download_timeout if the "
            f"store is slow, or cache_limit if the processes that share {self._room.root} need more at once"
        )

    def _copy(self, wanted: Wanted) -> Pinned | None:
        """Return the copy of a shard, locked; nothing where there is none, or somebody else is about to change it."""
        self._room.check(wanted.place)
        try:
            file = LockableFile(wanted.place.copy)
        except (FileNotFoundError, PlantedError):  # a link is none of ours: the copy will replace it
            return None
        pinned = self._checked(wanted, file)
        if pinned is None:
            file.close()
        return pinned

    def _checked(self, wanted: Wanted, file: LockableFile) -> Pinned | None:
        """Return an open copy, locked, once its bytes and its index have proved to be right; discard what is wrong."""
        place = wanted.place
        if not (file.lock(alone=False) and file.is_at(place.copy)):
            return None
        known = stamps.read(place.stamp)
        is_trusted = known is not None and known.agrees(file.stat())
        # Alone, so that one process hashes it for all.
        if not is_trusted and not file.lock(alone=True):
            return None
        try:
            sha256 = wanted.check_copy(known or stamps.Stamp(), is_trusted=is_trusted)
            index = wanted.index_of_copy(file.stat().st_size, sha256)
        except ShardDamagedError:
            if file.lock(alone=True):
                self._room.discard(place, file, wanted.deadline)
            return None
        if is_trusted:
            stamps.touch(place.stamp)
        else:
            self._room.stamp(place, file, sha256, wanted)
            if not (file.lock(alone=False) and file.is_at(place.copy)):
                return None
        return Pinned(place.copy, index, file)

    def _fetch(self, wanted: Wanted, batch: Collection[str] | None, *, anew: bool = False) -> Pinned | str:
        """Fetch a shard and return it locked, or say what stands in the way."""
        room, place = self._room, wanted.place
        part = room.take(place, wanted.deadline, anew=anew)
        if part is None:
            return _BUSY
        try:
            if why := room.reserve(part, wanted, batch):
                room.give_up(part, place, wanted.deadline)
                return why
            try:
                fetched = wanted.fetch()
            finally:
                self.retries += wanted.retries
            # Before others find it, and may be done with the epoch before this thread goes on.
            self.fetches += 1
            self.bytes_fetched += fetched.index.size
            self._when_fetched()
            room.install(part, wanted, fetched)
        except BaseException:
            with contextlib.suppress(CacheError):  # whoever looks for room next sweeps it up
                room.give_up(part, place, wanted.deadline)
            raise
        # The system gives up the one lock before it gives the other: somebody may have come between.
        if part.lock(alone=False) and part.is_at(place.copy):
            return Pinned(place.copy, fetched.index, part)
        return "it was evicted as soon as it was there"

    @contextlib.contextmanager
    def _clear_errors(self, what: str) -> Iterator[None]:
        """Turn what the system says of the folder, when something is to be kept there, into errors that help."""
        root = self._room.root
        try:
            yield
        except OSError as error:
            cause: BaseException | None = error  # storage wraps what befalls the file that it fills
            while cause is not None:
                if isinstance(cause, OSError) and cause.errno in _FULL:
                    raise CacheError(
                        f"{root} has no room for {what} ({cause.strerror}; {shutil.disk_usage(root).free:,} bytes are "
                        f"free on its disk): free some, set cache_limit to what the disk holds, or choose another "
                        f"cache_dir"
                    ) from error
                cause = cause.__cause__
            if isinstance(error, WdsdistError):
                raise
            raise CacheError(f"{root} cannot be used as a cache ({error}): choose another cache_dir") from error
