"""The key-value store in which the ranks of a job meet, and this process as a member of one attempt of the job.

The store is that of the process group or, before there is one, of the launcher. torchrun's agent hosts a store for its
ranks, at ``MASTER_ADDR`` and ``MASTER_PORT``. Where no agent does (``TORCHELASTIC_USE_AGENT_STORE`` is not ``True``, as
with these variables exported under ``srun``), rank 0 hosts one there, as it does in ``init_process_group``, which then
shares it.

torchrun restarts all ranks after one has died, and keeps the store with the keys of the dead processes. None of its
variables identifies the attempt on all nodes alike: it counts restarts by node, and not those that another node caused.
So each process signs in once, under a unique name, and the names of all ranks make the roster of an attempt. A process
that died before another one signed in cannot have seen a roster with that name.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.identity import Identity, identity, process_group
from wdsdist.distributed.launch import this_run
from wdsdist.errors import DistributedError, DistributedTimeoutError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PAUSE = 0.1
"""Seconds between attempts to reach a store that is not there yet."""

_launched: tuple[int, Store] | None = None
"""This process, and its connection to the launcher's store: in rank 0 it may be the store itself, so it is kept."""

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

    def first_note(self, key: str, holds: Callable[[dict[str, Any]], bool], **said: Any) -> dict[str, Any]:
        """Write a note under a key, unless there is one that ``holds``, and return the one in the store."""
        (stale,) = self.read([key])
        if stale and holds(json.loads(stale)):
            return dict(json.loads(stale))
        return dict(json.loads(self.store.compare_set(key, (stale or b"").decode(), stamped(self.store, **said))))

    def notes(self, keys: Sequence[str]) -> list[dict[str, Any] | None]:
        """Return the notes of this attempt under some keys, ``None`` where there is none."""
        found = [json.loads(written) if written else None for written in self.read(keys)]
        return [note if note and self.is_current(note) else None for note in found]

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of some keys, ``None`` for each that does not exist."""
        if self.store.check(list(keys)):
            return list(self.store.multi_get(list(keys)))
        return [self.store.get(key) if self.store.check([key]) else None for key in keys]


def shared_store(dist: Any) -> Store:
    """Return the store of the default process group of ``dist``, under a key prefix of our own."""
    store: Store = dist.PrefixStore("wdsdist", dist.distributed_c10d._get_default_store())
    return store


def member_of(dist: Any) -> Member:
    """Return this process as a `Member` of the default process group of ``dist``."""
    group_store = dist.distributed_c10d._get_default_store()
    return Member.of(group_store, shared_store(dist), dist.get_rank(), dist.get_world_size())


def launched_member(here: Identity, seconds: float) -> Member:
    """Return this process as a `Member` of the job that its launcher started, with no process group needed.

    Waits up to ``seconds`` for the launcher's store. Raises `DistributedTimeoutError` if that does not come in time,
    and `DistributedError` where the launcher names none.
    """
    store = _launcher_store(here, seconds)
    return Member.of(store, store, here.rank, here.world_size)


def store_at_hand() -> tuple[Store, int] | None:
    """Return the store of this job and this process's rank; ``None`` for a single process, or with no store as yet."""
    dist = process_group()
    if dist is not None:
        return shared_store(dist), dist.get_rank()
    here = identity()
    return None if here.world_size == 1 else (_launcher_store(here, 0), here.rank)


def is_hosted_by_rank_0() -> bool:
    """Return whether rank 0 hosts the launcher's store, and no agent of torchrun does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)


def _launcher_store(here: Identity, seconds: float) -> Store:
    """Return the launcher's store, under a key prefix of this run; connect to it, or host it, at the first call."""
    global _launched
    if _launched is None or _launched[0] != os.getpid():  # a forked process cannot use its parent's connection
        host, port = _address(here)
        hosts = here.rank == 0 and is_hosted_by_rank_0()
        if not hosts:
            _await(here, host, port, seconds)
        _launched = os.getpid(), _connect(here, host, port, hosts=hosts)
    return _launched[1]


def _address(here: Identity) -> tuple[str, int]:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise DistributedError(
            f"rank {here.rank} of {here.world_size} (from {here.source}) cannot meet the others, there is no process "
            f"group, and MASTER_ADDR ({host!r}) and MASTER_PORT ({port!r}) name no store: call "
            f"torch.distributed.init_process_group first, or set both as torchrun does"
        )
    return host, int(port)


def _await(here: Identity, host: str, port: int, seconds: float) -> None:
    """Wait until something listens at the store's address: c10d fills the log with stack traces where nothing does."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=max(1.0, min(seconds, 30.0))).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                missing = f"rank 0 of {here.world_size}" if is_hosted_by_rank_0() else "the launcher"
                raise DistributedTimeoutError(
                    f"{missing} did not come to the barrier: rank {here.rank} waited {seconds:g} s for its store at "
                    f"{host}:{port} ({error}). Look for an error or a stalled process there, or give the barrier a "
                    f"longer timeout"
                ) from error
            time.sleep(_PAUSE)


def _connect(here: Identity, host: str, port: int, *, hosts: bool) -> Store:
    from torch._C import _distributed_c10d as dist  # the names of torch.distributed, where type checkers see them

    try:
        # multi_tenant lets init_process_group share the server in rank 0. Waiting for workers would wait for all ranks
        # without a word about who is missing.
        store = dist.TCPStore(
            host, port, None, hosts, timedelta(seconds=30), wait_for_workers=False, multi_tenant=hosts
        )
    except RuntimeError as error:
        raise DistributedError(
            f"rank {here.rank} of {here.world_size} cannot open the store at {host}:{port} "
            f"({str(error).splitlines()[0]}): see what else uses the port, or set another MASTER_PORT on all ranks"
        ) from error
    store.set_timeout(timedelta(minutes=5))
    return dist.PrefixStore(f"wdsdist/{this_run(across_nodes=True).id}", store)
