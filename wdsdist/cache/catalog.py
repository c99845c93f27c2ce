"""`Catalog`: the copies of a cache in an SQLite database: their bytes, their last use, and their next use.

Room is reserved for a copy before anything is written to it, so the limit is never passed. A reservation belongs to the
copy, which may be evicted once no living process holds it: a process that was killed leaves nothing behind.

A step is one short transaction; to make room, files are evicted between transactions. A reader is a process that has
published the copies that it needs. It locks the byte of its number in a file while it lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wdsdist.cache.chunk_file import header_of, room_of
from wdsdist.cache.folder import CATALOG, LOCKS, clear_errors, make_root
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import CacheError
from wdsdist.storage.waiting import pauses

if TYPE_CHECKING:
    import sqlite3

_PATIENCE = 60.0
"""Seconds to wait for the transactions of other processes."""
_LEAST_DISK = 1 << 20
"""Bytes of disk that the catalog needs at most."""
_SLACK = 16
"""Part of the limit up to which an eviction frees more than is missing: to choose from 2,000 takes up to 4 ms."""
_VERSION = 1
_TABLES = """
CREATE TABLE copies (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, source TEXT, bytes INTEGER, used REAL);
CREATE INDEX copies_by_use ON copies (used);
CREATE TABLE readers (id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, batch INTEGER);
CREATE TABLE needs (reader INTEGER, key TEXT, batch INTEGER, PRIMARY KEY (reader, key)) WITHOUT ROWID;
CREATE INDEX needs_by_key ON needs (key);
"""
_NEW = "INSERT OR REPLACE INTO copies (key, source, bytes, used) VALUES (?, ?, ?, ?)"
_NEXT_USE = """
SELECT key, MIN(MAX(0, batch - first)) AS batches FROM needs
JOIN (SELECT id, MIN(batch) OVER (PARTITION BY job) AS first FROM readers) ON id = reader GROUP BY key
"""
"""The batches until each copy is needed, counted from the process of a job that is furthest behind."""
_UNNEEDED = "SELECT *, NULL FROM copies WHERE key NOT IN (SELECT key FROM needs) ORDER BY used"
_NEEDED = f"SELECT copies.*, batches FROM copies JOIN ({_NEXT_USE}) USING (key) ORDER BY batches DESC, used"


# Held in a transaction, and across a fork: a child cannot use SQLite if it inherits it in the middle of one.
_using = threading.RLock()
os.register_at_fork(before=_using.acquire, after_in_parent=_using.release, after_in_child=_using.release)


class _FullError(OSError):
    """The disk is full. For a hint that later evictions follow it is ignored: cached copies stay readable."""


class Copy(NamedTuple):
    """One copy in the catalog."""

    id: int
    key: str
    """The path of its file in the cache folder."""
    source: str
    """The folder or URL of the shard, without credentials."""
    bytes: int
    """Reserved for it, with its index and map."""
    used: float
    """Seconds since 1970."""
    next_use: int | None
    """Batches until a living process needs it; ``None`` if none does."""


class Catalog:
    """The catalog of a cache folder, for any number of threads; each process makes its own object.

    Args:
        root: the folder.
        limit: bytes that its copies may take; ``None`` for no limit.
        evict: deletes a copy by its key, unless a process holds it; returns whether it is gone.
    """

    def __init__(self, root: Path, limit: int | None, evict: Callable[[str], bool]) -> None:
        self._root = root
        self._path = root / CATALOG
        self._limit = limit
        self._evict = evict
        self._database: sqlite3.Connection | None = None
        self._inode = 0
        self._locks: LockableFile | None = None
        self._reader = 0
        """The number of this process among the readers; 0 if it has published nothing."""
        self._job = ""

    def reserve(self, key: str, more: int, *, most: int = 1 << 62, source: str | None = None) -> bool:
        """Reserve bytes for a copy, but no more than ``most`` in all; evict others for them.

        ``source`` begins a new copy, for which nothing is reserved yet. Returns false if there is no room.
        """
        tried = {key}
        while True:
            with self._transaction() as database:
                reserved, total = database.execute(
                    "SELECT TOTAL(CASE key WHEN ? THEN bytes END), TOTAL(bytes) FROM copies", (key,)
                ).fetchone()
                size = min(most, more + (int(reserved) if source is None else 0))
                missing = 0 if self._limit is None else int(total - reserved) + size - self._limit
                if missing <= 0 or (source is None and size <= reserved):
                    if source is None:
                        database.execute("UPDATE copies SET bytes = ? WHERE key = ?", (size, key))
                    else:
                        database.execute(_NEW, (key, source, size, time.time()))
                    return True
                slack = missing + (self._limit or 0) // _SLACK
                victims = [] if size > (self._limit or 0) else self._victims(database, key, tried, slack)
            if sum(copy.bytes for copy in victims) < missing:
                return False
            freed, gone = 0, []
            for copy in victims:
                tried.add(copy.key)
                if (freed < missing or freed + copy.bytes <= slack) and self._evict(copy.key):
                    freed += copy.bytes
                    gone.append((copy.id,))
            with self._transaction() as database:  # by their ids: new copies may have the keys already
                database.executemany("DELETE FROM copies WHERE id = ?", gone)

    def remove(self, key: str) -> bool:
        """Evict the cached copy of a shard, unless a process holds it; return whether it is gone."""
        with self._transaction() as database:  # so that its maker cannot add it again in between
            if is_gone := self._evict(key):
                database.execute("DELETE FROM copies WHERE key = ?", (key,))
            return is_gone

    def use(self, keys: Iterable[str]) -> None:
        """Record that copies are used now."""
        with contextlib.suppress(_FullError), self._transaction() as database:
            now = time.time()
            database.executemany("UPDATE copies SET used = ? WHERE key = ?", [(now, key) for key in keys])

    def expect(self, job: str, batch: int, needs: Mapping[str, int]) -> None:
        """Publish that this process is at a batch, and which copies it needs from which batches on.

        ``job`` is the same for all processes that read the same batches. No needs withdraw the list of that job.
        """
        full = contextlib.suppress(_FullError)
        with clear_errors(self._root, "the list of needed copies"), full, self._transaction() as database:
            if not needs and job != self._job:  # a list was published since for another job
                return
            if not self._reader:
                self._reader = database.execute("INSERT INTO readers (job) VALUES ('')").lastrowid or 0
                assert self._locks is not None
                self._locks.claim(self._reader, self._reader + 1)
            self._job = job
            at = (job, batch if needs else None, self._reader)
            database.execute("UPDATE readers SET job = ?, batch = ? WHERE id = ?", at)
            database.execute("DELETE FROM needs WHERE reader = ?", (self._reader,))
            rows = [(self._reader, key, first) for key, first in needs.items()]
            database.executemany("INSERT INTO needs VALUES (?, ?, ?)", rows)

    def copies(self) -> list[Copy]:
        """Return all copies, the last used first."""
        with self._transaction() as database:
            self._forget_dead(database)
            return sorted(_copies(database), key=lambda copy: copy.used, reverse=True)

    def _victims(self, database: sqlite3.Connection, key: str, tried: set[str], enough: int) -> list[Copy]:
        """Return copies of ``enough`` bytes that may be evicted for another one, in the order of eviction."""
        self._forget_dead(database)
        row = database.execute(f"SELECT batches FROM ({_NEXT_USE}) WHERE key = ?", (key,)).fetchone()
        rank, victims = row[0] if row else 0, list[Copy]()
        for copy in _copies(database):
            if copy.key not in tried and (copy.next_use is None or copy.next_use > rank):
                victims.append(copy)
                enough -= copy.bytes
            if enough <= 0:
                break
        return victims

    def _forget_dead(self, database: sqlite3.Connection) -> None:
        """Delete the readers whose processes have ended, and their needs."""
        assert self._locks is not None
        for (reader,) in database.execute("SELECT id FROM readers").fetchall():
            if reader != self._reader and not self._locks.is_claimed(reader):
                database.execute("DELETE FROM readers WHERE id = ?", (reader,))
                database.execute("DELETE FROM needs WHERE reader = ?", (reader,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection of this process within a transaction; garbage collection may begin one within it."""
        import sqlite3

        with _using:
            try:
                database = self._connected()
                if bool(database.in_transaction):
                    yield database
                else:
                    _execute(database, "BEGIN IMMEDIATE")
                    try:
                        yield database
                        database.execute("COMMIT")
                    finally:
                        if database.in_transaction:
                            database.execute("ROLLBACK")
            except sqlite3.Error as error:
                if type(error) is sqlite3.DatabaseError:  # the file is not a database, or a damaged one
                    self._path.unlink(missing_ok=True)
                if "full" in str(error):
                    raise _FullError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
                raise CacheError(
                    f"{self._root} cannot be used as a cache ({self._path.name}: {error}): run the program again, or "
                    f"choose another cache_dir, on a local disk"
                ) from error

    def _connected(self) -> sqlite3.Connection:
        """Return the connection of this process; a new one if the file was deleted."""
        with contextlib.suppress(FileNotFoundError):
            if self._database is not None and self._path.lstat().st_ino == self._inode:
                return self._database
        import sqlite3

        make_root(self._root)
        if self._limit is not None:  # evict any copies from a disk that is too full for the catalog
            for path in self._root.glob("*/*-*.tar"):
                if shutil.disk_usage(self._root).free >= _LEAST_DISK:
                    break
                self._evict(f"{path.parent.name}/{path.name}")
        self._locks = LockableFile(self._root / LOCKS, writable=True, create=True)
        self._reader = 0
        if self._path.is_symlink():  # SQLite would follow it
            self._path.unlink()
        database = sqlite3.connect(
            self._path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        self._path.chmod(0o600)
        # The catalog may be lost, as copies can be fetched again: no step waits for the disk.
        database.execute("PRAGMA synchronous = OFF")
        _execute(database, "PRAGMA journal_mode = WAL")
        _execute(database, "BEGIN IMMEDIATE")
        if database.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            for statement in _TABLES.split(";"):
                database.execute(statement)
            database.executemany(_NEW, _copies_in(self._root))
            database.execute(f"PRAGMA user_version = {_VERSION}")
        database.execute("COMMIT")
        database.execute("PRAGMA wal_autocheckpoint = 64")  # pages of 4 KiB
        database.execute("PRAGMA busy_timeout = 0")  # SQLite would sleep up to 100 ms at a time
        self._database, self._inode = database, self._path.stat().st_ino
        return database


def _execute(database: sqlite3.Connection, statement: str) -> None:
    """Execute a statement that needs a lock, once other processes have given it up.

    SQLite itself gives up at once if two processes begin a database together.
    """
    import sqlite3

    refusal = sqlite3.OperationalError()
    for _ in pauses(time.monotonic() + _PATIENCE):
        try:
            database.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            refusal = error
    raise refusal


def _copies(database: sqlite3.Connection) -> Iterator[Copy]:
    """Yield the copies that no process needs, by their last use; then those that are needed, furthest first."""
    for query in (_UNNEEDED, _NEEDED):  # the second takes ten times as long
        yield from map(Copy._make, database.execute(query))


def _copies_in(root: Path) -> Iterator[tuple[str, str, int, float]]:
    """Yield key, source, bytes and last use of each copy in a folder whose catalog was lost."""
    for path in root.glob("*/*-*.tar"):
        with contextlib.suppress(OSError, ValueError), LockableFile(path) as file:
            header = header_of(file)
            size = room_of(header["size"], header["index"])
            yield f"{path.parent.name}/{path.name}", header["source"], size, file.stat().st_mtime
