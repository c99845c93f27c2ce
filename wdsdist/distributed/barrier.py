"""A barrier that waits on the store of the job, so that a long wait aborts no collective.

No collective is involved: NCCL's watchdog and the process group's timeout see no operation in flight.

The protocol of one barrier (a meeting). A rank writes that it has arrived; once all ranks have signed in, it increments
a counter that they share, and the last one writes the verdict ``met``. A rank whose deadline passes, or which sees a
posted failure, writes that verdict instead. The store accepts the first verdict only, and every rank obeys the one it
reads, so a barrier ends alike for all: no rank passes a barrier that another rank gave up.

Each process numbers its barriers. After a rank has died, torchrun restarts all ranks, which count from 1 again and find
the keys of the earlier attempt in the store, under the same numbers; `Member` tells them apart.

A rank whose ``data_download`` failed posts its error in the store, so that ranks in `barrier` need not wait for the
deadline. A posted failure counts until its rank calls either again: such a rank has handled the error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wdsdist._util.validation import check_seconds
from wdsdist.distributed.identity import Identity, identity, process_group
from wdsdist.distributed.job_store import (
    Member,
    is_hosted_by_rank_0,
    launched_member,
    member_of,
    stamped,
    store_at_hand,
)
from wdsdist.errors import DistributedError, DistributedTimeoutError, WdsdistError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_NAMED = 8
"""Missing ranks that an error names; it only counts the others."""

_LINGER = 10.0
"""Seconds that rank 0 waits for the others to read the verdict: it often hosts the store, and may exit next."""

_POLLS_PER_SECOND = 10_000
"""Polls of the store by all ranks together: one server thread answers some 100,000 requests a second."""

_missed: list[float] = []
"""The timeouts of the barriers that this process gave up before it reached the store that rank 0 was to host."""

_unswept: list[str] = []
"""Keys of meetings that ended before every rank had read the verdict; rank 0 deletes them at the next one."""

_COUNT = "failed"
"""Key of the number of ranks with a posted failure: one key to read, however many ranks there are."""

_LATEST = "failed/latest"
"""Key of the rank that posted last."""

_posted: tuple[Store, int] | None = None
"""The store and rank of this process's posted failure; saves a round trip to the store in every call without one."""

_UNREACHABLE = (RuntimeError, ValueError, OSError, ImportError, WdsdistError)
"""What a store that cannot be reached raises: less important than the error that is being posted."""


def barrier(timeout: float = 1800.0) -> None:
    """Wait until every rank has reached the barrier, without a collective.

    The ranks meet in the store of ``torch.distributed``, whatever its backend; before ``init_process_group``, in that
    of the launcher: torchrun's, or what rank 0 hosts at ``MASTER_ADDR`` and ``MASTER_PORT``. A single process returns
    at once, and without torch. A barrier ends alike on every rank. It passes on all of them, or it
    raises on all of them: once one rank has given up, the ranks that come later to the same barrier raise as
    soon as they come, and every rank's next call is the next barrier. One call at a time in each process.

    Args:
        timeout: longest wait in seconds, above 0; ``math.inf`` sets no deadline. The shortest of all ranks counts.

    Raises:
        ArgumentError: ``timeout`` is not a number above 0.
        DistributedTimeoutError: some ranks did not reach it in time; the message names them.
        DistributedError: ``data_download`` failed on another rank, whose number and error the message gives; there
            is neither a process group nor a launcher's store; or the store is gone.

    Example:
        >>> barrier(timeout=60)
    """
    seconds = check_seconds("timeout", timeout)
    deadline = time.monotonic() + seconds
    group = process_group()
    if group is None:
        here = identity()
        rank, world_size = here.rank, here.world_size
        join = functools.partial(_launched, here, seconds)
    else:
        rank, world_size = group.get_rank(), group.get_world_size()
        join = functools.partial(member_of, group)
    if world_size == 1:
        return
    try:
        _meet(join(), seconds, deadline)
    except DistributedError:
        raise
    except RuntimeError as error:  # DistError is one
        raise DistributedError(
            f"rank {rank} lost the store of the job at a barrier: its host, rank 0 unless the launcher "
            f"hosts it, has probably ended; look for the first error there ({error})"
        ) from error


