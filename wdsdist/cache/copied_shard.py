"""`CopiedShard`: a shard that is read through the cache, as the manifest lists it, and its index."""

from __future__ import annotations

from wdsdist import storage
from wdsdist.cache.folder import digest, store_key
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.shard_indexes import shard_index


class CopiedShard:
    """A shard that is read through the cache: its location, and the size and digests that the manifest gives.

    Raises `NotFoundError`, or `StorageError` if a local file cannot be read.
    """

    def __init__(self, manifest: Manifest, number: int) -> None:
        self._manifest, self._number = manifest, number
        part, position = manifest.part(number)
        listed = part.shard(position)
        self.is_compressed = listed.is_compressed
        """Whether it is fetched and unpacked as a whole."""
        self.location = part.location(position)
        self.options = part.client_options
        self.is_remote = storage.is_remote(self.location)
        self.shown = storage.shown(self.location)
        size = int(manifest.read_sizes[number])
        self.described = self.shown if size < 0 else f"{self.shown} of {size:,} bytes"
        """The shard and its size, for messages."""
        folder, name = storage.split(self.location)
        self.source = storage.shown(folder)
        """The folder or URL of the shard, without credentials."""
        notes = part.whole.extra
        content = listed.sha256 or notes.get("stamps", "")
        version = f"{name} {listed.size} {content} {part.whole.counts[position]} {notes.get('key_rule')}"
        if not self.is_remote:
            version += f" {storage.stat(self.location).stamp}"
        identity = digest(version)[:8]
        self.key = f"{store_key(folder)}/{name.removesuffix('.tar')[:50]}-{identity}.tar"  # at most 255 bytes
        """The path of the copy in the cache folder, the same in every process."""

    def index(self, deadline: storage.Deadline) -> ShardIndex:
        """Load the shard index from the store, or scan the tar to build it. Raises what `shard_index` raises."""
        return shard_index(self._manifest, self._number, deadline=deadline, keep=False)

    def checked(self, index: ShardIndex) -> ShardIndex:
        """Return an index; raise `ShardDamagedError` if it does not agree with the manifest."""
        part, position = self._manifest.part(self._number)
        return part.check_index(position, index, self.shown)
