"""`ShardCache`: one verified copy of each remote shard per node, for all processes that share a cache folder."""

from __future__ import annotations

import contextlib
import errno
import functools
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.files import open_files_remedy
from wdsdist._util.host import user_cache_dir
from wdsdist._util.validation import counted
from wdsdist.cache import folders
from wdsdist.cache.copies import Pinned, Stamp, touch, verified_index, verify_bytes
from wdsdist.cache.counters import Counters
from wdsdist.cache.fetch import fetch
from wdsdist.cache.folders import WAITING, copy_key, copy_paths
from wdsdist.cache.locks import LockableFile, PlantedError, pauses, wait_until_free
from wdsdist.cache.parts import Members, PartFetcher, PartNeeds, PinnedPart
from wdsdist.cache.priorities import Need
from wdsdist.cache.request import ShardRequest
from wdsdist.cache.space import CacheSpace, Refusal
from wdsdist.cache.urgency import Urgency
from wdsdist.errors import CacheError, ShardDamagedError, WdsdistError
from wdsdist.shards import index as shard_index
from wdsdist.shards import local_index
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.storage import waits

TIMEOUT = 300.0
"""Default timeout in seconds of a request for a shard."""

_PATIENCE_AHEAD = 0.8
"""Part of the timeout that a prefetch may take: a process that waits for the shard then has time to find the error."""

