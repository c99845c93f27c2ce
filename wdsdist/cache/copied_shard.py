"""`CopiedShard`: a shard that is read through the cache, as the manifest lists it, and its index."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from wdsdist import storage
from wdsdist.cache.folder import digest, store_key
from wdsdist.errors import IndexFormatError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest


class CopiedShard:
    """One shard of a data set that is read through the cache: where it lies, and what is promised of it.

    Args:
        manifest: the data set.
        number: which of its shards.
    """

    def __init__(self, manifest: Manifest, number: int) -> None:
        self.size = int(manifest.read_sizes[number])
        """Bytes of the tar, as the manifest says; -1 if it does not."""
        part, place = manifest.part(number)
        self._manifest, self._number = part, place
        self.listed = part.shard(place)
        self.location = part.location(place)
        self.options = part.client_options
        self.is_remote = storage.is_remote(self.location)
        self.shown = storage.shown(self.location)
        folder, name = storage.split(self.location)
        self.source = storage.shown(folder)
        """The folder or URL of the shard, without credentials."""
        count, key_rule = int(part.whole.counts[place]), part.whole.extra.get("key_rule")
        identity = digest(f"{self.listed.size} {self.listed.sha256} {count} {key_rule}")[:8]
        self.key = f"{store_key(folder)}/{name.removesuffix('.tar')}-{identity}.tar"
        """The path of the copy in the cache folder, the same in every process."""

    @property
    def has_ranges(self) -> bool:
        """Whether parts of the tar can be fetched; a compressed shard is fetched and unpacked as a whole."""
        return not self.listed.is_compressed

    @property
    def described(self) -> str:
        """The shard and its size, for messages."""
        return self.shown if self.size < 0 else f"{self.shown} of {self.size:,} bytes"

    @functools.cached_property
    def listed_index(self) -> Path | None:
        """The index in the local folder of the index.json that lists the shard; ``None`` if there is no such file."""
        if storage.is_remote(self._manifest.base):
            return None
        path = storage.local_path(self._manifest.base) / self._manifest.index_name(self._number)
        return path if path.exists() else None

    @property
    def keeps_index(self) -> bool:
        """Whether the index is copied into the cache: not if it lies on a local disk already."""
        return self.listed_index is None or not self.is_remote

    def index_bytes(self, deadline: storage.Deadline) -> bytes | None:
        """Return the bytes of the index of the shard; ``None`` if there is none.

        Raises `StorageError` if the store cannot be read.
        """
        if self.listed_index is not None:
            return self.listed_index.read_bytes()
        known = self._manifest.kept.get(self.location)
        if known is not None and known.checksums is not None:
            return shard_index.dumps(known)
        lacking = self._manifest.kept.lacking
        if self.location in lacking:
            return None
        try:
            return storage.read(storage.beside(self.location, shard_index.SUFFIX), self.options, deadline=deadline)
        except FileNotFoundError:
            pass
        except StorageError:
            if "?" not in self.location:  # a URL that is signed for the shard alone has no index beside it
                raise
        lacking.add(self.location)
        return None

    def loaded(self, content: bytes) -> ShardIndex:
        """Return an index from its bytes. Raises `ShardDamagedError` if it is not the one of this shard."""
        try:
            return self.checked(shard_index.loads(content, f"{self.shown}{shard_index.SUFFIX}"))
        except IndexFormatError as error:
            raise ShardDamagedError(str(error)) from error

    def checked(self, index: ShardIndex) -> ShardIndex:
        """Return an index; raise `ShardDamagedError` if it does not agree with the manifest."""
        for what, size, listed in (
            ("the shard", index.file.size, self.listed.size), ("the tar in the shard", index.size, self.size),
        ):  # fmt: skip
            if listed not in (-1, size):
                raise ShardDamagedError(
                    f"{self.shown}: by its index, {what} has {size:,} bytes, and {listed:,} by index.json: upload it "
                    f"again"
                )
        if self.listed.sha256 and self.listed.sha256 != index.file.sha256:
            raise ShardDamagedError(
                f"{self.shown} does not have the digest that index.json gives, by its index: upload both again"
            )
        self._manifest.check_count(self._number, index.num_samples, self.shown)
        return index

    @functools.cached_property
    def version(self) -> str:
        """The version of a local file that was found first, as `current_version` returns it."""
        return self.current_version()

    def current_version(self) -> str:
        """Return what tells a local file from a later one at its path: times and inode; of a remote shard ``""``."""
        if self.is_remote:
            return ""
        found = self._stat()
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"

    def stored_size(self, deadline: storage.Deadline) -> int:
        """Return the bytes of the shard in its store. Raises `NotFoundError` or `StorageError`."""
        if self.listed.size >= 0:
            return self.listed.size
        if not self.is_remote:
            return self._stat().st_size
        try:
            return storage.stat(self.location, self.options, deadline=deadline).size
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.shown} does not exist") from error

    @property
    def key_rule(self) -> str:
        """How names in the tar are cut into key and extension, for a shard without an index."""
        return self._manifest.key_rule

    def _stat(self) -> os.stat_result:
        try:
            return storage.local_path(self.location).stat()
        except FileNotFoundError as error:
            raise NotFoundError(f"shard {self.location} does not exist") from error
        except OSError as error:
            raise StorageError(f"shard {self.location} cannot be read: {error.strerror}") from error
