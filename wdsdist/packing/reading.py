"""The data of members, read straight to where a tar is put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wdsdist.errors import SourceError
from wdsdist.sources import BrokenPayload, FilePayload, Payload, RangePayload, payload_size

_AGAIN = "pack again once the source is at rest"
# Without O_NONBLOCK, a pipe in the place of a file that was listed would be waited for until somebody writes to it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

Located = FilePayload | RangePayload


def read_into(payload: Payload, view: memoryview, start: int) -> None:
    """Read all of a member's data to ``view[start:]``, which has room for it and one byte more.

    Raises `SourceError` where it cannot be read, or has another size than it was listed with.
    """
    if isinstance(payload, FilePayload):
        # One call to open, one to read, one to close: asking for a byte too many tells the size as well as fstat does.
        try:
            descriptor = os.open(payload.path, _FLAGS)
            try:
                whole = os.readv(descriptor, (view[start : start + payload.size + 1],)) == payload.size
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unreadable(payload.path, error) from error
        if whole:
            return
    # Anything but a file that is as it was: among them one that a network file system gives in pieces.
    with opened(payload) as read:
        stop = start + payload_size(payload)
        while start < stop:
            start += read(view[start:stop])


@contextmanager
def opened(payload: Payload) -> Iterator[Callable[[memoryview], int]]:
    """Open a member's data; what this gives reads on into a buffer, not beyond the end, and returns how many bytes.

    Raises `SourceError` as `read_into` does: for a size that is not the expected one, before anything is read.
    """
    if isinstance(payload, BrokenPayload):
        raise SourceError(payload.reason)
    if isinstance(payload, bytes):
        yield _copier(payload)
        return
    try:
        descriptor = os.open(payload.path, _FLAGS)
    except OSError as error:
        raise _unreadable(payload.path, error) from error
    try:
        yield _reader(payload, descriptor)
    finally:
        os.close(descriptor)


def _copier(data: bytes) -> Callable[[memoryview], int]:
    done = 0

    def copy(view: memoryview) -> int:
        nonlocal done
        piece = data[done : done + len(view)]
        view[: len(piece)] = piece
        done += len(piece)
        return len(piece)

    return copy


def _reader(payload: Located, descriptor: int) -> Callable[[memoryview], int]:
    place = payload.offset if isinstance(payload, RangePayload) else 0
    size = os.fstat(descriptor).st_size
    found = min(payload.size, max(0, size - place)) if isinstance(payload, RangePayload) else size
    if found != payload.size:
        raise _resized(payload, found)
    end = place + payload.size

    def read(view: memoryview) -> int:
        nonlocal place
        try:
            count = os.preadv(descriptor, (view[: end - place],), place)
        except OSError as error:
            raise _unreadable(payload.path, error) from error
        if not count and place < end:  # cut while it was read
            raise _resized(payload, payload.size - (end - place))
        place += count
        return count

    return read


def _unreadable(path: str, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path} has vanished since it was listed: {_AGAIN}")
    return SourceError(f"{path} cannot be read: {error.strerror}")


def _resized(payload: Located, found: int) -> SourceError:
    what = f"bytes at {payload.offset:,}" if isinstance(payload, RangePayload) else "bytes"
    return SourceError(f"{payload.path} has {found:,} {what}, but had {payload.size:,} when it was listed: {_AGAIN}")
