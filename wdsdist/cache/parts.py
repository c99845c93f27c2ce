"""Parts of shards: sparse copies of shards of which only some members are needed, fetched as ranges and checked.

They hold the members that a batch waits for while its shard is fetched behind it, or all that an epoch reads of a shard
where that is little of it. What cannot be had in parts is left to a fetch of the whole shard: compressed shards, those
without an index or room, those of a store without ranges, and those whose bytes are wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.ownership import is_own_file
from wdsdist.cache.extents import ExtentMap, coalesced, covered, merged, without
from wdsdist.cache.locks import LockableFile, PlantedError, pauses
from wdsdist.cache.paths import CopyPaths
from wdsdist.cache.pins import Pinned
from wdsdist.cache.request import ShardRequest
from wdsdist.cache.space import CacheSpace
from wdsdist.errors import IndexFormatError, ShardDamagedError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex, checksums

LEAST_BYTES = 1 << 20
"""Bytes of a shard below which all of it comes about as soon as a part."""
_THIN = 1 / 2
"""A shard of which an epoch reads less than this share is had in parts."""
_BEHIND = 1 / 20
"""Share of a shard that is fetched in parts while all of it is fetched behind, and so comes twice."""
_FIRST = 1 / 4
"""The same for what is needed first."""
_ATTEMPTS = 2
"""Of members whose bytes are wrong."""
_CONNECTIONS = 32
"""Requests at once for small ranges, which wait for round trips rather than for bytes."""

Members = Callable[[ShardIndex], Int64s]
"""Returns the members of a shard that are needed, by their numbers in its index."""


@dataclass(frozen=True, slots=True)
class PartNeeds:
    """What a reader needs of a shard."""

    now: Members
    epoch: Members | None = None
    """What an epoch reads of it; ``None`` where that is all."""
    pinned: Pinned | None = None
    """The shard, where the reader has it open."""


class PinnedPart(Pinned):
    """A sparse copy of a shard, locked against eviction. Only members that it `has` may be read."""

    def __init__(self, paths: CopyPaths, index: ShardIndex, file: LockableFile, extents: ExtentMap) -> None:
        self.file = file
        self.map = extents
        self._paths = paths
        super().__init__(paths.sparse, index, file)

    @property
    def num_bytes(self) -> int:
        """Bytes that are there."""
        extents = self.map.extents()
        return int((extents[:, 1] - extents[:, 0]).sum())

    def has(self, members: Int64s) -> bool:
        """Return whether members are there, and checked."""
        return not len(self.missing(members))

    def missing(self, members: Int64s) -> Int64s:
        """Return those of the members that are not there."""
        return members[~covered(self.places(members), self.map.extents())]

    def places(self, members: Int64s) -> Int64s:
        """Return the bytes by which members are read and checked: int64 [members, 2]."""
        offsets, lengths = checksums.needed(self.index, members)
        return np.stack((offsets, offsets + lengths), axis=1)

    def unchecked(self, ranges: Int64s, claimed: Int64s) -> Int64s:
        """Return what of ranges may be written: what is claimed and not yet checked, as others may read the rest."""
        free = without(claimed, self.map.extents())
        return without(ranges, without(ranges, free))

    @contextlib.contextmanager
    def claimed(self, ranges: Int64s) -> Iterator[Int64s]:
        """Give those of the ranges that no other process is fetching; others find them claimed until the block ends."""
        free = [one for one in ranges.tolist() if self.file.claim(*one)]
        try:
            yield np.array(free, np.int64).reshape(-1, 2)
        finally:
            self.file.unclaim()

    def lock(self) -> bool:
        """Lock the copy again; return false where it was evicted, or where all of the shard is there now."""
        return not self._paths.copy.exists() and super().lock()

    @property
    def must_be_replaced(self) -> bool:
        return False

    def close(self) -> None:
        super().close()
        self.map.close()

    def _identity(self) -> tuple[int, ...]:
        found = self.file.stat()  # its times change with each range that is written
        return found.st_ino, found.st_nlink > 0, found.st_size


def is_best_in_parts(size: int, *, needed: int, had: int, asked: int, is_coming: bool) -> bool:
    """Return whether to fetch parts of a shard rather than all of it.

    Args:
        size: bytes of the shard.
        needed: those of them that an epoch reads.
        had: those that have come in parts before.
        asked: those that are needed now, and are not there.
        is_coming: whether all of the shard is fetched behind.

    >>> is_best_in_parts(10**8, needed=10**6, had=0, asked=10**6, is_coming=True)  # labels
    True
    >>> is_best_in_parts(10**8, needed=10**8, had=0, asked=10**7, is_coming=True)  # the first batch
    True
    >>> is_best_in_parts(10**8, needed=10**8, had=10**7, asked=10**7, is_coming=True)
    False
    >>> is_best_in_parts(10**8, needed=10**8, had=10**7, asked=10**7, is_coming=False)  # samples at random
    True
    """
    if size < LEAST_BYTES:
        return False
    if needed < _THIN * size:
        return True
    if is_coming:
        return asked <= _FIRST * size if not had else had + asked <= _BEHIND * size
    return had + asked <= _THIN * size


class PartFetcher:
    """Downloader of partial shards: opens sparse copies in the cache and fetches the ranges that are needed.

    Args:
        space: of the cache.
        count: called with the figures of each download.
    """

    def __init__(self, space: CacheSpace, count: Callable[[storage.Transfer], None]) -> None:
        self._space = space
        self._count = count
        self._connections = storage.Connections(_CONNECTIONS)

    def pin(
        self, wanted: Mapping[int, tuple[ShardRequest, PartNeeds]], batch: Collection[str] | None
    ) -> dict[int, PinnedPart]:
        """Return sparse copies, locked, that have what is needed, of the shards for which these are best.

        ``batch`` is as `CacheSpace.reserve` takes it. Ahead of one, all is fetched that an epoch reads, and only of
        shards of which that is little.
        """
        with ThreadPoolExecutor(min(len(wanted), _CONNECTIONS)) as pool:
            run = map if len(wanted) == 1 else pool.map
            known = list(run(lambda one: self._known(*one), wanted.values()))
        parts: dict[int, PinnedPart] = {}
        missing: dict[int, Int64s] = {}
        for (number, (request, needs)), (part, index) in zip(wanted.items(), known, strict=True):
            members = np.zeros(0, np.int64) if index is None else needs.now(index)
            if part is not None:
                members = part.missing(members)
            if index is not None and (part is None or len(members)):
                part = self._allocated(request, needs, part, index, members, batch)
            if part is not None:
                parts[number] = part
                if len(members):
                    missing[number] = members
        wrong: Counter[int] = Counter()
        for _ in pauses(max((request.deadline.end for request, _ in wanted.values()), default=0.0)):
            wrong.update(
                self._fetch({number: (wanted[number][0], parts[number], missing[number]) for number in missing})
            )
            missing = {number: left for number in missing if len(left := parts[number].missing(missing[number]))}
            failed = [number for number in missing if wrong[number] == _ATTEMPTS]
            for number in failed:
                del missing[number]
                # Its index may be an old one too: the fetch of the whole shard finds out.
                parts.pop(number).close()
                self._space.drop_sparse(wanted[number][0].paths, wanted[number][0].deadline)
            if not missing:
                break
        for number in missing:
            parts.pop(number).close()
        return parts

    def _known(self, request: ShardRequest, needs: PartNeeds) -> tuple[PinnedPart | None, ShardIndex | None]:
        """Return the sparse copy that there is of a shard, and its index; none where it has to be fetched whole."""
        part = needs.pinned if isinstance(needs.pinned, PinnedPart) else self._opened(request)
        if part is not None:
            return part, part.index
        try:
            index = request.known_index()
        except ShardDamagedError:  # the fetch of the whole shard tries again
            return None, None
        if index is None or index.size != request.size or request.listed.sha256 not in ("", index.sha256):
            return None, None
        return None, index

    def _allocated(
        self,
        request: ShardRequest,
        needs: PartNeeds,
        part: PinnedPart | None,
        index: ShardIndex,
        members: Int64s,
        batch: Collection[str] | None,
    ) -> PinnedPart | None:
        """Return a sparse copy with disk space for members; ``None`` where all of the shard is to be fetched."""
        needed = request.size if needs.epoch is None else int(index.sizes[needs.epoch(index)].sum())
        # Ahead of a batch, what an epoch reads most of is fetched whole.
        asked = request.size if batch is None else int(index.sizes[members].sum())
        had = 0 if part is None else part.num_bytes
        is_coming = batch is None or self._space.reader.expects(request.paths.key)
        found = None
        if is_best_in_parts(request.size, needed=needed, had=had, asked=asked, is_coming=is_coming):
            if part is None and self._space.add_sparse(request, _identity(index), batch):
                found = self._opened(request)
            else:
                found = part
        if found is not None:
            places = merged(found.places(members))
            if not self._space.allocate(request, found.file.fileno(), places, batch):
                return found
        for one in (part, found):
            if one is not None and one is not needs.pinned:
                one.close()
        return None

    def _opened(self, request: ShardRequest) -> PinnedPart | None:
        """Return the sparse copy that there is of a shard, locked; one of another shard or boot is deleted."""
        paths = request.paths
        self._space.check(paths)
        with contextlib.ExitStack() as stack:
            try:
                file = LockableFile(paths.sparse, writable=True)
                stack.callback(file.close)
                if not (file.lock(alone=False) and file.is_at(paths.sparse)):
                    return None
                extents = ExtentMap(paths.extents)
                stack.callback(extents.close)
                index = _index_of(request)
                if index is not None and extents.is_of(_identity(index)):
                    stack.pop_all()
                    return PinnedPart(paths, index, file, extents)
            except (FileNotFoundError, PlantedError, IndexFormatError):
                if not os.path.lexists(paths.sparse):
                    return None
        self._space.drop_sparse(paths, request.deadline)
        return None

    def _fetch(self, wanted: Mapping[int, tuple[ShardRequest, PinnedPart, Int64s]]) -> list[int]:
        """Fetch members into sparse copies, but for those that another process is fetching.

        Records those that are right, and returns the shards with wrong ones.
        """
        wrong = []
        with contextlib.ExitStack() as stack:
            running = []
            for number, (request, part, members) in wanted.items():
                claimed = stack.enter_context(part.claimed(coalesced(part.places(members))))
                # Looked up again, as another process may have fetched some before it gave up its claim.
                mine = part.missing(members[covered(part.places(members), claimed)])
                if not len(mine):
                    continue
                fetching = storage.begin_fetch(
                    request.location,
                    part.path,
                    request.options,
                    size=request.size,
                    deadline=request.deadline,
                    connections=self._connections,
                    ranges=[range(*one) for one in part.unchecked(coalesced(part.places(mine)), claimed).tolist()],
                )
                running.append((number, mine, stack.enter_context(fetching)))
            for number, members, fetching in running:
                request, part, _ = wanted[number]
                try:
                    self._count(fetching.result())
                except storage.NoRangesError:
                    wrong.append(number)
                    continue
                bad = checksums.wrong(part.index, members, _Content(part.file.fileno()))
                self._space.record(request, part.map, merged(part.places(np.setdiff1d(members, bad))))
                if len(bad):
                    wrong.append(number)
        return wrong


class _Content:
    """The bytes of an open file, by slices."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __getitem__(self, place: slice) -> bytes:
        return os.pread(self._descriptor, place.stop - place.start, place.start)


def _identity(index: ShardIndex) -> str:
    return f"{index.size} {index.sha256}"


def _index_of(request: ShardRequest) -> ShardIndex | None:
    """Return the index of a sparse copy: the one beside it, or beside the index.json that lists the shard."""
    if request.has_listed_index():
        return request.known_index()
    return shard_index.load(request.paths.index) if is_own_file(request.paths.index) else None
