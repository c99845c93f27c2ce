"""`ShardSource`: opens the shards of a data set for batches. `LocalShards` maps the files of a local data set.

Shards that are remote, compressed or staged come from `wdsdist.cache.cached_shards`, which is not loaded without need.
"""

from __future__ import annotations

import functools
import mmap
import operator
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.files import mapped, reading, sha256
from wdsdist.errors import ShardDamagedError
from wdsdist.shards import checksums
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest

if TYPE_CHECKING:
    from wdsdist.storage.compression import Expansion

Members = Callable[[ShardIndex], Int64s]
"""Returns the members of a shard that are needed, by their numbers in its index."""
Needs = Mapping[int, Members | None]
"""The shards that a batch needs, each with the members that it reads; ``None`` for all."""

OPEN_SHARDS = 64
"""Shards that stay open at once; more are closed in the order of their last use."""
_BETWEEN_LOOKS = 0.1
"""Seconds until the times of an open file are looked at again; its size is looked at for each batch."""
_LOOKS = 8
"""Samples whose headers are looked at when a shard is opened: a shard replaced by another may have the same size."""


class CacheOptions(NamedTuple):
    """Where copies of remote shards are kept, and how many."""

    folder: Path | None = None
    """By default ``shards`` in the user's cache folder."""
    limit: int | None = None
    """Bytes that all copies may take at any time, with their indexes. Without a limit nothing is evicted."""
    timeout: float = 300.0
    """Seconds for each download, all retries and waits included."""


class Counters(NamedTuple):
    """Statistics of the cache: of one process, or of one event."""

    shards_fetched: int = 0
    """Copies made of remote shards: each shard counts once, unless it was evicted in between."""
    bytes_fetched: int = 0
    """Bytes that came from stores."""
    bytes_cached: int = 0
    """Bytes of samples that were in the cache before this data set was opened, each counted when it is first read."""
    retries: int = 0
    """Requests to the store that were retried after a failure, and fetches of bytes that were wrong."""

    def __sub__(self, before: Counters) -> Counters:
        return Counters(*map(operator.sub, self, before))

    def plus(self, more: Counters) -> Counters:
        """Return the sums."""
        return Counters(*map(operator.add, self, more))


class OpenShard:
    """One open shard of a data set: its index, and its bytes, the tar, until they are released."""

    def __init__(self, manifest: Manifest, number: int, index: ShardIndex, content: memoryview) -> None:
        self.number = number
        """Its number in the data set."""
        self.picks = picks_of(manifest, number)
        """uint32 [samples]: of a view the chosen samples, by their numbers here; ``None`` if all are."""
        part, position = manifest.part(number)
        self.name = storage.split(part.location(position))[1]
        self.dataset = manifest.label(number)
        """The name of its data set, if several are joined."""
        self.index = index
        self.content = content
        # A view gives a number in a third of the time that an array takes.
        self._starts = index.sample_starts.data
        self._offsets = index.offsets.data
        self._sizes = index.sizes.data
        self._ids = index.extension_ids.data
        self._key_starts = index.key_starts.data
        self._key_bytes = index.key_bytes.data
        self._extensions = tuple(extension.lower() for extension in index.extensions)
        self.only_layout: tuple[str, ...] | None = None
        """The extensions of each sample's members, if all samples have the same."""
        self.only_layout = self.layout(0) if index.is_uniform else None

    @property
    def num_samples(self) -> int:
        """Samples of the data set in the shard: in a view, the chosen ones."""
        return self.index.num_samples if self.picks is None else len(self.picks)

    def stored(self, sample: int) -> int:
        """Return the number in the shard of a sample of the data set: in a view, the numbers of chosen ones differ."""
        return sample if self.picks is None else int(self.picks[sample])

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        return str(self.key_bytes(sample), "utf-8", "surrogateescape")

    def key_bytes(self, sample: int) -> memoryview:
        """Return the key of a sample as bytes of the index, without decoding."""
        starts = self._key_starts
        return self._key_bytes[starts[sample] : starts[sample + 1]]

    def layout(self, sample: int) -> tuple[str, ...]:
        """Return the extensions of a sample's members, in lower case."""
        if self.only_layout is not None:
            return self.only_layout
        return tuple(
            [self._extensions[number] for number in self._ids[self._starts[sample] : self._starts[sample + 1]]]
        )

    def member(self, sample: int, number: int) -> memoryview:
        """Return the data of one member of a sample, by its number in the layout."""
        member = self._starts[sample] + number
        start = self._offsets[member]
        return self.content[start : start + self._sizes[member]]

    def fetch_ranges(self, offsets: Int64s, lengths: Int64s) -> None:
        """Fetch ranges of the tar that a cached copy lacks, without verifying checksums; local shards have all."""

    def verify(self, members: Int64s) -> None:
        """Verify the checksums of members; raise `ShardDamagedError` for the first that differs."""
        wrong = checksums.wrong(self.index, members, self.content)
        if len(wrong):
            raise checksums.damage(self.index, int(wrong[0]), self.name)

    def unzip(self, sample: int, number: int) -> Callable[[bytes, int, int], bytes]:
        """Return the decompressor of one member, within the limit on the decompressed size of the whole shard."""
        return functools.partial(self._expansion.unzip, self._starts[sample] + number)

    @functools.cached_property
    def _expansion(self) -> Expansion:
        from wdsdist.storage.compression import Expansion

        return Expansion(self.index.file.size)


