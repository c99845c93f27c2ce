"""Quarantine files: logs of bad samples, one line of JSON each, which other commands take.

Any number of processes append to one file; each process lists a sample once. A process that is killed while it writes
leaves a line that is cut off; the next writer begins a line behind it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class BadEntry:
    """One bad sample of a data set."""

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

    def line(self) -> str:
        """Return it as a line of a file."""
        return json.dumps({name: value for name, value in asdict(self).items() if value or name in ("key", "field")})


class Quarantine:
    """Appends entries to a quarantine file, each once in this process.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "bad.jsonl"
    >>> quarantine = Quarantine(str(path))
    >>> for _ in range(2):
    ...     quarantine.add([BadEntry("0001", "0.tar"), BadEntry("0002", "0.tar")])
    >>> [json.loads(line)["key"] for line in path.read_text().splitlines()]
    ['0001', '0002']
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._known: set[tuple[str, str, str]] = set()

    def add(self, entries: Iterable[BadEntry]) -> None:
        """Append the entries that this process has not listed. Raises ``OSError`` if the file cannot be written."""
        named = {(entry.fingerprint, entry.shard, entry.key): entry for entry in entries}
        new = {sample: entry for sample, entry in named.items() if sample not in self._known}
        if not new:
            return
        lines = "".join(f"{entry.line()}\n" for entry in new.values()).encode()
        with open(self.path, "a+b", buffering=0) as stream:  # noqa: PTH123 - appended lines of processes do not mix
            size = stream.seek(0, os.SEEK_END)
            if size and os.pread(stream.fileno(), 1, size - 1) != b"\n":
                lines = b"\n" + lines  # behind a line that was cut off
            while lines:  # one write, unless the disk is full
                lines = lines[stream.write(lines) :]
        self._known.update(new)
