"""Failures that ranks post in the key-value store of their job.

A rank whose ``data_download`` failed posts its error, so that ranks in ``barrier()`` need not wait for the deadline. A
posted failure counts until its rank calls ``data_download`` or ``barrier`` again: such a rank has handled the error.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.job_store import Member, stamped, store_at_hand
from wdsdist.errors import WdsdistError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_COUNT = "failed"
"""Key of the number of ranks with a posted failure: one key to read, however many ranks there are."""

_LATEST = "failed/latest"
"""Key of the rank that posted last."""

_posted: tuple[Store, int] | None = None
"""The store and rank of this process's posted failure; saves a round trip to the store in every call without one."""

_UNREACHABLE = (RuntimeError, ValueError, OSError, ImportError, WdsdistError)
"""What a store that cannot be reached raises: less important than the error that is being posted."""


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
            withdraw(*found)


def withdraw(store: Store, rank: int) -> None:
    """Withdraw the failure of a rank, also one that an earlier process of that rank has posted."""
    if store.add(_COUNT, 0) > 0 and _failure(store, rank) is not None:
        # Emptied, not deleted: a rank that has just checked for the key would block in its read.
        store.set(_key(rank), "")
        store.add(_COUNT, -1)


def posted_failure(store: Store, member: Member) -> tuple[int, str] | None:
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
