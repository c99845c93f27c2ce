"""Failures that ranks post in the key-value store of the process group.

A rank whose ``data_download`` failed posts its error, so that ranks in ``barrier()`` need not wait for the deadline. A
posted failure counts until its rank calls ``data_download`` or ``barrier`` again: such a rank has handled the error.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.membership import Member, stamped

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_COUNT = "failed"
"""Key of the number of ranks with a posted failure: one key to read, however many ranks there are."""

_LATEST = "failed/latest"
"""Key of the rank that posted last."""

_posted = False
"""Whether this process has posted a failure; saves a round trip to the store in every call without one."""


def process_group() -> Any | None:
    """Return the module ``torch.distributed`` where its default process group exists, without importing it.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict("sys.modules", {"torch.distributed": None}):  # as where nobody has imported it
        ...     process_group() is None
        True
    """
    dist = sys.modules.get("torch.distributed")
    # A torch built without distributed, or one that is being imported just now, lacks some of these names.
    available = getattr(dist, "is_available", None)
    if dist is None or available is None or not available() or not dist.is_initialized():
        return None
    return dist


def shared_store(dist: Any) -> Store:
    """Return the store of the default process group of ``dist``, under a key prefix of our own."""
    store: Store = dist.PrefixStore("wdsdist", dist.distributed_c10d._get_default_store())
    return store


def member_of(dist: Any) -> Member:
    """Return this process as a `Member` of the default process group of ``dist``."""
    group_store = dist.distributed_c10d._get_default_store()
    return Member.of(group_store, shared_store(dist), dist.get_rank(), dist.get_world_size())


def post_failure(message: str) -> None:
    """Post that this rank has failed, for every rank in a barrier, now or later; without a group, do nothing."""
    global _posted
    dist = process_group()
    if dist is None:
        return
    # The error that is being posted matters more than a store that has ended with its host.
    with contextlib.suppress(RuntimeError, ValueError):
        store, rank = shared_store(dist), dist.get_rank()
        standing = _failure(store, rank)
        store.set(_key(rank), stamped(store, message=message[:4000]))
        store.set(_LATEST, str(rank))
        if standing is None:
            store.add(_COUNT, 1)
        _posted = True


def withdraw_failure() -> None:
    """Withdraw the failure that this process has posted, if any."""
    global _posted
    dist = process_group()
    if not _posted or dist is None:
        return
    _posted = False
    with contextlib.suppress(RuntimeError, ValueError):
        withdraw(shared_store(dist), dist.get_rank())


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