def _launched(here: Identity, seconds: float) -> Member:
    """Return the membership in the launcher's job; tell of barriers that were given up while its store was not there.

    Without that, rank 0 would pass in its first barrier, which this rank has given up.
    """
    try:
        member = launched_member(here, seconds)
    except DistributedTimeoutError:
        if is_hosted_by_rank_0():
            _missed.append(seconds)
        raise
    while _missed:
        member.meetings += 1
        waited = _missed.pop(0)
        meeting = _Meeting(member, member.store, member.meetings)
        meeting.leave(meeting._decide(end="late", by=member.rank, seconds=waited, missing=[0], count=1))
    return member


def _meet(member: Member, seconds: float, deadline: float) -> None:
    _withdraw(member.store, member.rank)
    meeting = _Meeting.arrive(member)
    verdict = _poll(meeting.look, deadline, member.world_size) or meeting.give_up(seconds)
    meeting.leave(verdict)
    member.leave()
    if verdict["end"] == "failed":
        raise DistributedError(
            f"rank {verdict['failed']} failed and will not reach the barrier: {verdict['message']}\n"
            "Mend what failed there and run again"
        )
    if verdict["end"] == "late":
        raise DistributedTimeoutError(_what_was_missed(verdict, member.rank, member.world_size))


@dataclass(slots=True)
class _Meeting:
    """The state of one rank in one barrier."""

    member: Member
    store: Store
    number: int
    _counted: str | None = None
    """The roster in whose counter this rank has counted itself."""

    @staticmethod
    def arrive(member: Member) -> _Meeting:
        member.meetings += 1
        meeting = _Meeting(member, member.store, member.meetings)
        member.store.set(f"arrived/{member.rank}", stamped(member.store, meeting=meeting.number))
        return meeting

    def look(self) -> dict[str, Any] | None:
        """Return the verdict, or ``None``; write it where a rank has failed or all have arrived."""
        verdict = self._verdict()
        if verdict is not None:
            return verdict
        failure = _posted_failure(self.store, self.member)
        if failure is not None:
            return self._decide(end="failed", failed=failure[0], message=failure[1])
        return self._decide(end="met") if self._is_last() else None

    def give_up(self, seconds: float) -> dict[str, Any]:
        missing = self._missing()
        if not missing:  # the last rank arrived in the meantime
            return self._decide(end="met")
        return self._decide(
            end="late", by=self.member.rank, seconds=seconds, missing=missing[:_NAMED], count=len(missing)
        )

    def leave(self, verdict: dict[str, Any]) -> None:
        left = self.store.add(f"left/{verdict['id']}", 1)
        if self.member.rank != 0:
            return
        world_size = self.member.world_size
        # Were rank 0 to end now and the store with it, a rank that is still to read the verdict would find its
        # connection reset instead. Ranks that never reached a failed barrier are not waited for.
        awaited = world_size if verdict["end"] == "met" else world_size - len(self._missing())
        if left < awaited:
            _poll(lambda: self._left(verdict) >= awaited, time.monotonic() + _LINGER, world_size)
        _unswept.extend((self._key, f"left/{verdict['id']}", f"count/{self._counted}/{self.number}"))
        if self._left(verdict) == world_size:
            # Each rank has left this meeting, hence all earlier ones: nobody reads their keys again.
            for key in _unswept:
                self.store.delete_key(key)
            _unswept.clear()

    def _is_last(self) -> bool:
        """Return whether this rank is the last to reach the barrier; count it, once all ranks have signed in."""
        if not self.member.has_full_roster() or self.member.roster == self._counted:
            return False
        self._counted = self.member.roster
        return bool(self.store.add(f"count/{self._counted}/{self.number}", 1) == self.member.world_size)

    def _missing(self) -> list[int]:
        marks = self.member.notes([f"arrived/{rank}" for rank in range(self.member.world_size)])
        return [rank for rank, mark in enumerate(marks) if mark is None or mark["meeting"] < self.number]

    def _left(self, verdict: dict[str, Any]) -> int:
        return int(self.store.add(f"left/{verdict['id']}", 0))

    def _decide(self, **verdict: Any) -> dict[str, Any]:
        """Write a verdict, unless another rank was first, and return the one in the store."""
        return self.member.first_note(self._key, self._holds, id=f"{self.member.name}/{self.number}", **verdict)

    def _verdict(self) -> dict[str, Any] | None:
        (verdict,) = self.member.notes([self._key])
        return verdict if verdict and self._holds(verdict) else None

    def _holds(self, verdict: dict[str, Any]) -> bool:
        # At a verdict "met" all ranks had signed in; at others, a rank that is late for its first barrier had not.
        return self.member.is_certain(verdict) if verdict["end"] == "met" else self.member.is_current(verdict)

    @property
    def _key(self) -> str:
        return f"verdict/{self.number}"


