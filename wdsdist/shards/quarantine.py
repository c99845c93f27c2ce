"""Quarantine files: logs of bad samples, one line of JSON each, which other commands take.

Any number of processes append to one file; each process lists a sample once. A process that is killed while it writes
leaves a line that is cut off: readers skip it.
"""

from __future__ import annotations

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
    """The field that is bad; empty if the sample as a whole is."""
    reason: str = ""
    fingerprint: str = ""
    """Fingerprint of the data set, `Manifest.fingerprint`."""
    dataset: str = ""
    """Name of the data set, if several are mixed."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Identifies the sample."""
        return self.fingerprint, self.shard, self.key

    def line(self) -> str:
        """Return it as a line of a file."""
        return json.dumps({name: value for name, value in asdict(self).items() if value or name in ("key", "field")})

    @classmethod
    def of(cls, line: str | bytes) -> BadEntry:
        """Return the entry in a line. Raises ``ValueError`` if the line is not an entry."""
        entry: Any = json.loads(line)
        values = {name: entry.get(name) or "" for name in cls.__slots__} if isinstance(entry, dict) else {}
        if not values.get("key") or not all(isinstance(value, str) for value in values.values()):
            raise ValueError("it is not an object with a key, of strings")
        return cls(**values)


def read(path: str | os.PathLike[str]) -> list[BadEntry]:
    """Return the entries of a quarantine file, each once; lines that are cut off are skipped.

    Raises `ArgumentError` for a file that cannot be read, and for one with another line.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ArgumentError(f"the quarantine file {path} cannot be read: {error.strerror or error}") from error
    entries: dict[tuple[str, str, str], BadEntry] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or (line.startswith(b'{"') and not line.endswith(b"}")):
            continue
        try:
            entry = BadEntry.of(line)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(
                f"{path}, line {number:,}, is not of a quarantine file ({error}): each line is JSON such as "
                f'{{"key": "0001", "shard": "shard-000000.tar"}}'
            ) from error
        entries.setdefault(entry.identity, entry)
    return list(entries.values())


class Quarantine:
    """Appends entries to a quarantine file, each once in this process.

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

    def add(self, entries: Iterable[BadEntry]) -> None:
        """Append the entries that this process has not listed. Raises ``OSError`` if the file cannot be written."""
        new = {entry.identity: entry for entry in entries if entry.identity not in self._known}
        if not new:
            return
        lines = "".join(f"{entry.line()}\n" for entry in new.values()).encode()
        descriptor = os.open(self.path, _MODE, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # behind a line that was cut off
            left = memoryview(lines)
            while left:  # one write, unless the disk is full: appended lines do not mix
                left = left[os.write(descriptor, left) :]
            self._known.update(new)
        finally:
            os.close(descriptor)
