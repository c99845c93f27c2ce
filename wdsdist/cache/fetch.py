"""Fetch one shard into the file that is ready for it, and make sure that it is what the manifest lists.

A compressed shard is decompressed into that file; where it is remote, it is fetched into one without a name before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wdsdist import storage
from wdsdist.cache import folders
from wdsdist.cache.paths import Place
from wdsdist.cache.stamps import Stamp
from wdsdist.distributed import is_own_file
from wdsdist.errors import IndexFormatError, ShardDamagedError, ShardNotFoundError
from wdsdist.shards import index as shardindex
from wdsdist.shards import scan_local as tarindex
from wdsdist.shards.index import ShardIndex, Stored
from wdsdist.shards.manifest import Manifest, Shard
from wdsdist.storage import compression

_ATTEMPTS = 3
"""Times that a shard is fetched whose bytes are wrong."""

_log = logging.getLogger("wdsdist")


@dataclasses.dataclass(frozen=True, slots=True)
class Fetched:
    """A shard that has proved to be right."""

    index: ShardIndex
    sidecar: bytes | None
    """The index as it is kept beside the copy; none where it stands in the folder of index.json."""
    sha256: str
    """Of the copy."""


class Wanted:
    """A shard of which a copy is to be had before a deadline; what its store says of it is asked once."""

    retries: int
    """Requests that were made again for it, and fetches of it whose bytes were wrong."""

    def __init__(self, manifest: Manifest, number: int, place: Place, deadline: storage.Deadline) -> None:
        self.retries = 0
        manifest, number = manifest.part(number)
        self.place = place
        self.deadline = deadline
        self.listed: Shard = manifest.shard(number)
        self.listed_size = int(manifest.read_sizes[number])
        """Bytes of the copy, as the manifest says; -1 where it does not."""
        self._location = manifest.location(number)
        self._is_remote = storage.is_remote(self._location)
        self.shown = storage.shown(self._location)
        self._options = manifest.client_options
        name = storage.split(storage.beside(self._location, shardindex.SUFFIX))[1]
        self._listed_index = None if storage.is_remote(manifest.base) else storage.local_path(manifest.base) / name
        """Where its index may stand beside the index.json that lists it."""

    @property
    def described(self) -> str:
        """The shard, in a message about its room."""
        return self.shown if self.listed_size < 0 else f"{self.shown} of {self.listed_size:,} bytes"

    @functools.cached_property
    def size(self) -> int:
        """Bytes of the copy; -1 where neither the manifest, nor the index, nor the store says."""
        if self.listed_size >= 0:
            return self.listed_size
        if self.listed.is_compressed:
            index = self._known_index()
            return -1 if index is None else index.size
        return self.look(self.deadline).size

    @functools.cached_property
    def sidecar(self) -> bytes | None:
        """The index beside the shard; none where there is none, or none is needed."""
        if self._listed_index_exists():
            return None
        try:
            index = storage.beside(self._location, shardindex.SUFFIX)
            return storage.read(index, self._options, deadline=self.deadline)
        except FileNotFoundError:
            return None

    def index_bytes(self, *, ask: bool) -> int:
        """Return the bytes to reserve for the index, as its store tells, which is a round trip of its own.

        Unless it is asked, and for an index that has to be made, more than members of some size give.
        """
        if ask and self.sidecar is not None:
            return len(self.sidecar)
        if self._listed_index and self._listed_index.exists():
            return self._listed_index.stat().st_size if self.listed.is_compressed else 0
        return max(0, self.size) // 16 + (1 << 16)

    @property
    def extra_bytes(self) -> int:
        """Bytes that are needed beside the copy until it is there: of the file that it is made of."""
        if not (self.listed.is_compressed and self._is_remote):
            return 0
        index = self._known_index() if self.listed.size < 0 else None
        return max(0, self.listed.size if index is None else index.file.size)

    @functools.cached_property
    def made_of(self) -> str:
        """What tells the compressed file that is listed from another one; of a local one, hashing would take long."""
        if not self.listed.is_compressed:
            return ""
        if self._is_remote:
            return f"{self.listed.size} {self.listed.sha256}"
        try:
            found = storage.local_path(self._location).stat()
        except FileNotFoundError as error:
            raise ShardNotFoundError(f"shard {self._location} does not exist") from error
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"

    def fetch(self) -> Fetched:
        """Fetch the shard into its part, for which there is room, until its bytes are right.

        Raises `ShardNotFoundError` and `StorageError` as storage does, `ShardDamagedError` where it is not what the
        manifest and the index beside it promise.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._fetch_once()
            except storage.WrongLengthError as error:
                raise ShardDamagedError(f"{error}: upload it again") from None
            except ShardDamagedError as error:
                if not self._is_remote:
                    raise
                if attempt + 1 == _ATTEMPTS or not self.deadline.left():
                    raise ShardDamagedError(f"{error} (after {attempt + 1} attempts)") from error
                self.retries += 1
                self.__dict__.pop("sidecar", None)  # it may be the one that came wrong
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _fetch_once(self) -> Fetched:
        part = self.place.part  # whatever this does, it keeps its inode
        made_of = self.made_of
        if self.listed.is_compressed:
            _say(self.place.folder.parent)
            with self._file() as path:
                file = tarindex.stored(path)
                self._check("index.json", file, Stored(self.listed.size, self.listed.sha256))
                compression.unpack(path, part, size=self.size, label=self.shown)
            self.__dict__.pop("made_of")
            if self.made_of != made_of:
                raise ShardDamagedError(f"{self.shown} has changed while it was read: try again once it is at rest")
            tar = tarindex.stored(part)
        else:
            with self._begin_fetch(part) as shard:
                _ = self.sidecar  # comes while the shard does
                self.retries += shard.result().retries
            file = tar = tarindex.stored(part)
            self._check("index.json", file, Stored(self.listed.size, self.listed.sha256))
        index, sidecar = self._known_index(), self.sidecar
        if index is None:
            index = self._scanned(part, file)
        if sidecar is None and (self.listed.is_compressed or not self._listed_index_exists()):
            sidecar = shardindex.dumps(index)  # that of a compressed shard has the name of its file, not of the copy
        self._check("its index", file, index.file)
        self._check("its index", tar, Stored(index.size, index.sha256))
        return Fetched(index, sidecar, tar.sha256)

    def look(self, deadline: storage.Deadline) -> storage.Entry:
        """Return what the store says of the shard. Raises `ShardNotFoundError` or `StorageError` where it does not."""
        try:
            return storage.entry(self._location, self._options, deadline=deadline)
        except FileNotFoundError as error:
            raise ShardNotFoundError(f"{self.shown} does not exist") from error

    def check_copy(self, known: Stamp, *, is_trusted: bool) -> str:
        """Return the digest of the copy. Raises `ShardDamagedError` where it is not the shard that is listed.

        ``known`` is what was verified of it; that is trusted where the file has not changed since.
        """
        copy = self.place.copy
        sha256 = known.sha256 if is_trusted else storage.sha256(copy)
        promised = known.sha256 if self.listed.is_compressed else self.listed.sha256 or known.sha256
        if sha256 != promised or known.made_of != self.made_of or self.listed_size not in (-1, copy.stat().st_size):
            raise ShardDamagedError(f"{copy} is not the shard that is listed")
        return sha256

    def index_of_copy(self, size: int, sha256: str) -> ShardIndex:
        """Return the index of the copy, whose bytes are right; one that was not kept is made anew.

        Raises `ShardDamagedError` where it is damaged, or that of another shard.
        """
        kept = self.place.index
        is_believed = is_own_file(kept)
        for path in (kept if is_believed else None, self._listed_index):
            if path and path.exists():
                try:
                    index = shardindex.load(path)
                except IndexFormatError as error:
                    raise ShardDamagedError(str(error)) from error
                if index.size != size or (index.sha256 and index.sha256 != sha256):
                    raise ShardDamagedError(f"{path} is the index of another shard")
                return index
        index = self._scanned(self.place.copy, Stored(self.listed.size, self.listed.sha256))
        if not is_believed and (kept.is_symlink() or kept.exists()):
            kept.unlink(missing_ok=True)  # not written over: others may have mapped it
            folders.write(kept, shardindex.dumps(index))
        return index

    @contextlib.contextmanager
    def _file(self) -> Iterator[Path]:
        """Give the compressed file of the shard; one that was fetched has no name, so that none is left behind."""
        if not self._is_remote:
            yield storage.local_path(self._location)
            return
        with tempfile.TemporaryFile(dir=self.place.folder) as file:
            path = Path(f"/proc/self/fd/{file.fileno()}")
            with self._begin_fetch(path) as shard:
                self.retries += shard.result().retries
            yield path

    def _begin_fetch(self, path: Path) -> storage.Fetching:
        size = self.listed.size if self.listed.size >= 0 else None
        return storage.begin_fetch(self._location, path, self._options, size=size, deadline=self.deadline)

    def _listed_index_exists(self) -> bool:
        return self._listed_index is not None and self._listed_index.exists()

    def _known_index(self) -> ShardIndex | None:
        """Return the index that stands beside the shard, or beside index.json, if there is one."""
        if self.sidecar is None:
            try:
                return shardindex.load(self._listed_index) if self._listed_index else None
            except FileNotFoundError:
                return None
        try:
            return shardindex.loads(self.sidecar, f"{self.shown}{shardindex.SUFFIX}")
        except IndexFormatError as error:
            raise ShardDamagedError(str(error)) from error

    def _scanned(self, tar: Path, file: Stored) -> ShardIndex:
        index = tarindex.scan_shard(tar, label=self.shown)
        return dataclasses.replace(index, stored=file) if self.listed.is_compressed else index

    def _check(self, promise: str, found: Stored, expected: Stored) -> None:
        again = "upload it again" if self._is_remote else "fetch or pack it again"
        if expected.size not in (-1, found.size):
            raise ShardDamagedError(
                f"{self.shown} has {found.size:,} bytes but {promise} says {expected.size:,}: {again}"
            )
        if expected.sha256 not in ("", found.sha256):
            raise ShardDamagedError(f"{self.shown} does not have the digest that {promise} gives: {again}")


@functools.cache
def _say(root: Path) -> None:
    """Say once in each process what takes the time and the room."""
    _log.warning("some shards are compressed: each is decompressed once on this node, into %s", root)
