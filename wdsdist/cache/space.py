"""The room in a cache folder: what is in use, who may have more, and what has to go.

Files get and lose their names only here, under one lock that is held for moments.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from wdsdist.cache import folders, stamps
from wdsdist.cache import paths as places
from wdsdist.cache.fetch import Fetched, Wanted
from wdsdist.cache.ledger import Ledger
from wdsdist.cache.locks import LockableFile, PlantedError, pauses
from wdsdist.cache.paths import Place
from wdsdist.cache.priorities import NEVER, Need, Needs, Rank, Reader, all_needs
from wdsdist.cache.usage import STAMP_BYTES, Held, all_held, reserved_for, size_of
from wdsdist.errors import CacheError
from wdsdist.storage import Deadline

_SLACK = 64
"""What is evicted at once may leave this part of the limit free: to look through a full folder takes its time."""

_MOMENT = 0.002
"""Seconds after which to look again whether the folder is still locked."""

_PATIENCE = 10.0
"""Seconds in which the folder is locked whatever the deadline: what was fetched at the last moment is not lost."""


class Room:
    """The room in one cache folder, as one process deals with it."""

    def __init__(self, root: Path, limit: int | None) -> None:
        self.root = root
        self._limit = limit
        self.reader = Reader(root / places.READERS)

    @contextlib.contextmanager
    def alone(self, deadline: Deadline) -> Iterator[Ledger]:
        """Keep all others from changing which files there are; what processes that died left is removed at first."""
        folders.make_root(self.root)
        with contextlib.closing(LockableFile(self.root / places.LOCK, writable=True, create=True)) as file:
            for _ in pauses(max(deadline.end, time.monotonic() + _PATIENCE), _MOMENT):
                if file.lock(alone=True):
                    break
            else:
                raise CacheError(f"{self.root} stays locked by a process that is stopped: end that process")
            ledger = Ledger(file, is_kept=self._limit is not None)
            if not self.reader.has_joined:
                self.reader.join()
                self._all_held(ledger)
            yield ledger

    def check(self, place: Place) -> None:
        """Raise `CacheError` where others can have put something in the way to a copy, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            folders.check_root(self.root)
            folders.check_folder(place.folder)

    def take(self, place: Place, deadline: Deadline, *, anew: bool = False) -> LockableFile | None:
        """Open and lock the part of a shard, to fetch it; nothing where that is done already, or being done.

        With ``anew`` the shard is to be fetched even where there is a copy.
        """
        with self.alone(deadline):
            folders.make_folder(place.folder)
            if not anew and _is_there(place.copy):
                return None
            part = LockableFile(place.part, writable=True, create=True)
            return part if part.lock(alone=True) else None

    def expect(self, needs: Iterable[Need], job: str, deadline: Deadline) -> None:
        """Publish what this process will read, nearest first."""
        if not self.reader.has_joined:
            with self.alone(deadline):
                pass
        self.reader.expect(needs, job)

    def reserve(self, part: LockableFile, wanted: Wanted, batch: Collection[str] | None) -> str:
        """Reserve room for a part and its index, evicting what is needed later; say why where there is not enough.

        ``batch`` lists all copies that the batch in the making needs; it is ``None`` where one is fetched ahead.
        """
        place, size = wanted.place, wanted.size
        if size < 0 and self._limit is not None:
            raise CacheError(
                f"{wanted.shown} has a size that neither index.json nor its store tells, so cache_limit cannot be "
                f"kept: index the data set with `wdsdist index`, or set no cache_limit"
            )
        index_bytes = wanted.index_bytes(ask=self._limit is not None)
        reserved = max(0, size) + wanted.extra_bytes + index_bytes + STAMP_BYTES
        if self._limit is not None and reserved > self._limit:
            raise CacheError(
                f"cache_limit is {self._limit:,} bytes but {wanted.shown} takes {reserved:,} with its index: raise it"
            )
        with self.alone(wanted.deadline) as ledger:
            if self._limit is not None:
                needs = all_needs(self.root / places.READERS)
                rank = needs.rank(place.key) if batch is None else self.reader.claim(batch, needs.latest)
                if rank == NEVER and needs.ranks:  # it was read and evicted since somebody chose to fetch it ahead
                    return "nobody needs it any more"
                if why := self._make_room(ledger, place, reserved, rank, needs):
                    return why
            with ledger.changing(place):
                stamps.write(place.stamp, stamps.Stamp(reserved=reserved))
                os.ftruncate(part.fileno(), 0)
                _allocate(part.fileno(), size)
        return ""

    def give_up(self, part: LockableFile, place: Place, deadline: Deadline) -> None:
        """Remove a part that this process has taken."""
        with contextlib.closing(part), self.alone(deadline) as ledger, ledger.changing(place):
            _remove(place.part)
            if not place.copy.exists():
                _remove(place.index, place.stamp)

    def install(self, part: LockableFile, wanted: Wanted, fetched: Fetched) -> None:
        """Give a part that was verified the name of the copy, and its index the name beside it."""
        place, sidecar = wanted.place, fetched.sidecar
        taken = part.stat().st_size + len(sidecar or b"") + STAMP_BYTES
        with self.alone(wanted.deadline) as ledger, ledger.changing(place):
            _remove(place.index)  # never written over: others may have mapped it
            # Of an index that had to be made the size was not known: where it takes more than its room it is not kept.
            if sidecar is not None and (self._limit is None or taken <= reserved_for(place)):
                folders.write(place.index, sidecar)
            place.part.replace(place.copy)
            stamps.stamp(part.fileno(), place.stamp, fetched.sha256, wanted.made_of)

    def discard(self, place: Place, copy: LockableFile, deadline: Deadline) -> None:
        """Remove a copy that this process has opened and locked alone."""
        with self.alone(deadline) as ledger, ledger.changing(place):
            if copy.is_at(place.copy):
                _drop(place, copy)

    def stamp(self, place: Place, copy: LockableFile, sha256: str, wanted: Wanted) -> None:
        """Note that the bytes of a copy, which this process has locked alone, have been found right.

        One that somebody else has put there becomes the cache's own.
        """
        with self.alone(wanted.deadline) as ledger, ledger.changing(place):
            stamps.stamp(copy.fileno(), place.stamp, sha256, wanted.made_of)

    def may_fit(self, wanted: Wanted) -> bool:
        """Say whether there can be room to fetch a shard ahead, before its store is asked for anything."""
        if self._limit is None:
            return True
        with self.alone(wanted.deadline) as ledger:
            if self._fits(ledger, wanted.place, wanted.listed_size):
                return True
            needs = all_needs(self.root / places.READERS)
            rank = needs.rank(wanted.place.key)
            missing, _, later = self._shortage(ledger, wanted.place, wanted.listed_size, rank, needs)
        return missing <= sum(one.size for one in later)

    def _fits(self, ledger: Ledger, place: Place, wanted: int) -> bool:
        """Say whether the ledger shows that there is room for a shard."""
        used = ledger.read()
        return used is not None and self._missing(used, place, wanted) <= 0

    def _missing(self, used: int, place: Place, wanted: int) -> int:
        """Return how many bytes are missing for a shard where so many are in use, also for what is there of it."""
        return used - (0 if place.copy.exists() else size_of(place)) + wanted - (self._limit or 0)

    def _shortage(
        self, ledger: Ledger, place: Place, wanted: int, rank: Rank, needs: Needs
    ) -> tuple[int, list[Held], list[Held]]:
        """Return how many bytes are missing for a shard, the copies that are there, and those needed later than it."""
        held = self._all_held(ledger)
        whole = [one for one in held if one.is_whole]
        missing = self._missing(sum(one.size for one in held), place, wanted)
        return missing, whole, [one for one in whole if needs.rank(one.place.key) > rank]

    def _make_room(self, ledger: Ledger, place: Place, wanted: int, rank: Rank, needs: Needs) -> str:
        """Evict copies that are needed later than ``rank``, as far as need be; say why where that is not enough."""
        if self._fits(ledger, place, wanted):
            return ""
        missing, whole, later = self._shortage(ledger, place, wanted, rank, needs)
        sooner = sum(one.size for one in whole) - sum(one.size for one in later)
        if 0 < missing <= sum(one.size for one in later):
            # Those that nobody needs go by their last use, the others by the next, furthest first.
            later.sort(key=lambda one: one.last_use)
            later.sort(key=lambda one: needs.rank(one.place.key), reverse=True)
            missing -= self._evict(ledger, later, missing)
        if missing <= 0:
            return ""
        return (
            f"{missing:,} bytes of the {self._limit:,} of cache_limit are missing, where {sooner:,} hold what is "
            f"needed sooner and the rest is being read or fetched"
        )

    def _evict(self, ledger: Ledger, copies: Iterable[Held], missing: int) -> int:
        """Evict copies in this order until so many bytes are free, and a few more; return how many are."""
        used, freed = ledger.read(), 0
        ledger.forget()
        most = missing + (self._limit or 0) // _SLACK
        for one in copies:
            if (freed < missing or freed + one.size <= most) and _evict(one.place):
                freed += one.size
        if used is not None:
            ledger.write(used - freed)
        return freed

    def _all_held(self, ledger: Ledger) -> list[Held]:
        """List all that is in the folder, which takes its time where there is much."""
        ledger.forget()
        held = all_held(self.root)
        ledger.write(sum(one.size for one in held))
        return held


