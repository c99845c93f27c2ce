"""`CopiedShard`: a shard that is read through the cache, as the manifest lists it, and its index."""

from __future__ import annotations

import contextlib
import functools

from wdsdist import storage
from wdsdist.cache.folder import digest, store_key
from wdsdist.errors import IndexFormatError, ShardDamagedError, StorageError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest


class CopiedShard:
    """A shard that is read through the cache: its location, and the size and digests that the manifest gives.

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
        self.key_rule = part.key_rule
        """How names in the tar are cut into key and extension, for a shard without an index."""
        self.is_remote = storage.is_remote(self.location)
        self.shown = storage.shown(self.location)
        self.described = self.shown if self.size < 0 else f"{self.shown} of {self.size:,} bytes"
        """The shard and its size, for messages."""
        folder, name = storage.split(self.location)
        self.source = storage.shown(folder)
        """The folder or URL of the shard, without credentials."""
        count, key_rule = int(part.whole.counts[place]), part.whole.extra.get("key_rule")
        identity = digest(f"{self.listed.size} {self.listed.sha256} {count} {key_rule}")[:8]
        self.key = f"{store_key(folder)}/{name.removesuffix('.tar')}-{identity}.tar"
        """The path of the copy in the cache folder, the same in every process."""

    def index_bytes(self, deadline: storage.Deadline) -> bytes | None:
        """Return the bytes of the index of the shard, or ``None``.

        Raises `StorageError` if the store cannot be read.
        """
        if not storage.is_remote(self._manifest.base):
            with contextlib.suppress(FileNotFoundError):
                folder = storage.local_path(self._manifest.base)
                return (folder / shard_index.index_name(self.location, self._manifest.base)).read_bytes()
        known = self._manifest.kept.get(self.location)
        if known is not None and known.checksums is not None:
            return shard_index.dumps(known)
        try:
            return storage.read(storage.beside(self.location, shard_index.SUFFIX), self.options, deadline=deadline)
        except FileNotFoundError:
            return None
        except StorageError:
            if "?" not in self.location:  # a URL that is signed for the shard alone has no index beside it
                raise
            return None

    def loaded(self, content: bytes) -> ShardIndex:
        """Return an index from its bytes. Raises `ShardDamagedError` if it is not the one of this shard."""
        try:
            return self.checked(shard_index.loads(content, f"{self.shown}{shard_index.SUFFIX}"))
        except IndexFormatError as error:
            raise ShardDamagedError(str(error)) from error

    def checked(self, index: ShardIndex) -> ShardIndex:
        """Return an index; raise `ShardDamagedError` if it does not agree with the manifest."""
        return self._manifest.check_index(self._number, index, self.shown)

    @functools.cached_property
    def version(self) -> str:
        """The first `current_version` of this object."""
        return self.current_version()

    def current_version(self) -> str:
        """Return size and stamp of a local file, which differ for a later one; ``""`` for a remote shard.

        Raises `NotFoundError`, or `StorageError` if the file cannot be read.
        """
        if self.is_remote:
            return ""
        entry = storage.stat(self.location)
        return f"{entry.size} {entry.stamp}"

    def stored_size(self, deadline: storage.Deadline) -> int:
        """Return the bytes of the shard in its store. Raises `NotFoundError` or `StorageError`."""
        return (
            self.listed.size
            if self.listed.size >= 0
            else storage.stat(self.location, self.options, deadline=deadline).size
        )
