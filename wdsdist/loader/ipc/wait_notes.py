"""What each worker waits for, in words, in memory that the main process reads."""

from __future__ import annotations

from wdsdist.loader.chosen_epoch import SharedMap

_NOTE_BYTES = 1000
"""The longest note."""


class WaitNotes:
    """Shared-memory notes on which downloads each worker waits for; the main process logs them if a wait is long.

    >>> notes = WaitNotes(2)
    >>> notes.write(1, "s3://bucket/7.tar")
    >>> notes.read(0), notes.read(1)
    ('', 's3://bucket/7.tar')
    """

    def __init__(self, num_workers: int) -> None:
        self._shared = SharedMap(max(1, num_workers) * _NOTE_BYTES)

    def write(self, worker: int, note: str) -> None:
        """Replace the note of a worker."""
        content = note.encode("utf-8", "backslashreplace")[:_NOTE_BYTES]
        self._shared.bytes[worker * _NOTE_BYTES : (worker + 1) * _NOTE_BYTES] = content.ljust(_NOTE_BYTES, b"\0")

    def read(self, worker: int) -> str:
        """Return the note of a worker."""
        content = self._shared.bytes[worker * _NOTE_BYTES : (worker + 1) * _NOTE_BYTES]
        return content.rstrip(b"\0").decode("utf-8", "replace")
