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
from pathlib import Path

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.ownership import is_own_file
from wdsdist.cache.copies import Pinned
from wdsdist.cache.extents import (
    SMALL_GAP,
    ExtentMap,
    coalesced,
    copy_ranges,
    cost,
    covered,
    identity,
    merged,
    request_sizes,
    requests_of,
    without,
)
from wdsdist.cache.folders import CopyPaths
from wdsdist.cache.locks import LockableFile, PlantedError, pauses
from wdsdist.cache.request import LEAST_BYTES, ShardRequest
from wdsdist.cache.space import CacheSpace
from wdsdist.errors import IndexFormatError, ShardDamagedError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex, checksums
from wdsdist.shards.manifest import THIN
from wdsdist.storage import waits

_BEHIND = 1 / 20
"""Share of a shard that the batches after the first get in parts while all of it is fetched behind."""
_FIRST = 1 / 4
"""The same for the first batches of each worker."""
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

    def within(self, ranges: Int64s) -> Int64s:
        """Return the members that lie in ranges, which are merged; those without a byte lie in none."""
        places = self.places(np.arange(len(self.index.sizes)))
        return np.flatnonzero(covered(places, ranges) & (places[:, 0] < places[:, 1]))

    def unchecked(self, ranges: Int64s, claimed: Int64s) -> Int64s:
        """Return what of ranges may be written: what is claimed and not yet checked, as others may read the rest."""
        free = without(claimed, self.map.extents())
        return without(ranges, without(ranges, free))

    @contextlib.contextmanager
    def claimed(self, places: Int64s, *, gap: int) -> Iterator[Int64s]:
        """Claim the byte ranges, with small gaps, that no other process fetches, and yield them in three rounds.

        Others find it claimed until the block ends.
        """
        free, left = np.zeros((0, 2), np.int64), places
        for narrower in (gap, SMALL_GAP, 0):  # where another process fetches some of a range, the rest must not wait
            claims = [one for one in coalesced(left, gap=narrower).tolist() if self.file.claim(*one)]
            free = merged(np.append(free, np.array(claims, np.int64).reshape(-1, 2), axis=0))
            left = places[~covered(places, free)]
        try:
            yield free
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


def is_best_in_parts(
    size: int, *, needed: int, had: int, asked: int, is_coming: bool, is_opening: bool = False
) -> bool:
    """Return whether to fetch parts of a shard rather than all of it.

    Args:
        size: bytes of the shard.
        needed: those of them that an epoch reads.
        had: those that have come in parts before.
        asked: those that are needed now, and are not there.
        is_coming: whether all of the shard is fetched behind.
        is_opening: whether the first batch of a worker needs them, or one at the start of an epoch.

    >>> is_best_in_parts(10**8, needed=10**6, had=0, asked=10**6, is_coming=True)  # labels
    True
    >>> is_best_in_parts(10**8, needed=10**8, had=0, asked=10**7, is_coming=True, is_opening=True)
    True
    >>> is_best_in_parts(10**8, needed=10**8, had=0, asked=10**6, is_coming=True)  # of a later window
    False
    >>> is_best_in_parts(10**8, needed=10**8, had=10**7, asked=10**7, is_coming=True)
    False
    >>> is_best_in_parts(10**8, needed=10**8, had=10**7, asked=10**7, is_coming=False)  # samples at random
    True
    """
    if size < LEAST_BYTES:
        return False
    if needed < THIN * size:
        return True
    if is_coming:
        return had + asked <= _FIRST * size if is_opening else 0 < had <= _BEHIND * size - asked
    return had + asked <= THIN * size