def _is_there(copy: Path) -> bool:
    """Say whether there is a copy; what others have put in its place will be replaced."""
    try:
        LockableFile(copy).close()
    except (FileNotFoundError, PlantedError):
        return False
    return True


def _evict(place: Place) -> bool:
    """Remove a copy and what belongs to it; say whether that could be done, because nobody is reading it."""
    try:
        with contextlib.closing(LockableFile(place.copy)) as file:
            if file.lock(alone=True):
                _drop(place, file)
                return True
    except OSError:  # it is gone, or not ours to write
        pass
    return False


def _drop(place: Place, copy: LockableFile) -> None:
    """Remove a copy that is locked alone, with its index and its stamp."""
    if copy.stat().st_nlink == 1:
        # A map that somebody has kept must not keep the room. Of several names one may be that of somebody's data.
        os.truncate(f"/proc/self/fd/{copy.fileno()}", 0)  # that file, whatever the name leads to by now
    place.copy.unlink()
    # Last the stamp: what is killed before leaves something that the next one knows to be the cache's own.
    _remove(place.index, place.stamp)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _allocate(descriptor: int, size: int) -> None:
    """Give a file its size and its room on the disk, so that a full disk shows before anything is fetched."""
    if size > 0:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.ftruncate(descriptor, size)
