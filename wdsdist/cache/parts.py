"""Parts of shards: sparse copies of shards of which only some members are needed, fetched as ranges and checked.

They hold the members that a batch waits for while its shard is fetched behind it, or all that an epoch reads of a shard
where that is little of it. What cannot be had in parts is left to a fetch of the whole shard: compressed shards, those
without an index or room, those of a store without ranges, and those whose bytes are wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.ownership import is_own_file
from wdsdist.cache.copies import Pinned
from wdsdist.cache.counters import Counters
from wdsdist.cache.extents import (
    SMALL_GAP,
    ExtentMap,
    coalesced,
    copy_ranges,
    cost,
    covered,
    merged,
    request_sizes,
    requests_of,
    without,
)
from wdsdist.cache.folders import CopyPaths
from wdsdist.cache.locks import LockableFile, PlantedError, pauses
from wdsdist.cache.request import LEAST_BYTES, ShardRequest
from wdsdist.cache.space import CacheSpace, Refusal
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

_WHOLE = Refusal("it is best fetched whole")

Members = Callable[[ShardIndex], Int64s]
"""Returns the members of a shard that are needed, by their numbers in its index."""


@dataclass(frozen=True, slots=True)
class PartNeeds:
    """The members of a shard that a reader needs: now, and in the whole epoch."""

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

    def spans(self, members: Int64s) -> Int64s:
        """Return the bytes by which members are fetched, their headers with them: int64 [members, 2]."""
        return checksums.spans(self.index, members)

    def within(self, ranges: Int64s) -> Int64s:
        """Return the members that lie in ranges, which are merged; those without a byte lie in none."""
        places = self.places(np.arange(len(self.index.sizes)))
        return np.flatnonzero(covered(places, ranges) & (places[:, 0] < places[:, 1]))

    def unchecked(self, ranges: Int64s, claimed: Int64s) -> Int64s:
        """Return the parts of ranges that may be written, claimed and not yet checked; others may read the rest."""
        free = without(claimed, self.map.extents())
        return without(ranges, without(ranges, free))

    @contextlib.contextmanager
    def claimed(self, places: Int64s, *, gap: int) -> Iterator[Int64s]:
        """Claim the byte ranges, with small gaps, that no other process fetches, and yield them in three rounds.

        Others find it claimed until the block ends.
        """
        free, left = np.zeros((0, 2), np.int64), places
        for narrower in (gap, SMALL_GAP, None):  # where another process fetches some of a range, the rest must not wait
            ranges = left if narrower is None else coalesced(left, gap=narrower)
            claims = [one for one in ranges.tolist() if self.file.claim(*one)]
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


@dataclass(slots=True, eq=False)
class _Opened:
    """A sparse copy that is open, and which members are to come into it."""

    request: ShardRequest
    needs: PartNeeds
    part: PinnedPart
    missing: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    at_once: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """Those to fetch at the next attempt, of which only those that are `missing` are waited for."""
    recorded: int = 0
    """Bytes that the extent map had when `missing` was computed."""
    bytes_in_delay: int = 0
    """Of the store when members were chosen: measured anew, it would fetch larger gaps than were reserved."""
    failures: int = 0
    """Attempts whose bytes were wrong."""

    def let_go(self) -> None:
        """Unlock and close the sparse copy, unless its reader had opened it already."""
        if self.part is not self.needs.pinned:
            self.part.close()


class PartFetcher:
    """Downloader of partial shards: opens sparse copies in the cache and fetches the ranges that are needed.

    Args:
        space: of the cache.
        count: called with the figures of each download, and with a hit for each shard that a batch opens and finds to
            have all that it needs.
    """

    def __init__(self, space: CacheSpace, count: Callable[[Counters], None]) -> None:
        self._space = space
        self._count = count
        # What a batch waits for must not queue for the connections of what is fetched ahead.
        self._connections = {is_ahead: storage.Connections(_CONNECTIONS) for is_ahead in (False, True)}

    def pin(
        self, wanted: Mapping[int, tuple[ShardRequest, PartNeeds]], *, is_opening: bool = False, is_again: bool = False
    ) -> dict[int, PinnedPart | Refusal]:
        """Return locked sparse copies with the needed members, of the shards that are best fetched in parts.

        The others, and those for which there is no space, are refused.

        Ahead of a batch, all is fetched that an epoch reads, and only of shards of which that is little; for one too,
        where that costs no more than what the batch needs. More comes in parts for the first batches (``is_opening``)
        of a worker. A batch that asks again (``is_again``), after it waited for space, counts no hits.
        """
        opened: dict[int, _Opened] = {}
        refused: dict[int, Refusal] = {}
        try:
            with ThreadPoolExecutor(min(len(wanted), _CONNECTIONS)) as pool:
                run = map if len(wanted) == 1 else pool.map
                list(run(lambda number: self._open(number, *wanted[number], opened, refused), wanted))
            for number, one in list(opened.items()):
                one.recorded = one.part.num_bytes  # before: what comes in between counts as coming
                one.missing = one.part.missing(one.needs.now(one.part.index))
                if len(one.missing) and (refusal := self._prepare(one, is_opening)):
                    refused[number] = refusal
                    opened.pop(number).let_go()
                elif not (len(one.missing) or one.request.is_ahead or is_again or one.part is one.needs.pinned):
                    self._count(Counters(cache_hits=1))
            self._fetch_all(opened)
        except BaseException:
            for one in opened.values():
                one.let_go()
            raise
        return {number: opened[number].part if number in opened else refused.get(number, _WHOLE) for number in wanted}

    def _fetch_all(self, opened: dict[int, _Opened]) -> None:
        """Fetch members that are missing, or wait until others have; removes the shards of which that fails."""
        coming = {number: one for number, one in opened.items() if len(one.missing)}
        entry = waits.Request("", attempt=0, note="another process is fetching it")
        with contextlib.ExitStack() as stack:
            for _ in pauses(max((one.request.deadline.end for one in coming.values()), default=0.0)):
                self._fetch(coming.values())
                for number, one in list(coming.items()):
                    one.missing = one.at_once = one.part.missing(one.missing)
                    if not len(one.missing):
                        del coming[number]
                    elif one.failures >= _ATTEMPTS:
                        # Its index may be an old one too: the fetch of the whole shard finds out.
                        del coming[number], opened[number]
                        one.part.close()
                        self._space.drop_sparse(one.request.paths, one.request.deadline)
                if not coming:
                    break
                is_new, entry.location = not entry.location, next(iter(coming.values())).request.shown
                if is_new:
                    stack.enter_context(waits.under_way(entry))
        for one in list(coming.values())[:1]:  # to ask for each would take too long
            one.request.meet_error()
        for number in coming:
            opened.pop(number).let_go()

    def _open(
        self, number: int, request: ShardRequest, needs: PartNeeds, opened: dict[int, _Opened],
        refused: dict[int, Refusal],
    ) -> None:  # fmt: skip
        """Open the sparse copy of a shard, a new one if need be; without its index or space for it, it is refused.

        A new one holds the index already, so that all processes of a node fetch that once.
        """
        part = needs.pinned if isinstance(needs.pinned, PinnedPart) else self._opened(request)
        if part is None:
            with self._space.alone_with(request):
                part = self._opened(request)  # of another process, meanwhile
                if part is None and (refusal := self._add(request)):
                    refused[number] = refusal
                    return
                part = part or self._opened(request)
        if part is not None:
            opened[number] = _Opened(request, needs, part)

    def _add(self, request: ShardRequest) -> Refusal | None:
        """Add an empty sparse copy; return why that cannot be."""
        try:
            index = request.known_index()
        except ShardDamagedError:  # the fetch of the whole shard tries again
            return _WHOLE
        if index is None or not _is_of(index, request):
            return _WHOLE
        return self._space.add_sparse(request, index)

    def _prepare(self, one: _Opened, is_opening: bool) -> Refusal | None:
        """Choose the members to download, and reserve cache space; return why they are not to be fetched."""
        one.bytes_in_delay = storage.bytes_in_delay(one.request.location)
        more = None if one.request.is_ahead else _cheap_members(one)
        refusal = None
        for chosen in (one.missing,) if more is None else (more, one.missing):
            one.at_once = chosen
            refusal = self._allocate(one, is_opening)
            if refusal is None:
                break
        return refusal

    def _allocate(self, one: _Opened, is_opening: bool) -> Refusal | None:
        """Reserve disk space in the cache for members; return why they are not to be fetched."""
        request, epoch, part, index = one.request, one.needs.epoch, one.part, one.part.index
        needed = request.size if epoch is None else int(index.sizes[epoch(index)].sum())
        # Ahead of a batch, what an epoch reads most of is fetched whole.
        asked = request.size if request.is_ahead else int(index.sizes[one.at_once].sum())
        is_coming = request.is_ahead or self._space.reader.expects(request.paths.key)
        if not is_best_in_parts(
            request.size, needed=needed, had=part.num_bytes, asked=asked, is_coming=is_coming, is_opening=is_opening
        ):
            return _WHOLE
        gap, _ = request_sizes(one.bytes_in_delay)
        ranges = coalesced(part.spans(one.at_once), gap=gap)  # what comes between members takes space too
        return self._space.allocate(request, part.file.fileno(), ranges, recorded=one.recorded)

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

    def _fetch(self, coming: Iterable[_Opened]) -> None:
        """Fetch members into sparse copies, but for those that another process is fetching; record the right ones."""
        with contextlib.ExitStack() as stack:
            running = []
            for one in coming:
                request, part = one.request, one.part
                gap, length = request_sizes(one.bytes_in_delay)
                claimed = stack.enter_context(part.claimed(part.spans(one.at_once), gap=gap))
                # Looked up again, as another process may have fetched some before it gave up its claim.
                mine = part.missing(one.at_once[covered(part.places(one.at_once), claimed)])
                mine = self._take_arrived(one, mine) if len(mine) else mine
                if not len(mine):
                    continue
                ranges = part.unchecked(coalesced(part.spans(mine), gap=gap), claimed)
                fetching = storage.begin_fetch(
                    request.location,
                    part.path,
                    request.options,
                    size=request.size,
                    deadline=request.deadline,
                    connections=self._connections[request.is_ahead],
                    ranges=requests_of(ranges, length),
                )
                running.append((one, mine, ranges, stack.enter_context(fetching)))
            for one, members, ranges, fetching in running:
                try:
                    done = fetching.result()
                except storage.NoRangesError:
                    one.failures = _ATTEMPTS
                    continue
                self._count(Counters(bytes_fetched=done.bytes, retries=done.retries))
                # Others may wait for what has come between them.
                come = np.union1d(members, one.part.within(ranges))
                one.failures += bool(len(np.intersect1d(self._check(one, come, ranges), members)))

    def _take_arrived(self, one: _Opened, members: Int64s) -> Int64s:
        """Copy members that a fetch of the whole shard has got already; return the others.

        Checksums tell which these are.
        """
        if one.part.index.checksums is not None:
            with (
                contextlib.suppress(FileNotFoundError, PlantedError),
                LockableFile(one.request.paths.part) as file,
            ):
                places = one.part.places(members)
                copy_ranges(file.fileno(), one.part.path, places)
                return self._check(one, members, merged(places))
        return members

    def _check(self, one: _Opened, members: Int64s, written: Int64s) -> Int64s:
        """Check members that lie in ranges that are written, record those that are right, and return the others.

        Headers are recorded with them, for the fetch of the whole shard, which checks them by its digest.
        """
        part = one.part
        bad = checksums.wrong(part.index, members, _Content(part.file.fileno()))
        if len(bad) < len(members):
            right = np.setdiff1d(members, bad)
            spans = part.spans(right)
            is_whole = covered(spans, written)
            self._space.record(one.request, part.map, merged(np.where(is_whole[:, None], spans, part.places(right))))
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
        if index is None or not extents.is_of(index.size, index.sha256):
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


def _cheap_members(one: _Opened) -> Int64s | None:
    """Return all missing members that an epoch reads, where they cost no more than some, with those that are there.

    Labels of small samples lie so close together that all come in one range, and some of them in one each: these would
    take as many requests, and the others as many again, for the ranges between them. ``None`` where they cost more.
    """
    part, epoch = one.part, one.needs.epoch
    gap, _ = request_sizes(one.bytes_in_delay)
    if epoch is None or len(coalesced(part.spans(one.missing), gap=gap)) == 1:
        return None
    found = np.union1d(one.missing, part.missing(epoch(part.index)))
    there = np.concatenate((part.map.extents(), part.spans(one.missing)))
    costs = [cost(coalesced(ranges, gap=gap), one.bytes_in_delay) for ranges in (part.spans(found), there)]
    return found if costs[0] <= costs[1] else None


def _is_of(index: ShardIndex, request: ShardRequest) -> bool:
    """Return whether an index is that of the shard which index.json lists."""
    is_of_shard = index.size == request.size and request.listed.sha256 in ("", index.sha256)
    return is_of_shard and request.lists(index)


def _index_of(request: ShardRequest) -> ShardIndex | None:
    """Return the index of a sparse copy of the requested shard: beside it, or beside the index.json that lists it."""
    if request.has_listed_index():
        index = request.known_index()
    else:
        index = shard_index.load(request.paths.index) if is_own_file(request.paths.index) else None
    return index if index and _is_of(index, request) else None
