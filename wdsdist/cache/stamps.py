"""What was verified of a copy, so that it is hashed once; and how much room is reserved for a part."""

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
    """A file as it was when its bytes were found right."""

    sha256: str = ""
    size: int = -1
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    boot: str = ""
    """Which start of the system: data that a crash of the machine kept from the disk may leave a file of zeros."""
    made_of: str = ""
    """What tells the file that was decompressed from one that has replaced it since."""
    reserved: int = 0
    """Bytes that a part and what belongs to it may come to take."""

    def agrees(self, found: os.stat_result) -> bool:
        """Say whether a file is still the one that was verified, and this user alone can have changed it."""
        return _seen(self.sha256, self.made_of, found) == self and not why_not_own(found)


def stamp(descriptor: int, path: Path, sha256: str, made_of: str) -> None:
    """Note that the bytes of an open file have been found right."""
    now = os.stat(descriptor).st_atime_ns
    # A write within the same tick of the clock must show: it can only set a time that is later than this one.
    with contextlib.suppress(PermissionError):  # another user's file
        os.fchmod(descriptor, os.stat(descriptor).st_mode & 0o755)
        os.utime(descriptor, ns=(now, os.stat(descriptor).st_mtime_ns - _EARLIER))
    write(path, _seen(sha256, made_of, os.stat(descriptor)))


def touch(path: Path) -> None:
    """Note that a copy is used now: the time of its stamp says so."""
    with contextlib.suppress(OSError):  # it goes by an older time then
        os.utime(path)


def write(path: Path, content: Stamp) -> None:
    folders.write(path, json.dumps(asdict(content)).encode())


def read(path: Path) -> Stamp | None:
    """Return a stamp; nothing where there is none of this user's, or none that was written to its end."""
    try:
        return Stamp(**json.loads(read_own(path) or b""))
    except (ValueError, TypeError):
        return None


def _seen(sha256: str, made_of: str, found: os.stat_result) -> Stamp:
    return Stamp(sha256, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, boot(), made_of)


@functools.cache
def boot() -> str:
    """Return what tells this start of the system from others; nothing where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
