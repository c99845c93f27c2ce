"""The request for a copy of one shard: its manifest entry, store entry, index, paths and deadline."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from wdsdist import storage
from wdsdist._util.ownership import read_own
from wdsdist.cache.folders import CopyPaths, copy_paths
from wdsdist.errors import IndexFormatError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest, Shard

LEAST_BYTES = 1 << 20
"""Bytes of a shard below which all of it comes about as soon as a part."""

_LAST_LOOK = 2.0
"""Seconds to ask the store for the error, after the timeout of a shard that another process was fetching."""


class ShardRequest:
    """A request for a copy of a shard before a deadline. Answers of the store are kept, so that each is asked for once.

    Args:
        manifest: the data set.
        number: which of its shards.
        root: the cache folder.
        deadline: for everything that is done for this request.
        is_ahead: whether nobody waits for it yet.
    """

    def __init__(
        self, manifest: Manifest, number: int, root: Path, deadline: storage.Deadline, *, is_ahead: bool = False,
        is_first: bool = True,
    ) -> None:  # fmt: skip
        self._given = (manifest, number, root)
        self._sidecar: tuple[bytes | None] | None = None  # once it was asked for
        self.is_ahead = is_ahead
        self.is_first = is_first
        """Whether nothing that was kept has turned out to be wrong."""
        manifest, number = manifest.part(number)
        self.deadline = deadline
        self.paths: CopyPaths = copy_paths(root, manifest, number)
        self.listed: Shard = manifest.shard(number)
        self.listed_size = int(manifest.read_sizes[number])
        """Bytes of the copy, as the manifest says; -1 where it does not."""
        self.location = manifest.location(number)
        self.key_rule = manifest.key_rule
        self._promised = int(manifest.whole.counts[number]), manifest.whole.extra.get("key_rule")
        self.is_remote = storage.is_remote(self.location)
        self.shown = storage.shown(self.location)
        self.options = manifest.client_options
        self._without_index = manifest.kept.lacking
        here = None if storage.is_remote(manifest.base) else storage.local_path(manifest.base)
        self.listed_index = here and here / manifest.index_name(number)
        """Where its index may lie beside the index.json that lists it; ``None`` for a remote data set."""

    def again(self) -> ShardRequest:
        """Return the same request without the kept answers of the store, and without the index of a sparse copy."""
        return ShardRequest(*self._given, self.deadline, is_ahead=self.is_ahead, is_first=False)

    @property
    def may_have_parts(self) -> bool:
        """Whether the shard may be fetched in parts, into a sparse copy."""
        return self.is_remote and not self.listed.is_compressed and self.listed_size >= LEAST_BYTES

    @property
    def described(self) -> str:
        """The shard and its size, for messages."""
        return self.shown if self.listed_size < 0 else f"{self.shown} of {self.listed_size:,} bytes"

    @functools.cached_property
    def size(self) -> int:
        """Bytes of the copy; -1 where neither the manifest, nor the index, nor the store says."""
        if self.listed_size >= 0:
            return self.listed_size
        if self.listed.is_compressed:
            index = self.known_index()
            return -1 if index is None else index.size
        if not self.is_remote:
            return self._stat().st_size
        try:
            return storage.stat(self.location, self.options, deadline=self.deadline).size
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.shown} does not exist") from error

    @property
    def sidecar(self) -> bytes | None:
        """The bytes of the index beside the shard; ``None`` where there is none, or none is needed."""
        # Not a `cached_property`: before Python 3.12 one request at a time would fetch its index.
        if self._sidecar is None:
            self._sidecar = (self._read_sidecar(),)
        return self._sidecar[0]

    def _read_sidecar(self) -> bytes | None:
        if self.has_listed_index() or (self.is_first and self.location in self._without_index):
            return None
        # It may be evicted at any time.
        if self.is_first and self.paths.sparse.exists() and (kept := self._kept_index()) is not None:
            return kept
        try:
            index = storage.beside(self.location, shard_index.SUFFIX)
            return storage.read(index, self.options, deadline=self.deadline)
        except OSError as error:
            is_signed = "?" in self.location and getattr(error, "kind", "") not in storage.PASSING
            if not (is_signed or isinstance(error, FileNotFoundError)):
                raise
            self._without_index.add(self.location)
            return None

    def _kept_index(self) -> bytes | None:
        """Return the bytes of the index in the cache; ``None`` where there is none that is listed."""
        kept = read_own(self.paths.index)
        try:
            return kept if kept is not None and self.lists(shard_index.loads(kept, self.shown)) else None
        except IndexFormatError:
            return None

    def lists(self, index: ShardIndex) -> bool:
        """Return whether an index has the sample count and key rule of the manifest; an outdated one may not."""
        count, key_rule = self._promised
        return index.num_samples == count and key_rule in (None, index.key_rule)

    def index_bytes(self, *, ask: bool) -> int:
        """Return the bytes to reserve for the index.

        With ``ask`` the store is asked, which takes a round trip. Otherwise, and for an index that has to be made, an
        estimate, which is ample unless members are very small.
        """
        if ask and self.sidecar is not None:
            return len(self.sidecar)
        if self.listed_index and self.listed_index.exists():
            return self.listed_index.stat().st_size if self.keeps_index else 0
        return max(0, self.size) // 16 + (1 << 16)

    @property
    def keeps_index(self) -> bool:
        """Whether the index lies beside the copy, wherever it is listed: under another name, or off a slow mount."""
        return self.listed.is_compressed or not self.is_remote

    @property
    def extra_bytes(self) -> int:
        """Bytes needed beside the copy until it is complete: those of the compressed file."""
        if not (self.listed.is_compressed and self.is_remote):
            return 0
        index = self.known_index() if self.listed.size < 0 else None
        return max(0, self.listed.size if index is None else index.file.size)

    def made_of(self) -> str:
        """Return the identity of a compressed file, its size and digest; of any local one its times and inode."""
        if self.is_remote:
            return f"{self.listed.size} {self.listed.sha256}" if self.listed.is_compressed else ""
        found = self._stat()
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"

    def meet_error(self) -> None:
        """Request one byte of the shard, to raise the store's error that keeps another process from its download.

        Raises `NotFoundError` or `StorageError`; returns where the byte comes, or only the whole shard would.
        """
        if not self.is_remote:
            self._stat()
            return
        deadline, byte = storage.Deadline(_LAST_LOOK), [range(1)]
        with (
            contextlib.suppress(storage.NoRangesError),
            storage.begin_fetch(
                self.location, Path(os.devnull), self.options, deadline=deadline, ranges=byte
            ) as fetching,
        ):
            fetching.result()

    def _stat(self) -> os.stat_result:
        with self.reading() as path:
            return path.stat()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Path]:
        """Yield the path of a local shard. Raises `NotFoundError` or `StorageError` where it cannot be read."""
        try:
            yield storage.local_path(self.location)
        except FileNotFoundError as error:
            raise NotFoundError(f"shard {self.location} does not exist") from error
        except OSError as error:
            raise StorageError(f"shard {self.location} cannot be read: {error.strerror}") from error

    def has_listed_index(self) -> bool:
        """Return whether the index is in the folder of the index.json that lists the shard."""
        return self.listed_index is not None and self.listed_index.exists()

    def known_index(self) -> ShardIndex | None:
        """Return the index beside the shard or beside index.json; ``None`` where there is none."""
        if self.sidecar is None:
            try:
                return shard_index.load(self.listed_index) if self.listed_index else None
            except FileNotFoundError:
                return None
        try:
            return shard_index.loads(self.sidecar, f"{self.shown}{shard_index.SUFFIX}")
        except IndexFormatError as error:
            raise ShardDamagedError(str(error)) from error
