"""Fetch one shard into the file that is ready for it, and make sure that it is what the manifest lists."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from wdsdist import shardindex, storage, tarindex
from wdsdist.cache.places import Place
from wdsdist.errors import IndexFormatError, ShardDamagedError, ShardNotFoundError
from wdsdist.manifest import Manifest, Shard
from wdsdist.shardindex import ShardIndex

_ATTEMPTS = 3
"""Times that a shard is fetched whose bytes are wrong."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A shard that has proved to be right."""

    index: ShardIndex
    sidecar: bytes | None
    """The index as it is kept beside the copy; none where it stands in the folder of index.json."""
    sha256: str
    retries: int


class Wanted:
    """A remote shard that is to be had before a deadline; what the store says of it is asked once."""

    def __init__(self, manifest: Manifest, number: int, place: Place, deadline: float) -> None:
        self.place = place
        self.deadline = deadline
        """A time of ``time.monotonic``."""
        self.listed: Shard = manifest.shard(number)
        self.shown = storage.shown(manifest.location(number))
        self._location = manifest.location(number)
        self._options = manifest.storage_options
        self._listed_index = (
            None if storage.is_remote(manifest.base) else storage.local_path(manifest.base) / place.index.name
        )
        """Where its index may stand beside the index.json that lists it."""

    @functools.cached_property
    def size(self) -> int:
        """Bytes of the copy; -1 where neither the manifest nor the store says."""
        if self.listed.size >= 0:
            return self.listed.size
        return self.look().size

    @functools.cached_property
    def sidecar(self) -> bytes | None:
        """The index beside the shard in its store; none where there is none, or none is needed."""
        if self._listed_index and self._listed_index.exists():
            return None
        try:
            return storage.read(storage.beside(self._location, shardindex.SUFFIX), self._options)
        except FileNotFoundError:
            return None

    @property
    def index_bytes(self) -> int:
        """Bytes to reserve for the index; of one that has to be made, about what members of some size give."""
        if self.sidecar is not None:
            return len(self.sidecar)
        return 0 if self._listed_index and self._listed_index.exists() else self.size // 16 + (1 << 16)

    def fetch(self) -> Fetched:
        """Fetch the shard into its part, for which there is room, until its bytes are right.

        Raises `ShardNotFoundError` and `StorageError` as storage does, `ShardDamagedError` where it is not what the
        manifest and the index beside it promise.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._fetch_once(attempt)
            except ShardDamagedError as error:
                if attempt + 1 == _ATTEMPTS or time.monotonic() > self.deadline:
                    raise ShardDamagedError(f"{error} (after {attempt + 1} attempts)") from error
                self.__dict__.pop("sidecar", None)  # it may be the one that came wrong
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _fetch_once(self, retries: int) -> Fetched:
        part = self.place.part
        # Whatever this does, the part keeps its inode. A shard that has to be unpacked is unpacked here, into the part.
        storage.fetch(self._location, part, self._options)
        size, sha256 = part.stat().st_size, storage.sha256(part)
        self._check("its index.json", size, sha256, self.listed.size, self.listed.sha256)
        sidecar = self.sidecar
        if sidecar is not None:
            try:
                index = shardindex.loads(sidecar, f"{self.shown}{shardindex.SUFFIX}")
            except IndexFormatError as error:
                raise ShardDamagedError(str(error)) from error
            self._check("the index beside it", size, sha256, index.size, index.sha256)
        elif self._listed_index and self._listed_index.exists():
            index = shardindex.load(self._listed_index)
        else:
            index = tarindex.scan_shard(part, label=self.shown)
            sidecar = shardindex.dumps(index)
        return Fetched(index, sidecar, sha256, retries)

    def look(self) -> storage.Entry:
        """Return what the store says of the shard. Raises `ShardNotFoundError` or `StorageError` where it does not."""
        try:
            return storage.entry(self._location, self._options)
        except FileNotFoundError as error:
            raise ShardNotFoundError(f"{self.shown} does not exist") from error

    def check_copy(self, known: str, *, is_trusted: bool) -> str:
        """Return the digest of the copy. Raises `ShardDamagedError` where it is not the shard that is listed.

        ``known`` is its digest as it was verified; it is trusted where the file has not changed since.
        """
        copy = self.place.copy
        sha256 = known if is_trusted else storage.sha256(copy)
        promised = self.listed.sha256 or known
        if sha256 != promised or 0 <= self.listed.size != copy.stat().st_size:
            raise ShardDamagedError(f"{copy} is not the shard that is listed")
        return sha256

    def index_of_copy(self, size: int, sha256: str) -> ShardIndex:
        """Return the index of the copy, whose bytes are right; one that was not kept is made anew.

        Raises `ShardDamagedError` where it is damaged, or that of another shard.
        """
        for path in (self.place.index, self._listed_index):
            if path and path.exists():
                try:
                    index = shardindex.load(path)
                except IndexFormatError as error:
                    raise ShardDamagedError(str(error)) from error
                if index.size != size or (index.sha256 and index.sha256 != sha256):
                    raise ShardDamagedError(f"{path} is the index of another shard")
                return index
        return tarindex.scan_shard(self.place.copy)

    def _check(self, promise: str, size: int, sha256: str, listed_size: int, listed_sha256: str) -> None:
        if 0 <= listed_size != size:
            raise ShardDamagedError(
                f"{self.shown} has {size:,} bytes but {promise} says {listed_size:,}: upload it again"
            )
        if listed_sha256 and sha256 != listed_sha256:
            raise ShardDamagedError(f"{self.shown} does not have the digest that {promise} gives: upload it again")
