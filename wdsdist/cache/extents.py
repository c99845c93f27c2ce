"""Extents: the byte ranges of a shard that its sparse copy has, and the map file that lists them.

The map is a header and a log of ranges, each appended once its bytes are written and checked: a writer that is killed
leaves no range that claims bytes which are not there. It names the boot of the system, since data that was not on disk
at a crash may read as zeros.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist._util.host import boot
from wdsdist.cache import folders
from wdsdist.cache.locks import LockableFile

_HEADER_BYTES = 256
SMALL_GAP = 4096
"""Bytes between two ranges that are fetched with them in any case."""
_LARGE_GAP = 1 << 20
"""Bytes that a connection carries in the time of a round trip, where none was measured: 20 ms at 50 MB/s."""
_CAUTIOUS = 256 << 10
"""The same for what is not needed yet: a first batch must not wait long for it over a slow link."""
_GAPS = 64 << 10, 4 << 20
"""Bounds of that where it was measured."""
_LENGTHS = 1 << 20, 8 << 20
"""Bounds of the bytes of one request."""
_EXCESS = 0.25
"""Share of the bytes needed that larger gaps may add."""


class ExtentMap:
    """The map of one sparse copy, which this process has locked.

    Args:
        path: the file. Raises ``FileNotFoundError`` where there is none.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self._file = LockableFile(path, writable=writable)
        # One write is one record at the end, whoever else appends.
        fcntl.fcntl(self._file.fileno(), fcntl.F_SETFL, os.O_APPEND)
        self._seen = 0
        self._extents = np.zeros((0, 2), np.int64)

    @staticmethod
    def create(path: Path, size: int, sha256: str) -> None:
        """Write the map of a copy without an extent, of a shard of this size and digest."""
        folders.write(path, _header(size, sha256))

    def is_of(self, size: int, sha256: str) -> bool:
        """Return whether the extent map belongs to a shard of this size and SHA-256, and to this boot of the system."""
        return os.pread(self._file.fileno(), _HEADER_BYTES, 0) == _header(size, sha256)

    def extents(self) -> Int64s:
        """Return the recorded ranges of all processes: int64 [n, 2], sorted starts and stops."""
        size = os.fstat(self._file.fileno()).st_size
        if size != self._seen:
            log = os.pread(self._file.fileno(), (size - _HEADER_BYTES) // 16 * 16, _HEADER_BYTES)
            self._extents = merged(np.frombuffer(log, "<i8").reshape(-1, 2).astype(np.int64))
            self._seen = size
        return self._extents

    def add(self, ranges: Int64s) -> None:
        """Record ranges whose bytes are written and checked: int64 [n, 2]."""
        record = ranges.astype("<i8").tobytes()
        # Records are aligned, and a full disk cuts at the end of a block: what stands there is whole.
        if os.write(self._file.fileno(), record) < len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()


def _header(size: int, sha256: str) -> bytes:
    return f"{size} {sha256} {boot()}\n".encode().ljust(_HEADER_BYTES, b"\0")


def merged(ranges: Int64s) -> Int64s:
    """Return ranges sorted, those that touch as one.

    >>> merged(np.array([[5, 9], [0, 3], [3, 4], [6, 7]])).tolist()
    [[0, 4], [5, 9]]
    """
    return _joined(ranges, lambda gaps: gaps <= 0)


def coalesced(ranges: Int64s, *, gap: int = _LARGE_GAP, excess: float = _EXCESS) -> Int64s:
    """Return the ranges to ask a store for, one request each: small gaps are fetched too, larger ones within bounds.

    What is fetched is at most a quarter more (``excess``) than what is needed, but for gaps of at most 4,096 bytes.

    >>> coalesced(np.array([[0, 1000], [3000, 9000], [10**6, 10**6 + 500]])).tolist()
    [[0, 9000], [1000000, 1000500]]
    """

    ranges = merged(ranges)

    def chosen(gaps: Int64s) -> npt.NDArray[np.bool_]:
        by_size = np.argsort(gaps, kind="stable")
        larger = np.where(gaps[by_size] > SMALL_GAP, gaps[by_size], 0)
        fits = np.cumsum(larger) <= excess * int((ranges[:, 1] - ranges[:, 0]).sum())
        found = np.zeros(len(gaps), np.bool_)
        found[by_size] = fits & (gaps[by_size] <= gap)
        return found

    return _joined(ranges, chosen)


def request_sizes(bytes_in_delay: int) -> tuple[int, int]:
    """Return the largest gap to fetch with ranges around it, and the most bytes of a request.

    A gap costs less than a request where it comes in the time of a round trip. More than comes in that time is better
    asked for over several connections.

    >>> request_sizes(1_800_000), request_sizes(200_000)
    ((1800000, 1800000), (200000, 1048576))
    >>> request_sizes(0)  # nothing is known
    (1048576, 8388608)
    """
    if not bytes_in_delay:
        return _LARGE_GAP, _LENGTHS[1]
    gap, length = (min(max(bytes_in_delay, least), most) for least, most in (_GAPS, _LENGTHS))
    return gap, length


def cost(ranges: Int64s, bytes_in_delay: int) -> int:
    """Return the cost of ranges in bytes, each range that comes in one request as the bytes of a round trip more.

    >>> cost(np.array([[0, 1000], [5000, 6000]]), 1_800_000)
    3602000
    """
    return len(ranges) * (bytes_in_delay or _CAUTIOUS) + int((ranges[:, 1] - ranges[:, 0]).sum())


def requests_of(ranges: Int64s, length: int) -> list[range]:
    """Return ranges as they are asked for, of so many bytes at most."""
    return [range(at, min(at + length, stop)) for start, stop in ranges.tolist() for at in range(start, stop, length)]


def covered(ranges: Int64s, extents: Int64s) -> npt.NDArray[np.bool_]:
    """Return for each range whether all of it is in one of the extents, which are merged.

    >>> covered(np.array([[0, 2], [3, 5], [8, 9]]), np.array([[0, 4], [8, 10]])).tolist()
    [True, False, True]
    """
    if not len(extents):
        extents = np.zeros((1, 2), np.int64)
    place = np.maximum(np.searchsorted(extents[:, 0], ranges[:, 0], side="right") - 1, 0)
    inside = (extents[place, 0] <= ranges[:, 0]) & (ranges[:, 1] <= extents[place, 1])
    found: npt.NDArray[np.bool_] = inside | (ranges[:, 0] == ranges[:, 1])
    return found


def without(ranges: Int64s, others: Int64s) -> Int64s:
    """Return ranges less other ones (set difference); both are merged.

    >>> without(np.array([[0, 9], [20, 30]]), np.array([[3, 5], [25, 40]])).tolist()
    [[0, 3], [5, 9], [20, 25]]
    """
    points = np.unique(np.concatenate((ranges, others)))
    pieces = np.stack((points[:-1], points[1:]), axis=1)
    return merged(pieces[covered(pieces, ranges) & ~covered(pieces, others)])


def copy_ranges(source: int, target: Path, ranges: Int64s) -> None:
    """Copy ranges of an open file to the same places of another one."""
    with target.open("r+b", buffering=0) as file:
        for start, stop in ranges.tolist():
            file.seek(start)
            while start < stop and (sent := os.sendfile(file.fileno(), source, start, stop - start)):
                start += sent


def _joined(ranges: Int64s, is_joined: Callable[[Int64s], npt.NDArray[np.bool_]]) -> Int64s:
    """Return sorted ranges, each as one with the next where a function of the gaps between them says so."""
    if not len(ranges):
        return ranges.reshape(0, 2)
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    stops = np.maximum.accumulate(ranges[:, 1])
    is_first = np.append(True, ~is_joined(ranges[1:, 0] - stops[:-1]))
    return np.stack((ranges[is_first, 0], stops[np.append(is_first[1:], True)]), axis=1)