def _poll(look: Callable[[], Any], deadline: float, world_size: int) -> Any:
    """Poll ``look`` until it returns a true value or the deadline passes; return its last value.

    A ``Store.wait`` in slices would do the same, but each slice that runs out logs two warnings of c10d's on
    every rank, and a long one cannot be interrupted.
    """
    pause, longest = 0.001, max(0.1, world_size / _POLLS_PER_SECOND)
    while not (found := look()):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(pause, left))
        pause = min(2 * pause, longest)
    return found


def _what_was_missed(verdict: dict[str, Any], rank: int, world_size: int) -> str:
    missing, count = verdict["missing"], verdict["count"]
    names = ", ".join(str(number) for number in missing)
    more = f" and {count - len(missing)} more" if count > len(missing) else ""
    ranks = f"rank{'s' if count > 1 else ''} {names}{more} of {world_size}"
    waited = "for ever" if math.isinf(verdict["seconds"]) else f"{verdict['seconds']:g} s"
    if rank in missing:
        return (
            f"rank {rank} came to the barrier after rank {verdict['by']} had given up, which waited {waited} for "
            f"{ranks}: give the barrier a longer timeout, or find out what kept this rank"
        )
    return (
        f"{ranks} did not come to the barrier: rank {verdict['by']} waited {waited}. Look for an error or a stalled "
        "process there, or give the barrier a longer timeout"
    )


def post_failure(message: str) -> None:
    """Post that this rank has failed, for every rank in a barrier, now or later; without a store, do nothing."""
    global _posted
    with contextlib.suppress(*_UNREACHABLE):
        found = store_at_hand()
        if found is None:
            return
        store, rank = found
        standing = _failure(store, rank)
        store.set(_key(rank), stamped(store, message=message[:4000]))
        store.set(_LATEST, str(rank))
        if standing is None:
            store.add(_COUNT, 1)
        _posted = found


def withdraw_failure() -> None:
    """Withdraw the failure that this process has posted, if any."""
    global _posted
    if _posted is not None:
        found, _posted = _posted, None
        with contextlib.suppress(*_UNREACHABLE):
            _withdraw(*found)


def _withdraw(store: Store, rank: int) -> None:
    """Withdraw the failure of a rank, also one that an earlier process of that rank has posted."""
    if store.add(_COUNT, 0) > 0 and _failure(store, rank) is not None:
        # Emptied, not deleted: a rank that has just checked for the key would block in its read.
        store.set(_key(rank), "")
        store.add(_COUNT, -1)


def _posted_failure(store: Store, member: Member) -> tuple[int, str] | None:
    """Return a rank with a posted failure, and its message; ``None`` where there is none."""
    if store.add(_COUNT, 0) <= 0:
        return None
    # The latest first: if every rank of a large job read the keys of all ranks, the store would be overloaded.
    latest = [int(store.get(_LATEST))] if store.check([_LATEST]) else []
    for rank in (*latest, *range(member.world_size)):
        failure = _failure(store, rank)
        if failure is not None and member.is_current(failure):
            return rank, failure["message"]
    return None


def _failure(store: Store, rank: int) -> dict[str, Any] | None:
    if not store.check([_key(rank)]):
        return None
    written = store.get(_key(rank))
    return json.loads(written) if written else None


def _key(rank: int) -> str:
    return f"failure/{rank}"
