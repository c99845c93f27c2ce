"""A barrier on the store of the job: a long wait aborts no collective, and the missing ranks are named.

No collective is in flight, so neither NCCL's watchdog nor the process group's timeout sees the wait.

Rank 0 leads. It publishes its token, and each rank answers with a note: its own token, the leader's token, and the
number of the barrier. Rank 0 acknowledges each new token once, and writes the verdict when all ranks have arrived. The
verdict of a barrier is written once (``compare_set``), by rank 0 or by the first rank whose deadline passes, and every
rank obeys it: so a barrier ends alike on all ranks. The keys of an attempt that died stay in the store, so a rank
trusts a leader only if that leader has acknowledged the rank's own token.

A rank whose ``data_download`` failed posts its error in the store, so that ranks in `barrier` need not wait for the
deadline. The post counts until its rank calls `barrier` or ``data_download`` again: such a rank has handled the error.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

from wdsdist._util.validation import check_seconds
from wdsdist.distributed.identity import identity
from wdsdist.distributed.job_store import Job, current_job
from wdsdist.errors import DistributedError, DistributedTimeoutError, WdsdistError

_NAMED = 8
"""Most missing ranks that an error names, and most failures in the store; more are counted."""

_LINGER = 10.0
"""Seconds that rank 0 waits for the others to read the verdict: rank 0 often hosts the store, and may exit next."""

_POLLS_PER_SECOND = 10_000
"""Polls of the store by all ranks together: one server thread answers some 100,000 requests a second."""

_FAILED = "failed"
"""Key of the failures that ranks have posted, as a JSON object by rank."""

_posted: Job | None = None
"""The job in which this process has posted a failure."""

_UNREACHABLE = (RuntimeError, ValueError, OSError, ImportError, WdsdistError)
"""Errors of a store that cannot be reached: less important than the error that is being posted."""


def barrier(timeout: float = 1800.0) -> None:
    """Wait until every rank has reached the barrier, without a collective.

    The ranks meet in the store of ``torch.distributed``, whatever its backend. Before ``init_process_group`` they meet
    in the launcher's store: torchrun's, or the one that rank 0 hosts at ``MASTER_ADDR`` and ``MASTER_PORT``. A single
    process returns at once, without importing torch. Each process makes one call at a time.

    A barrier passes on all ranks or raises on all of them: if one rank gives up, ranks that come later to the same
    barrier raise at once, and every rank's next call is the next barrier. A call that fails because there is no store
    yet counts as no barrier.

    Args:
        timeout: longest wait in seconds, above 0; ``math.inf`` sets no deadline. The shortest of all ranks counts.

    Raises:
        ArgumentError: ``timeout`` is not a number above 0.
        DistributedTimeoutError: some ranks did not arrive in time; the message names them.
        DistributedError: ``data_download`` failed on another rank, whose number and error the message gives; or there
            is no store, or it is gone.

    Example:
        >>> barrier(timeout=60)
    """
    seconds = check_seconds("timeout", timeout)
    deadline = time.monotonic() + seconds
    try:
        job = current_job(seconds)
        if job is None:
            return
        _withdraw(job)
        job.barriers += 1
        verdict = (_Leader if job.rank == 0 else _Follower)(job, job.barriers, seconds).wait(deadline)
        job.leave()
    except (DistributedError, DistributedTimeoutError):
        raise
    except RuntimeError as error:  # torch.distributed.DistError is one
        raise DistributedError(
            f"rank {identity().rank} lost the store of the job at a barrier: its host, rank 0 unless the launcher "
            f"hosts it, has probably ended. Look for the first error there ({error})"
        ) from error
    if verdict["end"] == "failed":
        raise DistributedError(
            f"rank {verdict['rank']} failed and will not reach the barrier: {verdict['message']}\n"
            "Fix the error there and run again"
        )
    if verdict["end"] == "late":
        raise DistributedTimeoutError(_late_message(verdict, job))


@dataclass(slots=True)
class _Rank:
    """One rank in one barrier."""

    job: Job
    number: int
    seconds: float
    leader: str = ""
    """Token of rank 0, as far as this rank knows it."""

    def wait(self, deadline: float) -> dict[str, Any]:
        """Return the verdict of the barrier: ``met``, ``late`` or ``failed``.

        `Store.wait` in slices would do the same, but c10d logs two warnings for each slice, on every rank.
        """
        pause, longest = 0.001, max(0.1, self.job.world_size / _POLLS_PER_SECOND)
        while not (verdict := self.look() or self._shared_verdict()):
            left = deadline - time.monotonic()
            if left <= 0:
                verdict = self.settle(self.late())
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, longest)
        self.end(verdict)
        return verdict

    def look(self) -> dict[str, Any] | None:
        """Take part in the barrier; return its verdict once there is one."""
        raise NotImplementedError

    def is_led(self) -> bool:
        """Return whether the leader that this rank knows belongs to this attempt of the job."""
        raise NotImplementedError

    def end(self, verdict: dict[str, Any]) -> None:
        """Leave the barrier."""

    def settle(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """Write the verdict unless another rank was first; return the verdict that counts."""
        if not self.leader:
            return verdict
        raw = self.job.store.compare_set(self.verdict_key(self.number), "", json.dumps(verdict))
        # A leader of an earlier attempt may have left a verdict; one of this attempt acknowledges before it decides.
        return dict(json.loads(raw)) if self.is_led() else verdict

    def verdict_key(self, number: int) -> str:
        """Return the key of the verdict of a barrier under the current leader."""
        return f"verdict/{self.leader}/{number}"

    def late(self) -> dict[str, Any]:
        """Return the verdict that this rank writes after its deadline, and let ranks that come later know of it."""
        ranks = range(self.job.world_size)
        notes = self.job.read([f"rank/{rank}" for rank in ranks])
        missing = [rank for rank, note in zip(ranks, notes, strict=True) if not self._has_arrived(rank, note)]
        verdict = {
            "end": "late", "number": self.number, "by": self.job.rank, "seconds": self.seconds, "leader": self.leader,
            "missing": missing[:_NAMED], "count": len(missing),
        }  # fmt: skip
        self.job.write("late", **verdict)
        return verdict

    def _has_arrived(self, rank: int, note: dict[str, Any]) -> bool:
        is_known = bool(note) and (note["leader"] == self.leader) and (rank != 0 or self.job.is_current(note))
        return rank == self.job.rank or (is_known and note["number"] >= self.number and self.job.is_current(note))

    def _shared_verdict(self) -> dict[str, Any] | None:
        """Return the verdict after a posted failure, or after a rank gave up this barrier or a later one."""
        late, failed = self.job.read(["late", _FAILED])
        leader = self.leader if self.is_led() else None
        for rank, failure in sorted(failed.items()):
            if failure["leader"] == leader or self.job.is_current(failure):
                return self.settle({"end": "failed", "rank": int(rank), "message": failure["message"]})
        if late and late["number"] >= self.number and (late["leader"] == leader or self.job.is_current(late)):
            return self.settle(late)
        return None


@dataclass(slots=True)
class _Leader(_Rank):
    """Rank 0, which decides that all have arrived."""

    pending: set[int] = field(default_factory=set)
    """Ranks that have not arrived."""

    def __post_init__(self) -> None:
        self.leader = self.job.token
        self.pending = set(range(1, self.job.world_size))
        self.job.write("rank/0", leader=self.leader, number=self.number, token=self.job.token)

    def look(self) -> dict[str, Any] | None:
        verdict = self.job.read([self.verdict_key(self.number)])[0]
        if verdict:
            return verdict
        ranks = sorted(self.pending)
        for rank, note in zip(ranks, self.job.read([f"rank/{rank}" for rank in ranks]), strict=True):
            if note and note["leader"] == self.leader:
                if not note["known"]:
                    self.job.store.set(f"known/{rank}", f"{note['token']} {self.leader}")
                if note["number"] >= self.number:
                    self.pending.discard(rank)
        return None if self.pending else self.settle({"end": "met"})

    def is_led(self) -> bool:
        return True

    def end(self, verdict: dict[str, Any]) -> None:
        """Wait until the ranks that arrived have read the verdict, then delete the keys of earlier barriers."""
        left = f"left/{self.leader}/{self.number}"
        awaited = self.job.world_size - 1 - len(self.pending)
        until = time.monotonic() + _LINGER
        while self.job.store.add(left, 0) < awaited and time.monotonic() < until:
            time.sleep(0.001 * max(1, self.job.world_size // 100))
        self.job.unswept += [self.verdict_key(self.number), left]
        if not self.pending:  # all ranks have left the barriers before this one
            for key in self.job.unswept[:-2]:
                self.job.store.delete_key(key)
            del self.job.unswept[:-2]


@dataclass(slots=True)
class _Follower(_Rank):
    """Any other rank."""

    written: tuple[str, bool] | None = None
    """The leader in this rank's note, and whether the leader had acknowledged this process by then."""

    def __post_init__(self) -> None:
        self.is_led()

    def look(self) -> dict[str, Any] | None:
        return self.job.read([self.verdict_key(self.number)])[0] or None if self.is_led() else None

    def end(self, verdict: dict[str, Any]) -> None:
        if self.leader:
            self.job.store.add(f"left/{self.leader}/{self.number}", 1)

    def is_led(self) -> bool:
        """Answer the leader; return whether the leader has acknowledged this process."""
        store, key = self.job.store, f"known/{self.job.rank}"
        self.leader = self.job.read(["rank/0"])[0].get("token", "")
        known = store.get(key).decode() if store.check([key]) else ""
        is_known = bool(self.leader) and known == f"{self.job.token} {self.leader}"
        if (self.leader, is_known) != self.written:
            self.written = self.leader, is_known
            note = {"leader": self.leader, "number": self.number, "token": self.job.token, "known": is_known}
            self.job.write(f"rank/{self.job.rank}", **note)
        return is_known


