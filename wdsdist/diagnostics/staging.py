"""Whether ``stage=True`` would pay: the read rate of the file system that holds the shards beside that of the cache's.

Both are read from the disk or server, not from this machine's page cache: its pages of the files are dropped first.
"""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from wdsdist import storage
from wdsdist._util.host import shard_cache_dir
from wdsdist.shards.manifest import Manifest

_FILES = 4
"""Files that are read at once, as by some workers."""
_FILE_BYTES = 32 << 20
"""Of a file that is written into the cache folder to be read."""
_PIECE = 4 << 20
_WORTH = 1.5
"""Times as fast as the mount that the cache's disk must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Read rates of a mount and of the disk of the cache."""

    mount: str
    """The folder of the shards."""
    cache: str
    """The folder of the cache, or where it would be made."""
    mount_rate: float
    """Bytes a second."""
    cache_rate: float
    data_bytes: int
    free_bytes: int
    """On the disk of the cache."""

    @property
    def pays(self) -> bool:
        """Whether copies in the cache are read so much faster that an epoch which waits for the mount gets shorter.

        >>> slow = Staging(mount="/nfs", cache="/tmp", mount_rate=1e8, cache_rate=1e9, data_bytes=1, free_bytes=2)
        >>> slow.pays
        True
        """
        return self.cache_rate > _WORTH * self.mount_rate

    @property
    def fits(self) -> bool:
        """Whether the disk of the cache has room for all of the data."""
        return self.data_bytes < self.free_bytes


def staging(manifest: Manifest, cache_dir: Path | None = None, *, seconds: float = 1.0) -> Staging | None:
    """Measure both file systems; ``None`` where no shard is local, or all lie on the disk of the cache.

    Args:
        manifest: the data set.
        cache_dir: the cache folder; by default ``shards`` in the user's cache folder.
        seconds: how long each is read at most.
    """
    local = (manifest.location(number) for number in range(len(manifest.counts)))
    paths = [storage.local_path(one) for one in islice((one for one in local if not storage.is_remote(one)), _FILES)]
    root = shard_cache_dir(cache_dir)
    place = next(folder for folder in (root, *root.absolute().parents) if folder.is_dir())
    if not paths or paths[0].stat().st_dev == place.stat().st_dev:
        return None
    mount_rate = _read_rate(paths, seconds)
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=place) as folder:
        copies = [Path(folder) / str(number) for number in range(len(paths))]
        for copy in copies:
            with copy.open("wb") as stream:
                stream.write(os.urandom(_PIECE) * (_FILE_BYTES // _PIECE))
                os.fsync(stream.fileno())
        cache_rate = _read_rate(copies, seconds)
    return Staging(
        mount=str(paths[0].parent),
        cache=str(root),
        mount_rate=mount_rate,
        cache_rate=cache_rate,
        data_bytes=manifest.num_bytes,
        free_bytes=shutil.disk_usage(place).free,
    )


def _read_rate(paths: list[Path], seconds: float) -> float:
    """Return the bytes a second with which files are read, all at once."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(paths)) as executor:
        total = sum(executor.map(_read, paths, [began + seconds] * len(paths)))
    return total / max(time.monotonic() - began, 1e-9)


def _read(path: Path, end: float) -> int:
    """Read a file from its start until a time of ``time.monotonic``; return the bytes that came."""
    taken = 0
    buffer = bytearray(_PIECE)
    with path.open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while count := stream.readinto(buffer):
            taken += count
            if time.monotonic() > end:
                break
    return taken
