"""Payloads: the data of members before it is packed, and how it is read straight to where a tar is put together."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wdsdist.errors import SourceError
from wdsdist.shards.tar.writer import stored_size

_AGAIN = "pack again once the source is at rest"
# Without O_NONBLOCK, a pipe in the place of a file that was listed would be waited for until somebody writes to it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class FilePayload:
    """A member whose data is a file, or a part of one such as an archive, read only when it is written."""

    path: str
    size: int
    """File size in bytes when the source was listed: another size later is an error."""
    offset: int | None = None
    """Where a part starts; ``None`` for a whole file."""


@dataclass(frozen=True, slots=True)
class BrokenPayload:
    """A member whose data is known not to be there to read: its sample is an error, or is left out."""

    reason: str
    """What is wrong, with the file or field that it is wrong with, and what to do."""
    size: int = 0


Payload = bytes | FilePayload | BrokenPayload
Sample = tuple[str, list[tuple[str, Payload]]]
"""A key, and its members as (extension, payload) in the order in which they are written."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples that a function makes whenever they are iterated over: small and picklable, as its arguments are."""

    make: Callable[..., Iterator[Sample]]
    arguments: tuple[Any, ...] = field(repr=False)
    """They may hold credentials."""

    def __iter__(self) -> Iterator[Sample]:
        return self.make(*self.arguments)


def broken(key: str, error: SourceError) -> Sample:
    """Return a placeholder for a broken sample, which is skipped and reported with this reason.

    >>> broken("000000007", SourceError("item 7 cannot be read"))
    ('000000007', [('broken', BrokenPayload(reason='item 7 cannot be read', size=0))])
    """
    return key, [("broken", BrokenPayload(str(error)))]


def numbered(number: int) -> str:
    """Return the key of a sample that has none of its own."""
    return f"{number:09d}"


def payload_size(payload: Payload) -> int:
    """Return the bytes of a member's data."""
    return len(payload) if isinstance(payload, bytes) else payload.size


def sample_size(sample: Sample) -> int:
    """Return the bytes that a sample takes in a tar.

    >>> sample_size(("000", [("cls", b"7"), ("txt", b"seven")]))
    2048
    """
    key, members = sample
    return sum(stored_size(f"{key}.{extension}", payload_size(payload)) for extension, payload in members)


def read_all(
    payloads: Sequence[Payload], sizes: Sequence[int], view: memoryview, starts: Sequence[int]
) -> dict[int, SourceError]:
    """Read the data of members to where each starts in ``view``, which has one byte more than they need.

    Returns what is wrong with those that cannot be read, or that have another size than they were listed with. Bytes
    behind such a member may be overwritten.
    """
    failed: dict[int, SourceError] = {}
    for number, (payload, size, start) in enumerate(zip(payloads, sizes, starts, strict=True)):
        try:
            if isinstance(payload, FilePayload) and payload.offset is None:
                # Three calls for a file: asking for a byte too many tells its size as well as fstat does.
                descriptor = os.open(payload.path, _FLAGS)
                try:
                    count = os.readv(descriptor, (view[start : start + size + 1],))
                finally:
                    os.close(descriptor)
                if count == size:
                    continue
            elif isinstance(payload, bytes):
                view[start : start + size] = payload
                continue
            # A part of a file, or a file that a network file system gives in pieces, or that has changed.
            with opened(payload) as read:
                stop = start + size
                while start < stop:
                    start += read(view[start:stop])
        except OSError as error:
            failed[number] = _unreadable(payload, error)
        except SourceError as error:
            failed[number] = error
    return failed


@contextmanager
def opened(payload: Payload) -> Iterator[Callable[[memoryview], int]]:
    """Open a member's data; what this gives reads on into a buffer, not beyond the end, and returns how many bytes.

    Raises `SourceError` if it cannot be read; for another size than it was listed with, before anything is read.
    """
    if isinstance(payload, BrokenPayload):
        raise SourceError(payload.reason)
    if isinstance(payload, bytes):
        yield io.BytesIO(payload).readinto
        return
    position = payload.offset or 0
    end = position + payload.size

    def read(view: memoryview) -> int:
        nonlocal position
        try:
            count = os.preadv(descriptor, (view[: end - position],), position)
        except OSError as error:
            raise _unreadable(payload, error) from error
        if not count and position < end:  # cut while it was read
            raise _resized(payload, payload.size - (end - position))
        position += count
        return count

    try:
        descriptor = os.open(payload.path, _FLAGS)
    except OSError as error:
        raise _unreadable(payload, error) from error
    try:
        size = os.fstat(descriptor).st_size
        if payload.offset is not None:
            size = min(payload.size, max(0, size - position))
        if size != payload.size:
            raise _resized(payload, size)
        yield read
    finally:
        os.close(descriptor)


def whole(payload: Payload) -> bytes:
    """Return all of a member's data. Raises `SourceError` if it cannot be read, or has changed."""
    size = payload_size(payload)
    content = memoryview(bytearray(size + 1))
    for error in read_all([payload], [size], content, [0]).values():
        raise error
    return content[:size].tobytes()


def _unreadable(payload: Payload, error: OSError) -> SourceError:
    path = payload.path if isinstance(payload, FilePayload) else "a member"
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path} has vanished since it was listed: {_AGAIN}")
    return SourceError(f"{path} cannot be read: {error.strerror}")


def _resized(payload: FilePayload, size: int) -> SourceError:
    what = "bytes" if payload.offset is None else f"bytes at {payload.offset:,}"
    return SourceError(f"{payload.path} has {size:,} {what}, but had {payload.size:,} when it was listed: {_AGAIN}")
