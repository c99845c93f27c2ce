"""Tell what this attempt at a job wrote into the store from what an earlier one left there.

torchrun starts all ranks anew after one has died, and keeps the store, with the words of the dead in it. Nothing that
it tells the ranks sets the attempts apart on all nodes alike: it counts restarts by node, and not those that another
node caused. So each process signs in once, under a name that nobody had before it, and the names of all ranks make
the roster of an attempt. Whoever died before a process came cannot have seen a roster with its name.
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
"""How many processes have signed in so far, those of all attempts: a clock that only those who sign in advance."""

_members: weakref.WeakKeyDictionary[Any, Member] = weakref.WeakKeyDictionary()
"""By the store of a process group: what this process is in it."""

_last_met = 0.0
"""When this process last left a barrier, in seconds since 1970: a group that is made after it is another attempt."""


def stamped(store: Store, **said: Any) -> str:
    """Write something down for others, with the time by both clocks."""
    return json.dumps({**said, "clock": store.add(_SIGNED, 0), "time": time.time()})


@dataclass(slots=True)
class Member:
    """This process among the ranks of its process group."""

    store: Store
    rank: int
    world_size: int
    meetings: int = 0
    """How many barriers it has come to."""
    roster: str | None = None
    """A digest of the names of all ranks, as far as is known; None as long as some have not signed in."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: float = field(default_factory=lambda: max(this_run().began, _last_met))
    """When the attempt began at the earliest, in seconds since 1970."""
    _signed: int = 0
    """What the clock said when this process had signed in."""
    _known: int = 0
    """What the clock said when the roster was read."""

    @staticmethod
    def of(key: object, store: Store, rank: int, world_size: int) -> Member:
        """Return what this process is in the group whose own store is ``key``; at first, sign in."""
        member = _members.get(key)
        if member is None:
            member = Member(store, rank, world_size)
            store.set(f"name/{rank}", member.name)
            # After the name: whoever sees the clock advance must find it.
            member._signed = store.add(_SIGNED, 1)
            _members[key] = member
        return member

    def leave(self) -> None:
        """Note that this process leaves a barrier."""
        global _last_met
        _last_met = time.time()

    def has_full_roster(self) -> bool:
        """Bring the roster up to date; false while a rank has not signed in, neither now nor in an earlier attempt."""
        now = self.store.add(_SIGNED, 0)
        if now != self._known and now >= self.world_size:
            names = self.read([f"name/{rank}" for rank in range(self.world_size)])
            if all(names):
                self.roster = hashlib.sha256(b"".join(name or b"" for name in names)).hexdigest()[:32]
                self._known = now
        return self.roster is not None

    def is_certain(self, note: dict[str, Any]) -> bool:
        """Whether it was written after this process had signed in, and hence in this attempt."""
        return bool(note["clock"] >= self._signed)

    def is_current(self, note: dict[str, Any]) -> bool:
        """Whether it was written in this attempt.

        Of what is older than this process's name, only the clocks of the nodes tell whether it is older than the
        attempt too. They need not agree by the millisecond: to start a job anew takes longer.
        """
        return self.is_certain(note) or note["time"] >= self.since

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return what is at each of some keys, which need not be there."""
        if self.store.check(list(keys)):
            return list(self.store.multi_get(list(keys)))
        return [self.store.get(key) if self.store.check([key]) else None for key in keys]
