"""A barrier that waits on the store of the process group, so that a long wait aborts nothing.

No collective is involved: NCCL's watchdog and the process group's timeout see no operation in flight.

How one meeting goes, under keys that carry its number. A rank leaves its mark and adds to ``count``; the last
one to come writes the verdict ``met``. A rank whose deadline passes, or which sees a posted failure, writes
that verdict instead. The store accepts the first verdict only, and every rank obeys the one it finds, so a
meeting ends alike for all: nobody passes a barrier that another rank gave up.

The number of a meeting is counted in the store, by rank: a process that replaces another of its rank, or a
process group made anew on the same store, goes on where the last one stopped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wdsdist.checks import check_seconds
from wdsdist.errors import BarrierError, BarrierTimeoutError
from wdsdist.node.identity import identity
from wdsdist.node.store import posted_failure, process_group, shared_store, withdraw

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_NAMED = 8
"""How many missing ranks an error names before it only counts."""

_LINGER = 10.0
"""Seconds that rank 0 waits for the others to read the verdict: it often hosts the store, and may exit next."""

_POLLS_PER_SECOND = 10_000
"""How often all ranks together may ask the store: one server thread answers some 100,000 requests a second."""

_unswept: list[str] = []
"""Meetings that ended before every rank had read their verdict; rank 0 deletes their keys at the next one."""


def barrier(timeout: float = 1800.0) -> None:
    """Wait until every rank has called this.

    Needs an initialised ``torch.distributed`` with any backend, unless there is a single process: that one
    returns at once, and without torch. A barrier ends alike on every rank. It passes on all of them, or it
    raises on all of them: once one rank has given up, the ranks that come later to the same barrier raise as
    soon as they come, and every rank's next call is the next barrier. One call at a time in each process.

    Args:
        timeout: longest wait in seconds, above 0; ``math.inf`` waits for ever. The shortest of all ranks decides.

    Raises:
        ArgumentError: ``timeout`` is not a number above 0.
        BarrierTimeoutError: some ranks did not come in time; the message names them.
        BarrierError: ``data_download`` failed on another rank, whose number and error the message gives; there
            is no process group; or its store is gone.

    Example:
        >>> barrier(timeout=60)
    """
    seconds = check_seconds("timeout", timeout)
    group = process_group()
    if group is None:
        return _check_alone()
    rank, world_size = group.get_rank(), group.get_world_size()
    if world_size == 1:
        return None
    try:
        _meet(shared_store(group), rank, world_size, seconds)
    except BarrierError:
        raise
    except RuntimeError as error:  # DistError is one
        raise BarrierError(
            f"rank {rank} lost the store of the process group at a barrier: its host, rank 0 unless the launcher "
            f"hosts it, has probably ended; look for the first error there ({error})"
        ) from error


def _check_alone() -> None:
    me = identity()
    if me.world_size > 1:
        raise BarrierError(
            f"rank {me.rank} of {me.world_size} (from {me.source}) cannot meet the others, there is no process "
            "group: call torch.distributed.init_process_group first"
        )


def _meet(store: Store, rank: int, world_size: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    withdraw(store, rank)
    meeting = _Meeting(store, str(store.add(f"barriers/{rank}", 1)), rank, world_size)
    verdict = meeting.arrive()
    if verdict is None:
        verdict = _poll(meeting.look, deadline, world_size) or meeting.give_up(seconds)
    meeting.leave(verdict)
    if verdict["end"] == "failed":
        raise BarrierError(
            f"rank {verdict['failed']} failed and will not reach the barrier: {verdict['message']}\n"
            "Mend what failed there and run again"
        )
    if verdict["end"] == "late":
        raise BarrierTimeoutError(_what_was_missed(verdict, rank, world_size))


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The keys of one barrier, as one rank uses them."""

    store: Store
    number: str
    rank: int
    world_size: int

    def arrive(self) -> dict[str, Any] | None:
        self.store.set(self._key(f"arrived/{self.rank}"), "1")
        if self.store.add(self._key("count"), 1) == self.world_size:
            return self._decide(end="met")
        return None

    def look(self) -> dict[str, Any] | None:
        """Return the verdict once there is one, and pronounce it where a rank has failed."""
        if self.store.check([self._key("verdict")]):
            return self._verdict(self.store.get(self._key("verdict")))
        failure = posted_failure(self.store, self.world_size)
        if failure is not None:
            return self._decide(end="failed", failed=failure[0], message=failure[1])
        return None

    def give_up(self, seconds: float) -> dict[str, Any]:
        ranks = range(self.world_size)
        missing = [rank for rank in ranks if not self.store.check([self._key(f"arrived/{rank}")])]
        if not missing:  # the last rank came while we looked
            return self._decide(end="met")
        return self._decide(end="late", by=self.rank, seconds=seconds, missing=missing[:_NAMED], count=len(missing))

    def leave(self, verdict: dict[str, Any]) -> None:
        self.store.delete_key(self._key(f"arrived/{self.rank}"))
        left = self.store.add(self._key("left"), 1)
        if self.rank != 0:
            return
        # Were rank 0 to end now and the store with it, a rank that is still to read the verdict would find its
        # connection reset instead. Those that never came to a failed meeting are not waited for.
        awaited = self.world_size if verdict["end"] == "met" else self.store.add(self._key("count"), 0)
        if left < awaited:
            _poll(lambda: self._left() >= awaited, time.monotonic() + _LINGER, self.world_size)
        _unswept.append(self.number)
        if self._left() == self.world_size:
            # Each rank has left this meeting, hence all earlier ones: nobody reads their keys again.
            for number in _unswept:
                for name in ("count", "verdict", "left"):
                    self.store.delete_key(f"barrier/{number}/{name}")
            _unswept.clear()

    def _left(self) -> int:
        return int(self.store.add(self._key("left"), 0))

    def _decide(self, **verdict: Any) -> dict[str, Any]:
        """Pronounce a verdict, unless another rank was first, and return the one that holds."""
        return self._verdict(self.store.compare_set(self._key("verdict"), "", json.dumps(verdict)))

    @staticmethod
    def _verdict(written: bytes) -> dict[str, Any]:
        verdict: dict[str, Any] = json.loads(written)
        return verdict

    def _key(self, name: str) -> str:
        return f"barrier/{self.number}/{name}"


def _poll(look: Callable[[], Any], deadline: float, world_size: int) -> Any:
    """Call ``look`` until it returns something true or the deadline has passed; return what it returned last.

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
