"""Quarantine files: the bad samples of data sets, each once, as a line of JSON that other commands take.

Any number of processes add to one file: each holds its lock while it reads what others have added and appends what is
new. A process that is killed in between leaves a last line that is cut off: readers pass over it, and the next writer
removes it. A last line that is whole but for its line break counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wdsdist.errors import ArgumentError

_MODE = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class BadEntry:
    """One bad sample of a data set.

    >>> BadEntry.of('{"key": "0001", "shard": "0.tar", "field": "jpg", "reason": "is empty"}').identity
    ('', '0.tar', '0001')
    """

    key: str
    shard: str = ""
    """Name of its shard in ``index.json``."""
    field: str = ""
    """The field that is bad; empty where the sample as a whole is."""
    reason: str = ""
    fingerprint: str = ""
    """That of the data set, `Manifest.fingerprint`."""
    dataset: str = ""
    """Name of the data set, where several are mixed."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """What tells samples apart: a quarantine file holds each once."""
        return self.fingerprint, self.shard, self.key

    def line(self) -> str:
        """Return it as a line of a file."""
        return json.dumps({name: value for name, value in asdict(self).items() if value or name in ("key", "field")})

    @classmethod
    def of(cls, line: str | bytes) -> BadEntry:
        """Return the entry in a line; raise ``ValueError`` for what is none."""
        found: Any = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("key"), str):
            raise ValueError("it is no object with a key")
        values = {name: found.get(name) or "" for name in cls.__slots__}
        if not all(isinstance(value, str) for value in values.values()):
            raise ValueError("its values are no texts")
        return cls(**values)


def read(path: str | os.PathLike[str]) -> list[BadEntry]:
    """Return the entries of a quarantine file; a last line that is cut off is none.

    Raises `ArgumentError` for a file that cannot be read, and for one with a line that is no entry.
    """
    try:
        *lines, last = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ArgumentError(f"the quarantine file {path} cannot be read: {error.strerror or error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(BadEntry.of(line))
        except (ValueError, RecursionError) as error:
            raise ArgumentError(
                f"{path}, line {number:,}, is none of a quarantine file ({error}): each line is JSON such as "
                f'{{"key": "0001", "shard": "shard-000000.tar"}}'
            ) from error
    whole = _entry(last)
    return found if whole is None else [*found, whole]


def _entry(line: bytes) -> BadEntry | None:
    try:
        return BadEntry.of(line)
    except (ValueError, RecursionError):
        return None


class Quarantine:
    """Adds entries to a quarantine file, each once, whoever else adds to it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "bad.jsonl"
    >>> for _ in range(2):
    ...     Quarantine(str(path)).add([BadEntry("0001", "0.tar"), BadEntry("0002", "0.tar")])
    >>> [entry.key for entry in read(path)]
    ['0001', '0002']
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._known: set[tuple[str, str, str]] = set()
        self._read = 0  # bytes of the file of which the entries are known
        self._inode = 0

    def add(self, entries: Iterable[BadEntry]) -> None:
        """Append the entries that the file does not hold yet. Raises ``OSError`` where it cannot be written."""
        new = {entry.identity: entry for entry in entries if entry.identity not in self._known}
        if not new:
            return
        descriptor = os.open(self.path, _MODE, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # ends with the descriptor, also where the process is killed
            self._catch_up(descriptor)
            lines = "".join(f"{entry.line()}\n" for entry in new.values() if entry.identity not in self._known).encode()
            left = memoryview(lines)
            while left:
                left = left[os.write(descriptor, left) :]
            self._read += len(lines)
            self._known.update(new)
        finally:
            os.close(descriptor)

    def _catch_up(self, descriptor: int) -> None:
        """Read what others have added, and remove a last line that is cut off."""
        status = os.fstat(descriptor)
        if status.st_ino != self._inode or status.st_size < self._read:  # another file by now
            self._known, self._read, self._inode = set(), 0, status.st_ino
        added = bytearray()
        while piece := os.pread(descriptor, 1 << 20, self._read + len(added)):
            added += piece
        *lines, last = bytes(added).split(b"\n")
        if _entry(last):  # such as by an editor, which wrote no line break behind it
            lines.append(last)
            os.write(descriptor, b"\n")
        elif last:
            os.ftruncate(descriptor, self._read + len(added) - len(last))
        self._read += sum(len(line) + 1 for line in lines)
        # What is no entry is not ours to judge here: `read` names it.
        self._known.update(entry.identity for entry in map(_entry, lines) if entry)