class PartFetcher:
    """Downloader of partial shards: opens sparse copies in the cache and fetches the ranges that are needed.

    Args:
        space: of the cache.
        count: called with the figures of each download.
        count_hit: called for each shard that a batch opens and finds to have all that it needs.
    """

    def __init__(
        self, space: CacheSpace, count: Callable[[storage.Transfer], None], count_hit: Callable[[], None]
    ) -> None:
        self._space = space
        self._count = count
        self._count_hit = count_hit
        self._connections = storage.Connections(_CONNECTIONS)

    def pin(
        self,
        wanted: Mapping[int, tuple[ShardRequest, PartNeeds]],
        batch: Collection[str] | None,
        *,
        is_opening: bool = False,
    ) -> dict[int, PinnedPart]:
        """Return sparse copies, locked, that have what is needed, of the shards for which these are best.

        ``batch`` is as `CacheSpace.reserve` takes it. Ahead of one, all is fetched that an epoch reads, and only of
        shards of which that is little; for one too, where that costs no more than what the batch needs. More comes in
        parts for the first batches (``is_opening``) of a worker.
        """
        if batch is not None:
            self._space.claim(batch, next(iter(wanted.values()))[0].deadline)
        parts: dict[int, PinnedPart] = {}
        try:
            with ThreadPoolExecutor(min(len(wanted), _CONNECTIONS)) as pool:
                run = map if len(wanted) == 1 else pool.map
                list(run(lambda number: self._open(number, *wanted[number], parts), wanted))
            missing, at_once = dict[int, Int64s](), dict[int, Int64s]()
            for number, part in list(parts.items()):
                request, needs = wanted[number]
                members = part.missing(needs.now(part.index))
                if not len(members):
                    if batch is not None and part is not needs.pinned:
                        self._count_hit()
                    continue
                more = _cheap_members(request, needs, part, members) if batch is not None else None
                for chosen in (members,) if more is None else (more, members):
                    if self._allocate(request, needs, part, chosen, batch, is_opening):
                        missing[number], at_once[number] = members, chosen
                        break
                else:
                    _let_go(parts.pop(number), needs)
            self._fetch_all(wanted, parts, missing, at_once)
        except BaseException:
            for number, part in parts.items():
                _let_go(part, wanted[number][1])
            raise
        return {number: parts[number] for number in wanted if number in parts}

    def _fetch_all(
        self,
        wanted: Mapping[int, tuple[ShardRequest, PartNeeds]],
        parts: dict[int, PinnedPart],
        missing: dict[int, Int64s],
        at_once: Mapping[int, Int64s],
    ) -> None:
        """Fetch members that are missing, or wait until others have; removes the shards of which that fails.

        ``at_once`` are the members to fetch at the first attempt, of which only those that are missing are waited for.
        """
        wrong: Counter[int] = Counter()
        entry = waits.Request("", attempt=0, note="another process is fetching it")
        with contextlib.ExitStack() as stack:
            for _ in pauses(max((wanted[number][0].deadline.end for number in missing), default=0.0)):
                wrong.update(
                    self._fetch({number: (wanted[number][0], parts[number], at_once[number]) for number in missing})
                )
                missing = {number: left for number in missing if len(left := parts[number].missing(missing[number]))}
                at_once = missing
                for number in [number for number in missing if wrong[number] >= _ATTEMPTS]:
                    del missing[number]
                    # Its index may be an old one too: the fetch of the whole shard finds out.
                    parts.pop(number).close()
                    self._space.drop_sparse(wanted[number][0].paths, wanted[number][0].deadline)
                if not missing:
                    break
                is_new, entry.location = not entry.location, wanted[next(iter(missing))][0].shown
                if is_new:
                    stack.enter_context(waits.under_way(entry))
        for number in list(missing)[:1]:  # to ask for each would take too long
            wanted[number][0].meet_error()
        for number in missing:
            _let_go(parts.pop(number), wanted[number][1])

    def _open(self, number: int, request: ShardRequest, needs: PartNeeds, parts: dict[int, PinnedPart]) -> None:
        """Open the sparse copy of a shard, a new one if need be; without its index or room it has to be fetched whole.

        A new one holds the index already, so that all processes of a node fetch that once.
        """
        part = needs.pinned if isinstance(needs.pinned, PinnedPart) else self._opened(request)
        if part is None:
            with self._space.alone_with(request):
                part = self._opened(request)  # of another process, meanwhile
                if part is None and self._add(request):
                    part = self._opened(request)
        if part is not None:
            parts[number] = part

    def _add(self, request: ShardRequest) -> bool:
        """Add an empty sparse copy; return false where that cannot be, because of its index or for want of room."""
        try:
            index = request.known_index()
        except ShardDamagedError:  # the fetch of the whole shard tries again
            return False
        if index is None or not _is_of(index, request):
            return False
        return self._space.add_sparse(request, identity(index.size, index.sha256))

    def _allocate(
        self,
        request: ShardRequest,
        needs: PartNeeds,
        part: PinnedPart,
        members: Int64s,
        batch: Collection[str] | None,
        is_opening: bool,
    ) -> bool:
        """Reserve disk space in the cache for members; return false where the whole shard is to be fetched."""
        index = part.index
        needed = request.size if needs.epoch is None else int(index.sizes[needs.epoch(index)].sum())
        # Ahead of a batch, what an epoch reads most of is fetched whole.
        asked = request.size if batch is None else int(index.sizes[members].sum())
        is_coming = batch is None or self._space.reader.expects(request.paths.key)
        if not is_best_in_parts(
            request.size, needed=needed, had=part.num_bytes, asked=asked, is_coming=is_coming, is_opening=is_opening
        ):
            return False
        gap, _ = request_sizes(storage.link_speed(request.location))
        ranges = coalesced(part.places(members), gap=gap)  # what comes between members takes space too
        return not self._space.allocate(request, part.file.fileno(), ranges, batch)

    def _opened(self, request: ShardRequest) -> PinnedPart | None:
        """Return the sparse copy that there is of a shard, locked; one of another shard or boot is deleted."""
        paths = request.paths
        self._space.check(paths)
        try:
            return open_part(paths, lambda: _index_of(request))
        except (FileNotFoundError, PlantedError, IndexFormatError):
            if not os.path.lexists(paths.sparse):
                return None
        self._space.drop_sparse(paths, request.deadline)
        return None

    def _fetch(self, wanted: Mapping[int, tuple[ShardRequest, PinnedPart, Int64s]]) -> Counter[int]:
        """Fetch members into sparse copies, but for those that another process is fetching.

        Records those that are right, and returns how many attempts at shards were wrong, or are of no use.
        """
        wrong: Counter[int] = Counter()
        with contextlib.ExitStack() as stack:
            running = []
            for number, (request, part, members) in wanted.items():
                gap, length = request_sizes(storage.link_speed(request.location))
                claimed = stack.enter_context(part.claimed(part.places(members), gap=gap))
                # Looked up again, as another process may have fetched some before it gave up its claim.
                mine = part.missing(members[covered(part.places(members), claimed)])
                mine = self._take_arrived(request, part, mine) if len(mine) else mine
                if not len(mine):
                    continue
                ranges = part.unchecked(coalesced(part.places(mine), gap=gap), claimed)
                fetching = storage.begin_fetch(
                    request.location,
                    part.path,
                    request.options,
                    size=request.size,
                    deadline=request.deadline,
                    connections=self._connections,
                    ranges=requests_of(ranges, length),
                )
                running.append((number, mine, ranges, stack.enter_context(fetching)))
            for number, members, ranges, fetching in running:
                request, part, _ = wanted[number]
                try:
                    self._count(fetching.result())
                except storage.NoRangesError:
                    wrong[number] += _ATTEMPTS
                    continue
                # Others may wait for what has come between them.
                come = np.union1d(members, part.within(ranges))
                wrong[number] += bool(len(np.intersect1d(self._check(request, part, come), members)))
        return wrong

    def _take_arrived(self, request: ShardRequest, part: PinnedPart, members: Int64s) -> Int64s:
        """Copy members that a fetch of the whole shard has got already; return the others.

        Checksums tell which these are.
        """
        if part.index.checksums is not None:
            with (
                contextlib.suppress(FileNotFoundError, PlantedError),
                contextlib.closing(LockableFile(request.paths.part)) as file,
            ):
                copy_ranges(file.fileno(), part.path, part.places(members))
                return self._check(request, part, members)
        return members

    def _check(self, request: ShardRequest, part: PinnedPart, members: Int64s) -> Int64s:
        """Check members whose bytes are written, record those that are right, and return the others."""
        bad = checksums.wrong(part.index, members, _Content(part.file.fileno()))
        if len(bad) < len(members):
            self._space.record(request, part.map, merged(part.places(np.setdiff1d(members, bad))))
        return bad


