"""Eviction priorities: each reading process publishes the copies that it needs, and eviction respects all lists.

A process has two files in ``readers``: one that it keeps locked, so that others can tell whether it is alive, and its
list beside it, replaced atomically.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from wdsdist._util.ownership import read_own
from wdsdist.cache import folders
from wdsdist.cache.locks import LockableFile, is_free

Rank = tuple[int | str, ...]
"""Eviction priority; the lower, the sooner a copy is needed. First the copies that blocked batches wait for, in the
order in which these batches were started: so the oldest batch gets all of its shards, then the next, and no process
starves. Then copies by the number of batches until their use."""

NEVER: Rank = (2,)

_NAME = re.compile("[0-9a-f]{16}")
_LIST = ".json"
_NEW = ".new"


@dataclass(frozen=True, slots=True)
class Need:
    """A copy that a process will read."""

    key: str
    """Key of the copy, from `copy_key`."""
    batch: int
    """The first batch that needs it."""


class Reader:
    """This process as a reader of the cache: its lock file and its published list."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: LockableFile | None = None
        self._name = ""
        # Reentrant: garbage collection may end the iteration of another epoch, and so change the list, at any line.
        self._changing = threading.RLock()
        self._job = ""
        self._upcoming: list[tuple[str, int]] = []
        self._claims: dict[int, tuple[int, list[str]]] = {}  # by thread

    @property
    def has_joined(self) -> bool:
        """Whether this process is registered; a fork of a registered process has to join anew."""
        return self._file is not None and self._file.is_open

    def join(self) -> None:
        """Register this process, and remove the files of dead ones.

        Needs the lock of the folder, because other processes delete reader files that are not locked.
        """
        folders.make_folder(self._folder)
        _living(self._folder)
        self._changing = threading.RLock()  # a thread of the parent may have held it when this process was forked
        self._upcoming, self._claims = [], {}
        self._name = secrets.token_hex(8)
        self._file = LockableFile(self._folder / self._name, writable=True, create=True)
        self._file.lock(alone=True)
        Finalize(self, _leave, (self._folder / self._name,), exitpriority=0)  # also where workers end, unlike atexit

    def expect(self, needs: Iterable[Need], job: str = "") -> None:
        """Publish the copies that this process will read, nearest first, in an epoch of a job.

        An empty list withdraws the list of that job; a list that was published since for another job stays.
        """
        upcoming = [(need.key, need.batch) for need in needs]
        with self._changing:
            if (job, upcoming) != (self._job, self._upcoming) and (upcoming or job == self._job):
                self._job, self._upcoming = job, upcoming
                self._publish()

    def expects(self, key: str) -> bool:
        """Return whether this process has published that it will read a copy, so that all of it is being fetched."""
        with self._changing:
            return any(key == upcoming for upcoming, _ in self._upcoming)

    def claim(self, keys: Collection[str], latest: int) -> None:
        """Publish that a batch of this thread waits for these copies.

        ``latest`` is the number of the latest claim of any process. A new claim gets the next number, so this needs the
        lock of the folder.
        """
        thread = threading.get_ident()
        with self._changing:
            if self._claims.get(thread, (0, []))[1] != sorted(keys):
                self._claims[thread] = latest + 1, sorted(keys)
                self._publish()

    def claimed(self, key: str) -> Rank:
        """Return the priority of a copy by the claims of this process, also where they could not be published."""
        with self._changing:
            ranks = [(0, number, self._name) for number, keys in self._claims.values() if key in keys]
        return min(ranks, default=NEVER)

    def batches_with(self, key: str) -> list[list[str]]:
        """Return all copies of each batch of this process that waits for a copy."""
        with self._changing:
            return [keys for _, keys in self._claims.values() if key in keys]

    def rest(self) -> None:
        """Withdraw this thread's claim, once its batch has all its copies."""
        if self.has_joined:  # else its lock may be one that a thread of the parent held at the fork
            with self._changing:
                if threading.get_ident() in self._claims:
                    del self._claims[threading.get_ident()]
                    self._publish()

    def _publish(self) -> None:
        content = json.dumps({"job": self._job, "upcoming": self._upcoming, "claims": list(self._claims.values())})
        new, known = (self._folder / f"{self._name}{suffix}" for suffix in (_NEW, _LIST))
        try:
            folders.write(new, content.encode())
            with contextlib.suppress(FileNotFoundError):  # garbage collection has published a newer list
                new.replace(known)
        except OSError:
            # An outdated list must not stay. The list is only a hint: a full disk, or another fault of it, shows as an
            # error where a shard cannot be fetched, and cached shards can still be read.
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
                known.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Needs:
    """The priorities of copies, from the lists of all live processes."""

    ranks: dict[str, Rank]
    latest: int
    """The number of the latest claim."""

    def rank(self, key: str) -> Rank:
        return self.ranks.get(key, NEVER)


def all_needs(folder: Path) -> Needs:
    """Return the priorities from the lists of all live processes, and remove dead ones; needs the folder's lock."""
    ranks: dict[str, Rank] = {}
    latest = 0
    jobs: dict[str, list[tuple[str, int]]] = {}
    for name in _living(folder):
        listed = _listed(folder / f"{name}{_LIST}")
        for number, keys in listed.get("claims", ()):
            latest = max(latest, number)
            for key in keys:
                ranks[key] = min(ranks.get(key, NEVER), (0, number, name))
        jobs.setdefault(listed.get("job", ""), []).extend(listed.get("upcoming", ()))
    for upcoming in jobs.values():
        # Counted from the batch of the process that is furthest behind: its copies must not be evicted for others'.
        first = min((batch for _, batch in upcoming), default=0)
        for key, batch in upcoming:
            ranks[key] = min(ranks.get(key, NEVER), (1, batch - first))
    return Needs(ranks, latest)


def _living(folder: Path) -> list[str]:
    """Return the names of all live processes, and remove the files of dead ones; needs the lock of the folder."""
    living = []
    for name in sorted({path.name.partition(".")[0] for path in folder.iterdir()}):
        if _NAME.fullmatch(name) is None:
            continue
        if is_free(folder / name):
            _leave(folder / name)
        else:
            living.append(name)
    return living


def _leave(path: Path) -> None:
    for suffix in (_NEW, _LIST, ""):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def _listed(path: Path) -> dict[str, Any]:
    """Return the published list of a process; empty where there is none, or it is not this user's."""
    content: dict[str, Any] = json.loads(read_own(path) or b"{}")
    return content
