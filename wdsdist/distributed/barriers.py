"""A barrier on the store of the job: a long wait aborts no collective, and the missing ranks are named.

No collective is in flight, so neither NCCL's watchdog nor the process group's timeout sees the wait.

Rank 0 leads. For each barrier it publishes a random word. Each rank writes a note that repeats the word, so rank 0
counts only processes that live now: the notes of an attempt that died stay in the store. Rank 0 alone decides, at the
earliest deadline of all ranks, and writes the outcome under the token of each process that arrived. So no outcome of
another attempt is taken for this one, and all ranks have the same outcome.

A rank whose ``data_download`` failed posts its error in its note. The error counts until this rank calls `barrier` or
``data_download`` again: such a rank has handled it.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from typing import Any

from wdsdist._util.validation import check_seconds
from wdsdist.distributed.identity import identity
from wdsdist.distributed.job_store import Job, current_job
from wdsdist.errors import DistributedError, DistributedTimeoutError

_NAMED = 8
"""Most missing ranks that an error names; it counts the others."""

_LINGER = 10.0
"""Seconds that rank 0 waits for the others to read the outcome (it often hosts the store, and may exit next), and that
they wait for it beyond their deadline."""

_POLLS_PER_SECOND = 10_000
"""Polls of the store by all ranks together: one server thread answers some 100,000 requests a second."""

_posted: Job | None = None
"""The job in which this process has posted a failure."""


def barrier(timeout: float = 1800.0) -> None:
    """Wait until every rank has reached the barrier, without a collective.

    The ranks meet in the store of ``torch.distributed``, whatever its backend. Before ``init_process_group`` they meet
    in the launcher's store: torchrun's, or the one that rank 0 hosts at ``MASTER_ADDR`` and ``MASTER_PORT``. A single
    process returns at once, without importing torch. Each process makes one call at a time.

    A barrier passes on all ranks or raises on all of them, and every rank's next call is the next barrier. A call that
    fails because there is no store yet counts as no barrier.

    Args:
        timeout: longest wait in seconds, above 0; ``math.inf`` sets no deadline. The shortest of all ranks counts.

    Raises:
        ArgumentError: ``timeout`` is not a number above 0.
        DistributedTimeoutError: some ranks did not arrive in time; the message names them.
        DistributedError: ``data_download`` failed on another rank, whose number and error the message gives; or there
            is not a store, or it is gone.

    Example:
        >>> barrier(timeout=60)
    """
    seconds = check_seconds("timeout", timeout)
    deadline = time.monotonic() + seconds
    try:
        job = current_job(seconds)
        if job is None:
            return
        job.barriers += 1
        outcome = _lead(job, seconds, deadline) if job.rank == 0 else _follow(job, seconds, deadline)
    except (DistributedError, DistributedTimeoutError):
        raise
    except RuntimeError as error:  # torch.distributed.DistError is one
        raise DistributedError(
            f"rank {identity().rank} cannot reach the store of the job, or lost it: its host, rank 0 unless the "
            f"launcher hosts it, has probably ended. Look for the first error there ({error})"
        ) from error
    if "failed" in outcome:
        raise DistributedError(f"{outcome['failed']}\nFix the error there and run again")
    if "late" in outcome:
        raise DistributedTimeoutError(outcome["late"])


def _lead(job: Job, seconds: float, deadline: float) -> dict[str, str]:
    """Wait as rank 0 until all ranks have arrived, one has failed, or the time is over; return the outcome for all."""
    number, word = job.barriers, uuid.uuid4().hex
    job.write("rank/0", number=number, word=word)
    outcome: dict[str, str] | None = None
    limit, impatient, patience = deadline, 0, seconds
    pending, arrived = set(range(1, job.world_size)), list[str]()
    pause = 0.001
    while outcome is None:
        ranks = sorted(pending)
        for rank, note in zip(ranks, job.read([f"rank/{rank}" for rank in ranks]), strict=True):
            is_alive = note.get("word") == word
            if note.get("failure") and job.is_current(note):
                outcome = _failed(rank, note)
            elif is_alive and note["number"] == number:
                pending.discard(rank)
                arrived.append(note["token"])
                if (end := time.monotonic() + note["left"]) < limit:
                    limit, impatient, patience = end, rank, note["seconds"]
            elif is_alive and note["number"] > number:
                outcome = {"late": f"rank {rank} gave up this barrier before rank 0 came: give it a longer timeout"}
        if not pending:
            outcome = {}
        elif outcome is None and time.monotonic() >= limit:
            outcome = _late(sorted(pending), job, impatient, patience)
        if outcome is None:
            pause = _sleep(pause, limit, job)
    keys = [f"outcome/{token}" for token in arrived]
    for key in keys:
        job.write(key, number=number, outcome=outcome)
    if outcome:  # for ranks that come later to this barrier; a rank that has arrived reads its own outcome
        job.write("rank/0", number=number, word=word, outcome=outcome)
    until = time.monotonic() + _LINGER
    for key in keys:
        while job.store.check([key]) and time.monotonic() < until:
            time.sleep(0.001)
    return outcome


def _follow(job: Job, seconds: float, deadline: float) -> dict[str, str]:
    """Wait as any other rank for the outcome that rank 0 writes; return it.

    `Store.wait` in slices would do the same, but c10d logs two warnings for each slice, on every rank.
    """
    number, own = job.barriers, f"outcome/{job.token}"
    limit, word, pause = deadline, None, 0.001
    while True:
        leader, answer = job.read(["rank/0", own])
        if answer:
            job.store.delete_key(own)
            if answer["number"] == number:
                return dict(answer["outcome"])
        if job.is_current(leader):
            if leader.get("failure"):
                return _failed(0, leader)
            if leader["number"] > number or (leader["number"] == number and "outcome" in leader):
                outcome = leader.get("outcome", {})
                reason = outcome.get("late", "rank 0 waits at a later barrier")
                late = f"rank {job.rank} came to the barrier after the others had given up: {reason}"
                return outcome if "failed" in outcome else {"late": late}
            limit = deadline + _LINGER * (leader["number"] == number)
        if leader.get("word", "") != word:
            word = leader.get("word", "")
            left = max(0.0, deadline - time.monotonic())
            job.write(f"rank/{job.rank}", number=number, word=word, token=job.token, left=left, seconds=seconds)
        if time.monotonic() >= limit:
            job.write(f"rank/{job.rank}", number=number)
            missing = [0]
            notes = job.read([f"rank/{rank}" for rank in range(1, job.world_size)])
            for rank, note in enumerate(notes, 1):
                if job.is_current(note) and note.get("failure"):
                    return _failed(rank, note)
                if not job.is_current(note) or note["number"] < number:
                    missing.append(rank)
            return _late(missing, job, job.rank, seconds)
        pause = _sleep(pause, limit, job)


def _sleep(pause: float, limit: float, job: Job) -> float:
    """Sleep between two polls of the store; return the seconds of the next pause."""
    time.sleep(max(0.0, min(pause, limit - time.monotonic())))
    return min(2 * pause, max(0.1, job.world_size / _POLLS_PER_SECOND))


def _failed(rank: int, note: dict[str, Any]) -> dict[str, str]:
    return {"failed": f"rank {rank} failed and will not reach the barrier: {note['failure']}"}


def _late(missing: list[int], job: Job, waiter: int, seconds: float) -> dict[str, str]:
    names = ", ".join(map(str, missing[:_NAMED]))
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    waited = "without a limit" if math.isinf(seconds) else f"{seconds:g} s"
    return {
        "late": f"rank{'s' if len(missing) > 1 else ''} {names}{more} of {job.world_size} did not come to the "
        f"barrier: rank {waiter} waited {waited}. Look for an error or a stalled process there, or give the barrier "
        f"a longer timeout"
    }


def post_failure(message: str) -> None:
    """Post the failure of this rank in the job store, if any, so that barriers raise it everywhere; "" withdraws it."""
    global _posted
    job, _posted = _posted, None
    with contextlib.suppress(Exception):  # what the store raises matters less than the failure
        if message:
            job = _posted = current_job()
        if job is not None:
            job.write(f"rank/{job.rank}", number=job.barriers, failure=message[:4000])