class ShardSource(Protocol):
    """Opens the shards of batches. A source that moves to another process opens them there again."""

    manifest: Manifest
    is_bounded: bool
    """Whether shards make room for others once they are released."""

    def open(self, needs: Needs) -> Mapping[int, OpenShard]:
        """Return the shards that a batch needs; these members may be read until `release`.

        Views of their bytes that are kept longer stay valid.

        Raises `NotFoundError`, `StorageError`, `ShardDamagedError` or `CacheError` if a shard cannot be read.
        """

    def release(self) -> None:
        """Let shards be evicted once nothing refers to their bytes."""

    def with_manifest(self, manifest: Manifest) -> ShardSource:
        """Return a source of other shards, through the same cache."""

    def counters(self) -> Counters:
        """Return the statistics of this process."""


class LocalShards:
    """The shards of a local data set, each mapped and checked when it is first opened.

    Its size, its end and its number of samples must be what the indexes say.
    """

    is_bounded = False

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._open: OrderedDict[int, _MappedShard] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}  # maps stay behind

    def open(self, needs: Needs) -> Mapping[int, OpenShard]:
        opened: dict[int, OpenShard] = {}
        now = time.monotonic()
        for number in needs:
            shard = self._open.get(number)
            if shard is None:
                shard = self._open[number] = _MappedShard(self.manifest, number)
            else:
                shard.check(now)
                self._open.move_to_end(number)
            opened[number] = shard
        while len(self._open) > max(OPEN_SHARDS, len(needs)):
            self._open.popitem(last=False)
        return opened

    def release(self) -> None:
        pass

    def with_manifest(self, manifest: Manifest) -> LocalShards:
        return LocalShards(manifest)

    def counters(self) -> Counters:
        return Counters()


class _MappedShard(OpenShard):
    """A local shard, mapped."""

    def __init__(self, manifest: Manifest, number: int) -> None:
        from wdsdist.shards.shard_indexes import shard_index
        from wdsdist.shards.tar.reader import END

        part, position = manifest.part(number)
        self.path = path = storage.local_path(part.location(position))
        index = shard_index(manifest, number)
        with reading(f"shard {path}"):
            content = mapped(path)
        num_looks = min(_LOOKS, index.num_samples)
        looks = np.arange(num_looks) * index.num_samples // max(1, num_looks)
        if len(wrong := checksums.wrong_headers(index, index.sample_starts[looks], content)):
            raise checksums.damage(index, int(wrong[0]), os.fspath(path))
        if len(content) != index.size or content[-len(END) :] != END:
            raise ShardDamagedError(
                f"shard {path} does not end in the two zero blocks of a whole tar of {index.size:,} bytes: fetch or "
                f"pack it again"
            )
        assert isinstance(content.obj, mmap.mmap)
        self._map, self._looked = content.obj, time.monotonic()
        self._identity = self._identified()
        super().__init__(manifest, number, index, content)

    def check(self, now: float) -> None:
        """Raise `ShardDamagedError` if the file has changed and no longer agrees with its index.

        To read a map beyond the end of a file that was cut kills the process: so this is called before each batch.
        A shard with a new time only may be read on; so may a replaced one, because its map is of the old file.
        """
        is_whole = self._map.size() == self.index.size
        if is_whole and now < self._looked + _BETWEEN_LOOKS:
            return
        identity = self._identified()
        is_replaced = identity[:1] != self._identity[:1]
        is_same = is_replaced or identity == self._identity or sha256(self.path) == self.index.sha256
        if not (is_whole and is_same):
            raise ShardDamagedError(
                f"shard {self.path} was altered while it was being read: end what writes there, and fetch or pack the "
                f"shard again, or run `wdsdist index` if that was on purpose"
            )
        self._looked, self._identity = now, self._identity if is_replaced else identity

    def _identified(self) -> tuple[int, ...]:
        """Return inode, size and times of the file, which change with it; empty if it is gone."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def picks_of(manifest: Manifest, number: int) -> npt.NDArray[np.uint32] | None:
    """Return the samples of a shard that a view has, by their numbers there; ``None`` if it is not a view."""
    part, position = manifest.part(number)
    return None if part.picks is None else part.picks.of_shard(position)
