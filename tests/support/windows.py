"""The windows of a lane, by a loop: an oracle for the arithmetic."""

from __future__ import annotations


def windows_one_by_one(first: int, window: int, length: int) -> list[tuple[int, int, int]]:
    """Return (number, start, size) of the windows of a lane: the rule, as a loop."""
    found = []
    start, size = 0, min(first, window)
    while start < length:
        found.append((len(found), start, min(size, length - start)))
        start, size = start + size, min(4 * size, window)
    return found