BUSY = Refusal("another process is fetching it, or looking at its copy")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ShardCache:
    """The cache of remote shards in one folder, which all processes of a node share.

    A copy is verified before it gets its name, and again where the file has changed since. With a limit, copies that no
    process is reading are evicted to free space, furthest next use first. Local shards are read in place.

    Args:
        folder: where the copies are; by default ``shards`` in the user's cache folder.
        limit: bytes that the folder may take at any time, with parts and indexes, but without the short lists of
            readers. Without a limit nothing is evicted.
        timeout: seconds for each request for a shard, all retries and waits included.
    """

    def __init__(self, folder: Path | None = None, *, limit: int | None = None, timeout: float = TIMEOUT) -> None:
        self.folder = folder
        self.limit = limit
        self.timeout = timeout
        # Each figure is added to in place, as several threads count.
        self._counted = dict.fromkeys(Counters._fields, 0)
        self._report: Callable[[Counters], None] = lambda _: None
        self.is_opening = False
        """Whether batches need a few ranges of many shards, so that these are fetched first, and the shards behind."""
        self._first_batch = threading.Event()
        self._first_batch.set()

    def counters(self) -> Counters:
        """Return the cache counters of this process."""
        return Counters(**self._counted)

    def tell(self, report: Callable[[Counters], None]) -> None:
        """Set a callback for counters, called from any thread; for a fetch, before others can read the shard."""
        self._report = report

    def _count(self, more: Counters) -> None:
        for name, number in more._asdict().items():
            self._counted[name] += number
        self._report(more)

    def first_batch(self) -> threading.Event:
        """Return the event at which prefetch may begin: the next batch has its parts, or waits for whole shards.

        Prefetch before would take link and cores from the batch, and bytes of its shards would come twice.
        """
        self._first_batch = threading.Event()
        return self._first_batch

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process joins on its own, and counts on its own.
        return functools.partial(ShardCache, limit=self.limit, timeout=self.timeout), (self.folder,)

    @functools.cached_property
    def _space(self) -> CacheSpace:
        return CacheSpace(self.folder or user_cache_dir() / "shards", self.limit)

    def pin(
        self,
        manifest: Manifest,
        number: int,
        *,
        batch: Collection[int] = (),
        let_go: Callable[[], object] | None = None,
        anew: bool = False,
    ) -> Pinned:
        """Return a shard, locked against eviction; fetch it where it is remote and not cached.

        Args:
            manifest: the data set.
            number: which of its shards.
            batch: all shards that are needed at once. Until `rest`, none of them is evicted for a process that began
                to wait later.
            let_go: called before each pause, to unlock the shards of the batch: two processes that each hold a shard
                that the other waits for would deadlock.
            anew: fetch it even where a copy is cached, which is replaced once the new one is verified.

        Raises:
            NotFoundError: it is not in the store.
            ShardDamagedError: it differs from the manifest, also after retries.
            StorageError: it cannot be read from its store.
            CacheError: there is no space for it, or none in time, or the folder cannot be written.
        """
        if not manifest.is_copied[number]:
            part, number = manifest.part(number)
            path = storage.local_path(part.location(number))
            how = {"listed_in": part.base, "name": part.index_name(number), "key_rule": part.key_rule}
            index = local_index.shard_index(path, **how)
            return Pinned(path, index, None)
        request = self._request(manifest, number)
        with self._clear_errors(request.described):
            if not anew and (pinned := self._open_copy(request)):
                self._count(Counters(cache_hits=1))
                return pinned
            keys = {copy_key(manifest, one) for one in (number, *batch)}
            self._check_limit(_whole_bytes(manifest, {number, *batch}), len(keys))
            self._first_batch.set()
            try:
                self._space.claim(keys, request.deadline)
                with self._urgency.waiting(keys):
                    return self._obtain(request, let_go, anew=anew)
            finally:
                if not batch:
                    self.rest()

    def fetch_ahead(self, manifest: Manifest, number: int, epoch: Members | None = None) -> Refusal | None:
        """Prefetch a remote shard, where there is space for it, or what an ``epoch`` reads of it where that is little.

        No copy that is needed sooner is evicted for it. Returns why it is not there: `BUSY` where another process or
        thread fetches it or verifies its copy, else something of which `pin` may raise the error.
        """
        if not manifest.is_copied[number]:
            return None
        request = self._request(manifest, number, is_ahead=True)
        try:
            with self._clear_errors(request.described):
                found: Pinned | Refusal | None = self._open_copy(request)
                if found is None and self._may_be_sparse(request):
                    needs = PartNeeds(epoch or (lambda index: np.arange(len(index.sizes))), epoch)
                    part = self._parts.pin({number: (request, needs)})[number]
                    found = part if isinstance(part, PinnedPart) else None
                found = found or self._space.refusal(request) or self._fetch(request)
        except WdsdistError as error:
            return Refusal(str(error))
        if isinstance(found, Refusal):
            return found
        found.close()
        return None

    def pin_parts(
        self,
        manifest: Manifest,
        needs: Mapping[int, PartNeeds],
        *,
        batch: Collection[int] = (),
        let_go: Callable[[], object] | None = None,
    ) -> dict[int, PinnedPart]:
        """Return locked sparse copies with the members needed now, of those shards that are best fetched in parts.

        All others have to be pinned whole. Takes a ``batch`` and ``let_go`` as `pin` does, and raises what that raises.
        """
        requests = {number: self._request(manifest, number) for number in needs if manifest.is_copied[number]}
        wanted = {number: (one, needs[number]) for number, one in requests.items() if self._may_be_sparse(one)}
        try:
            if not wanted:
                return {}
            with self._clear_errors(f"parts of {counted(len(wanted), 'shard')}"):
                return self._obtain_parts(manifest, wanted, {*wanted, *batch}, let_go)
        finally:
            self._first_batch.set()
            if not batch:
                self.rest()

    def expect(self, needs: Sequence[Need], job: str = "") -> None:
        """Publish the copies that this process will read, nearest first, as eviction priorities for all processes.

        ``job`` is the same for all processes that read the same batches.
        """
        if needs or self._space.reader.has_joined:
            with self._clear_errors("the list of what this process needs"):
                self._space.expect(needs, job, storage.Deadline(self.timeout))

    def rest(self) -> None:
        """Record that this thread holds all shards of its batch, and waits for none: prefetch may begin."""
        self._first_batch.set()
        if "_space" in self.__dict__:
            self._space.reader.rest()

    def path(self, manifest: Manifest, number: int) -> Path:
        """Return the path of the cached copy of a remote shard, which need not exist."""
        return copy_paths(self._space.root, manifest, number).copy

    def _check_limit(self, needed: int, shards: int) -> None:
        if self.limit is not None and needed > self.limit:
            raise CacheError(
                f"cache_limit is {self.limit:,} bytes but {needed:,} are needed at once, for "
                f"{counted(shards, 'shard')}: raise it, or take smaller batches"
            )

    def _request(self, manifest: Manifest, number: int, *, is_ahead: bool = False) -> ShardRequest:
        deadline = storage.Deadline(self.timeout * (_PATIENCE_AHEAD if is_ahead else 1.0))
        return ShardRequest(manifest, number, self._space.root, deadline, is_ahead=is_ahead)

    def _obtain(self, request: ShardRequest, let_go: Callable[[], object] | None, *, anew: bool) -> Pinned:
        """Fetch a shard, or wait until another process has fetched it."""
        refusal = BUSY
        with contextlib.ExitStack() as stack:
            entry = waits.Request(request.shown, attempt=0)
            for _ in pauses(request.deadline.end):
                if not anew and (pinned := self._open_copy(request)):
                    self._count(Counters(cache_hits=1))
                    return pinned
                found = self._fetch(request, anew=anew)
                if isinstance(found, Pinned):
                    return found
                if not entry.note:
                    stack.enter_context(waits.under_way(entry))
                refusal, entry.note = found, found.reason
                if let_go is not None:
                    let_go()
                if refusal is BUSY:
                    wait_until_free(request.paths.part, request.deadline.end)
        if refusal is BUSY:
            request.meet_error()
        raise self._too_late(request, refusal)

    def _too_late(self, request: ShardRequest, refusal: Refusal) -> CacheError:
        return CacheError(
            f"{request.shown} could not be had within {self.timeout:g} seconds: {refusal.reason}; raise "
            f"download_timeout if the store is slow, or cache_limit if the processes that share {self._space.root} "
            f"need more at once"
        )

    def _obtain_parts(
        self,
        manifest: Manifest,
        wanted: dict[int, tuple[ShardRequest, PartNeeds]],
        batch: Collection[int],
        let_go: Callable[[], object] | None,
    ) -> dict[int, PinnedPart]:
        """Fetch parts; wait for space that others hold, where the whole shards would never have enough."""
        keys = {copy_key(manifest, number) for number in batch}
        is_opening = self.is_opening or not self._first_batch.is_set()
        refused: list[tuple[int, Refusal]] = []
        with contextlib.ExitStack() as stack:
            entry = waits.Request("", attempt=0)
            for _ in pauses(min(request.deadline.end for request, _ in wanted.values())):
                with self._urgency.waiting():
                    self._space.claim(keys, storage.Deadline(self.timeout))
                    found = self._parts.pin(wanted, is_opening=is_opening, is_again=bool(entry.note))
                parts = {number: one for number, one in found.items() if isinstance(one, PinnedPart)}
                refused = [
                    (number, one) for number, one in found.items() if isinstance(one, Refusal) and one.has_room_later
                ]
                if not refused or _whole_bytes(manifest, batch) <= (self.limit or 0):
                    return parts
                is_new, (number, refusal) = not entry.note, refused[0]
                entry.location, entry.note = wanted[number][0].shown, refusal.reason
                if is_new:
                    stack.enter_context(waits.under_way(entry))
                for number, part in parts.items():
                    if part is not wanted[number][1].pinned:
                        part.close()
                if let_go is not None:
                    let_go()
                # What the reader had open may be evicted from now on.
                wanted = {number: (one, replace(needs, pinned=None)) for number, (one, needs) in wanted.items()}
        number, refusal = refused[0]
        raise self._too_late(wanted[number][0], refusal)

    def _open_copy(self, request: ShardRequest) -> Pinned | None:
        """Return the copy of a shard, locked; ``None`` where there is none, or another process is changing it."""
        self._space.check(request.paths)
        try:
            file = LockableFile(request.paths.copy)
        except (FileNotFoundError, PlantedError):  # a planted link: the copy will replace it
            return None
        pinned = self._verified(request, file)
        if pinned is None:
            file.close()
        elif request.paths.sparse.exists():  # somebody was reading it when the copy came
            self._space.drop_sparse(request.paths, request.deadline)
        return pinned

    def _verified(self, request: ShardRequest, file: LockableFile) -> Pinned | None:
        """Verify the bytes and the index of an open copy and return it locked; discard it where they are wrong."""
        paths = request.paths
        if not (file.lock(alone=False) and file.is_at(paths.copy)):
            return None
        known = Stamp.read(paths.stamp)
        is_trusted = known is not None and known.agrees(file.stat())
        # Alone, so that one process hashes it for all.
        if not is_trusted and not file.lock(alone=True):
            return None
        try:
            sha256 = verify_bytes(request, known or Stamp(), is_trusted=is_trusted)
            index = self._current(request, verified_index(request, file.stat().st_size, sha256), sha256)
        except ShardDamagedError:
            if file.lock(alone=True):
                self._space.discard(paths, file, request.deadline)
            return None
        if is_trusted:
            touch(paths.stamp)
        else:
            self._space.stamp(request, file, sha256)
            if not (file.lock(alone=False) and file.is_at(paths.copy)):
                return None
        return Pinned(paths.copy, index, file)

    def _current(self, request: ShardRequest, index: ShardIndex, sha256: str) -> ShardIndex:
        """Return the index of a copy; where its data set was indexed anew since, the new one, which replaces it."""
        if request.lists(index):
            return index
        request = request.again()
        found = request.known_index()
        if found is None or found.size != index.size or found.sha256 not in ("", sha256) or not request.lists(found):
            return index
        self._space.replace_index(request, request.sidecar or shard_index.dumps(found))
        return found

    def _fetch(self, request: ShardRequest, *, anew: bool = False) -> Pinned | Refusal:
        """Fetch a shard and return it locked, or why it cannot be fetched now."""
        try:
            return self._fetch_into_part(request, anew=anew)
        except WdsdistError:
            raise
        except FileNotFoundError:
            return Refusal("the files of the cache were deleted meanwhile")

    def _fetch_into_part(self, request: ShardRequest, *, anew: bool) -> Pinned | Refusal:
        """Take the part of a shard, reserve space, fetch, install."""
        paths = request.paths
        part = self._space.take(paths, request.deadline, anew=anew)
        if part is None:
            return BUSY
        folders.note_source(paths.folder, storage.split(request.location)[0])
        try:
            if refusal := self._space.reserve(part, request):
                self._space.give_up(part, paths, request.deadline)
                return refusal
            with self._urgency.line(paths.key) as line:
                fetched = fetch(request, self._count, line)
            # Before other processes find it, which may end the epoch before this thread continues.
            self._count(Counters(shards_fetched=1, bytes_fetched=fetched.index.size - fetched.known))
            self._space.install(part, request, fetched)
        except BaseException:
            with contextlib.suppress(CacheError):  # the next process that looks for space deletes it
                self._space.give_up(part, paths, request.deadline)
            raise
        # flock releases the exclusive lock before it takes the shared one: another process may have come between.
        if part.lock(alone=False) and part.is_at(paths.copy):
            return Pinned(paths.copy, fetched.index, part)
        return Refusal("it was evicted as soon as it was there")

    @functools.cached_property
    def _urgency(self) -> Urgency:
        return Urgency(self._space.root / WAITING)

    @functools.cached_property
    def _parts(self) -> PartFetcher:
        return PartFetcher(self._space, self._count)

    @staticmethod
    def _may_be_sparse(request: ShardRequest) -> bool:
        """Return whether a shard may have a sparse copy: it can be fetched in parts, and is not there whole."""
        return request.may_have_parts and not request.paths.copy.exists()

    @contextlib.contextmanager
    def _clear_errors(self, what: str) -> Iterator[None]:
        """Turn ``OSError`` of the cache folder into `CacheError` with a remedy."""
        root = self._space.root
        try:
            yield
        except OSError as error:
            cause: BaseException | None = error  # storage wraps errors of the file that it writes
            while cause is not None:
                if isinstance(cause, OSError) and cause.errno in _FULL:
                    raise CacheError(
                        f"{root} has no room for {what} ({cause.strerror}; {shutil.disk_usage(root).free:,} bytes are "
                        f"free on its disk): free some, set cache_limit to what the disk holds, or choose another "
                        f"cache_dir"
                    ) from error
                if isinstance(cause, OSError) and (remedy := open_files_remedy(cause)):
                    raise CacheError(f"{what} cannot be opened ({cause.strerror}){remedy}") from error
                cause = cause.__cause__
            if isinstance(error, WdsdistError):
                raise
            raise CacheError(f"{root} cannot be used as a cache ({error}): choose another cache_dir") from error


def _whole_bytes(manifest: Manifest, numbers: Collection[int]) -> int:
    """Return the bytes of whole shards, as far as they are known."""
    return sum(max(0, int(manifest.read_sizes[number])) for number in numbers)
