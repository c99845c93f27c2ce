"""Membership in one attempt of a job: tell its keys in the store from those of an earlier attempt.

torchrun restarts all ranks after one has died, and keeps the store with the keys of the dead processes. None of its
variables identifies the attempt on all nodes alike: it counts restarts by node, and not those that another node caused.
So each process signs in once, under a unique name, and the names of all ranks make the roster of an attempt. A process
that died before another one signed in cannot have seen a roster with that name.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.launch import this_run

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_SIGNED = "signed"
"""Key of the number of processes that have signed in, in all attempts: a logical clock that sign-ins advance."""

_members: weakref.WeakKeyDictionary[Any, Member] = weakref.WeakKeyDictionary()
"""This process's `Member` of each process group, by the group's store."""

_last_met = 0.0
"""When this process last left a barrier, in seconds since 1970: a group made after it is another attempt."""


def stamped(store: Store, **said: Any) -> str:
    """Return a note for other ranks as JSON, with the time by the logical and by the wall clock."""
    return json.dumps({**said, "clock": store.add(_SIGNED, 0), "time": time.time()})


@dataclass(slots=True)
class Member:
    """This process as one of the ranks of its process group, in one attempt of a job."""

    store: Store
    rank: int
    world_size: int
    meetings: int = 0
    """Number of barriers that it has reached."""
    roster: str | None = None
    """Digest of the names of all ranks as last read; ``None`` until all have signed in."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: float = field(default_factory=lambda: max(this_run().began, _last_met))
    """Earliest time at which the attempt can have begun, in seconds since 1970."""
    _signed: int = 0
    """The logical clock after this process had signed in."""
    _known: int = 0
    """The logical clock when the roster was read."""

    @staticmethod
    def of(key: object, store: Store, rank: int, world_size: int) -> Member:
        """Return this process's membership in the group whose own store is ``key``; the first call signs in."""
        member = _members.get(key)
        if member is None:
            member = Member(store, rank, world_size)
            store.set(f"name/{rank}", member.name)
            # After the name: whoever sees the clock advance must find it.
            member._signed = store.add(_SIGNED, 1)
            _members[key] = member
        return member

    def leave(self) -> None:
        """Record the time at which this process leaves a barrier."""
        global _last_met
        _last_met = time.time()

    def has_full_roster(self) -> bool:
        """Update the roster; return false while some rank has signed in neither in this nor in an earlier attempt."""
        now = self.store.add(_SIGNED, 0)
        if now != self._known and now >= self.world_size:
            names = self.read([f"name/{rank}" for rank in range(self.world_size)])
            if all(names):
                self.roster = hashlib.sha256(b"".join(name or b"" for name in names)).hexdigest()[:32]
                self._known = now
        return self.roster is not None

    def is_certain(self, note: dict[str, Any]) -> bool:
        """Return whether a note was written after this process had signed in, and hence in this attempt."""
        return bool(note["clock"] >= self._signed)

    def is_current(self, note: dict[str, Any]) -> bool:
        """Return whether a note was written in this attempt.

        For notes older than this process's sign-in, only the wall clocks of the nodes can tell whether they are older
        than the attempt too. Those need not agree by the millisecond: a restart of the job takes longer.
        """
        return self.is_certain(note) or note["time"] >= self.since

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of some keys, ``None`` for each that does not exist."""
        if self.store.check(list(keys)):
            return list(self.store.multi_get(list(keys)))
        return [self.store.get(key) if self.store.check([key]) else None for key in keys]