class _Content:
    """The bytes of an open file, by slices."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __getitem__(self, place: slice) -> bytes:
        return os.pread(self._descriptor, place.stop - place.start, place.start)


def open_part(
    paths: CopyPaths, find_index: Callable[[], ShardIndex | None], *, writable: bool = True
) -> PinnedPart | None:
    """Return the sparse copy of a shard, locked; ``None`` where another process is deleting it.

    Raises ``FileNotFoundError``, `PlantedError` or `IndexFormatError` where there is none that is of use.
    """
    with contextlib.ExitStack() as stack:
        file = LockableFile(paths.sparse, writable=writable)
        stack.callback(file.close)
        if not (file.lock(alone=False) and file.is_at(paths.sparse)):
            return None
        extents = ExtentMap(paths.extents, writable=writable)
        stack.callback(extents.close)
        index = find_index()
        if index is None or not extents.is_of(identity(index.size, index.sha256)):
            raise IndexFormatError(f"{paths.sparse} is of another shard, or from before the system was started")
        stack.pop_all()
        return PinnedPart(paths, index, file, extents)


def damaged_members(copy: Path, find_index: Callable[[], ShardIndex | None]) -> tuple[int, list[str]]:
    """Check the members that the sparse copy of a shard has, by the path that its whole copy would have.

    Returns how many there are, and the names of those whose bytes are wrong; none where the copy has gone, or is of no
    use. Raises ``OSError`` where it cannot be read.
    """
    try:
        part = open_part(CopyPaths(copy.parent, copy.name), find_index, writable=False)
    except (FileNotFoundError, PlantedError, IndexFormatError):
        part = None
    if part is None:
        return 0, []
    with part:
        index, there = part.index, part.within(part.map.extents())
        wrong = checksums.wrong(index, there, _Content(part.file.fileno()))
        samples = np.searchsorted(index.sample_starts, wrong, side="right") - 1
        kinds = index.extension_ids[wrong].tolist()
        pairs = zip(samples.tolist(), kinds, strict=True)
        return len(there), [f"{index.key(sample)}.{index.extensions[kind]}" for sample, kind in pairs]


def _cheap_members(request: ShardRequest, needs: PartNeeds, part: PinnedPart, members: Int64s) -> Int64s | None:
    """Return all missing members that an epoch reads, where they cost no more than some, with those that are there.

    Labels of small samples lie so close together that all come in one range, and some of them in one each: these would
    take as many requests, and the others as many again, for the ranges between them. ``None`` where they cost more.
    """
    speed = storage.link_speed(request.location)
    gap, _ = request_sizes(speed)
    if needs.epoch is None or len(coalesced(part.places(members), gap=gap)) == 1:
        return None
    found = part.missing(needs.epoch(part.index))
    there = np.concatenate((part.map.extents(), part.places(members)))
    costs = [cost(coalesced(ranges, gap=gap), speed) for ranges in (part.places(found), there)]
    return found if costs[0] <= costs[1] else None


def _let_go(part: PinnedPart, needs: PartNeeds) -> None:
    """Close the file of a sparse copy, unless its reader had it open before."""
    if part is not needs.pinned:
        part.close()


def _is_of(index: ShardIndex, request: ShardRequest) -> bool:
    """Return whether an index is that of the shard which index.json lists."""
    return index.size == request.size and request.listed.sha256 in ("", index.sha256)


def _index_of(request: ShardRequest) -> ShardIndex | None:
    """Return the index of a sparse copy of the requested shard: beside it, or beside the index.json that lists it."""
    if request.has_listed_index():
        index = request.known_index()
    else:
        index = shard_index.load(request.paths.index) if is_own_file(request.paths.index) else None
    return index if index and _is_of(index, request) else None