def _late_message(verdict: dict[str, Any], job: Job) -> str:
    missing, count = verdict["missing"], verdict["count"]
    names = ", ".join(map(str, missing)) + (f" and {count - len(missing)} more" if count > len(missing) else "")
    ranks = f"rank{'s' if count > 1 else ''} {names} of {job.world_size}"
    waited = "without a limit" if math.isinf(verdict["seconds"]) else f"{verdict['seconds']:g} s"
    if job.rank in missing:
        return (
            f"rank {job.rank} came to the barrier after rank {verdict['by']} had given up, which waited {waited} for "
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
        job = current_job()
        if job is not None:
            leader = job.read(["rank/0"])[0].get("token", "")
            _update_failures(job, {"message": message[:4000], "leader": leader, "time": time.time()})
            _posted = job


def withdraw_failure() -> None:
    """Withdraw the failure that this process has posted, if any."""
    global _posted
    if _posted is not None:
        job, _posted = _posted, None
        with contextlib.suppress(*_UNREACHABLE):
            _withdraw(job)


def _withdraw(job: Job) -> None:
    """Withdraw the failure of a rank, also one that an earlier process of that rank has posted."""
    if str(job.rank) in job.read([_FAILED])[0]:
        _update_failures(job, None)


def _update_failures(job: Job, failure: dict[str, Any] | None) -> None:
    """Replace this rank's entry among the posted failures, while other ranks do the same."""
    while True:
        before = job.store.get(_FAILED).decode() if job.store.check([_FAILED]) else ""
        failures = {rank: note for rank, note in json.loads(before or "{}").items() if rank != str(job.rank)}
        if failure is not None and len(failures) < _NAMED:
            failures[str(job.rank)] = failure
        after = json.dumps(failures)
        if after == before or job.store.compare_set(_FAILED, before, after).decode() == after:
            return
