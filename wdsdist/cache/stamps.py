"""Stamps: the verified digest and file times of a copy, so that it is hashed once, or the space reserved for a part."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from wdsdist._util.ownership import read_own, why_not_own
from wdsdist.cache import folders

_EARLIER = 10_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class Stamp:
    """Digest, size, times and inode of a file when it was verified."""

    sha256: str = ""
    size: int = -1
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    boot: str = ""
    """Boot id of the system: data that was not on disk at a crash may leave a file of zeros."""
    made_of: str = ""
    """Identity of the compressed file that was decompressed, as `ShardRequest.made_of` returns it."""
    reserved: int = 0
    """Bytes reserved for a part and its files."""

    def agrees(self, found: os.stat_result) -> bool:
        """Return whether a file is unchanged since it was verified, and writable by this user alone."""
        return _seen(self.sha256, self.made_of, found) == self and not why_not_own(found)


def stamp(descriptor: int, path: Path, sha256: str, made_of: str) -> None:
    """Write the stamp of an open file whose bytes are verified."""
    now = os.stat(descriptor).st_atime_ns
    # The time is set into the past, so that a write within the same clock tick changes it.
    with contextlib.suppress(PermissionError):  # another user's file
        os.fchmod(descriptor, os.stat(descriptor).st_mode & 0o755)
        os.utime(descriptor, ns=(now, os.stat(descriptor).st_mtime_ns - _EARLIER))
    write(path, _seen(sha256, made_of, os.stat(descriptor)))


def touch(path: Path) -> None:
    """Record that a copy is used now, by the time of its stamp."""
    with contextlib.suppress(OSError):  # it keeps an older time of use then
        os.utime(path)


def write(path: Path, content: Stamp) -> None:
    folders.write(path, json.dumps(asdict(content)).encode())


def read(path: Path) -> Stamp | None:
    """Read a stamp; ``None`` where there is none, or it is incomplete or not this user's."""
    try:
        return Stamp(**json.loads(read_own(path) or b""))
    except (ValueError, TypeError):
        return None


def _seen(sha256: str, made_of: str, found: os.stat_result) -> Stamp:
    return Stamp(sha256, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, boot(), made_of)


@functools.cache
def boot() -> str:
    """Return the boot id of the system; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
