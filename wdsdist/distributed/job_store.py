"""The key-value store in which the ranks of a job meet: the process group's, or the launcher's before there is a group.

torchrun's agent hosts a store for its ranks at ``MASTER_ADDR`` and ``MASTER_PORT``. Without an agent
(``TORCHELASTIC_USE_AGENT_STORE`` is not ``True``, for example under ``srun``), rank 0 hosts the store there, as it does
in ``init_process_group``, which then shares it.

After a rank dies, torchrun restarts all ranks and keeps the store with the notes of the dead processes. No variable of
the launcher names the attempt on all nodes alike. So each process has a random token, and each note its time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.identity import Identity, identity, process_group, process_start, run_id
from wdsdist.errors import DistributedError, DistributedTimeoutError, StateError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_launched: tuple[int, Store] | None = None
"""This process id, and its connection to the launcher's store. Rank 0 may host the store, so the connection is kept."""

_comparisons: Counter[str] = Counter()
"""Calls of `check_same` for each key in this process: the first is compared with the others' first, and so on."""

_jobs: weakref.WeakKeyDictionary[Any, Job] = weakref.WeakKeyDictionary()
"""The `Job` of each process group, by the group's store."""


@dataclass(slots=True)
class Job:
    """This process as one rank of a job, and the store that all ranks share."""

    store: Store
    rank: int
    world_size: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Identifies this process among all attempts of the job."""
    since: float = field(default_factory=process_start)
    """Earliest time at which this attempt can have begun, in seconds since 1970."""
    barriers: int = 0
    """Barriers that this process has reached."""

    def write(self, key: str, **values: Any) -> None:
        """Write a note for other ranks."""
        self.store.set(key, self._note(values))

    def write_first(self, key: str, **values: Any) -> dict[str, Any]:
        """Write a note unless the store has a current one under the key; return the note in the store."""
        stale = self.store.get(key).decode() if self.store.check([key]) else ""
        if stale and self.is_current(note := json.loads(stale)):
            return dict(note)
        return dict(json.loads(self.store.compare_set(key, stale, self._note(values))))

    def read(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """Return the notes under some keys, also notes of earlier attempts; an empty dict for a key without a note."""
        if keys and self.store.check(list(keys)):
            return [dict(json.loads(raw)) for raw in self.store.multi_get(list(keys))]
        return [dict(json.loads(self.store.get(key))) if self.store.check([key]) else {} for key in keys]

    def is_current(self, note: dict[str, Any]) -> bool:
        """Return whether a note was written in this attempt, by the clocks of the nodes."""
        return bool(note) and note["time"] >= self.since

    def _note(self, values: dict[str, Any]) -> str:
        return json.dumps({**values, "time": time.time()})


def current_job(seconds: float = 0.0) -> Job | None:
    """Return this process as a rank of its job; ``None`` for a single process.

    Without a process group, waits up to ``seconds`` for the launcher's store.

    Raises:
        DistributedTimeoutError: the launcher's store does not listen in time.
        DistributedError: the launcher names no store.
    """
    global _launched
    dist, this = process_group(), identity()
    if this.world_size == 1:
        return None
    if dist is not None:
        store: Any = dist.distributed_c10d._get_default_store()
    else:
        if _launched is None or _launched[0] != os.getpid():  # a forked process cannot use its parent's connection
            _launched = os.getpid(), _launcher_store(this, seconds)
        store = _launched[1]
    if store not in _jobs:
        _jobs[store] = Job(store if dist is None else dist.PrefixStore("wdsdist", store), this.rank, this.world_size)
    return _jobs[store]


def _launcher_store(this: Identity, seconds: float) -> Store:
    """Connect to the launcher's store, or host it in rank 0 if no agent does; return it under a prefix of this run."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise DistributedError(
            f"rank {this.rank} of {this.world_size} (from {this.source}) cannot meet the others: there is no process "
            f"group, and MASTER_ADDR ({host!r}) and MASTER_PORT ({port!r}) name no store. Call "
            f"torch.distributed.init_process_group first, or set both as torchrun does"
        )
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    hosts = this.rank == 0 and not has_agent
    deadline = time.monotonic() + seconds
    while not hosts:
        try:  # c10d would fill the log with stack traces while nothing listens
            socket.create_connection((host, int(port)), timeout=max(1.0, min(seconds, 30.0))).close()
            break
        except OSError as error:
            if time.monotonic() >= deadline:
                missing = "the launcher" if has_agent else f"rank 0 of {this.world_size}"
                raise DistributedTimeoutError(
                    f"{missing} did not come to the barrier: rank {this.rank} waited {seconds:g} s for the store at "
                    f"{host}:{port} ({error}). Look for an error or a stalled process there, or give the barrier a "
                    f"longer timeout"
                ) from error
            time.sleep(0.1)
    from torch._C import _distributed_c10d as dist  # the names of torch.distributed, for type checkers

    # multi_tenant lets init_process_group share the server in rank 0. wait_for_workers would wait for all ranks without
    # naming the missing ones.
    store = dist.TCPStore(
        host, int(port), None, hosts, timedelta(seconds=30), wait_for_workers=False, multi_tenant=hosts
    )
    store.set_timeout(timedelta(minutes=5))
    return dist.PrefixStore(f"wdsdist/{run_id(across_nodes=True)}", store)


def check_same(name: str, values: Mapping[str, Any], *, why: str, site: str = "") -> None:
    """Raise `StateError` if this rank has other values than the first rank to call this for ``name`` and ``site``.

    The n-th call of a rank is compared with the n-th call of others. No rank waits for another. Without a process group
    nothing is compared. The message lists the values that differ, and ends with the cause and the remedy, ``why``.

    >>> check_same("index.json of s3://bucket/train", {"sha256": "6f0c..."}, why="start again")
    """
    _comparisons[key := f"{name} {site}"] += 1
    if process_group() is None:
        return
    call = f"{key} {_comparisons[key]}".encode("utf-8", "surrogateescape")
    job = first = None
    with contextlib.suppress(RuntimeError):  # the store ended with its host: other calls report it
        job = current_job()
        first = job and job.write_first(f"same/{hashlib.sha256(call).hexdigest()[:32]}", rank=job.rank, values=values)
    if job and first and first["values"] != values:
        others = first["values"]
        differences = [
            f"{field} is {values.get(field)!r}, not {others.get(field)!r}"
            for field in {**others, **values}
            if values.get(field) != others.get(field)
        ]
        raise StateError(
            f"rank {job.rank} reads another {name} than rank {first['rank']} ({'; '.join(differences)}): {why}"
        )
