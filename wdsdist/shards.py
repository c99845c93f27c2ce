"""Read samples from the shards of a data set, each mapped into memory when it is first needed."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from pathlib import Path
from typing import Any

from wdsdist import storage, tarindex
from wdsdist.cache import local_shard
from wdsdist.errors import ShardDamagedError, ShardNotFoundError
from wdsdist.manifest import Manifest
from wdsdist.shardindex import ShardIndex
from wdsdist.tarformat import BLOCK, END, is_header_of

_LOOKS = 8
"""Samples whose headers are looked at when a shard is opened: one replaced by another may have the same size."""

_OPEN_SHARDS = 64
"""Shards that stay mapped at once; more are let go in the order of their last use."""


class MappedShard:
    """One shard, mapped and checked against its index."""

    def __init__(self, name: str, index: ShardIndex, content: memoryview, dataset: str = "") -> None:
        self.name = name
        self.dataset = dataset  # its name, where several are joined
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
        self._only_layout = self._layout(0) if index.is_uniform else None

    @property
    def is_uniform(self) -> bool:
        """Whether all samples have the same layout."""
        return self._only_layout is not None

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        starts = self._key_starts
        return str(self._key_bytes[starts[sample] : starts[sample + 1]], "utf-8", "surrogateescape")

    def layout(self, sample: int) -> tuple[str, ...]:
        """Return the extensions of a sample's members, in lower case."""
        return self._only_layout or self._layout(sample)

    def _layout(self, sample: int) -> tuple[str, ...]:
        return tuple(
            [self._extensions[number] for number in self._ids[self._starts[sample] : self._starts[sample + 1]]]
        )

    def members(self, sample: int) -> list[tuple[str, memoryview]]:
        """Return the members of a sample: extension in lower case, and data."""
        layout = self.layout(sample)
        return [(extension, self.member(sample, number)) for number, extension in enumerate(layout)]

    def member(self, sample: int, number: int) -> memoryview:
        """Return the data of one member of a sample, by its place in the layout."""
        place = self._starts[sample] + number
        start = self._offsets[place]
        return self.content[start : start + self._sizes[place]]


class ShardReader:
    """Gives the shards of a data set, each mapped and checked when it is first asked for.

    Its size, its end and its number of samples must be what the indexes say.
    """

    def __init__(self, manifest: Manifest, cache_dir: Path | None = None) -> None:
        self._manifest = manifest
        self._cache_dir = cache_dir
        self._open: OrderedDict[int, MappedShard] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        # Maps stay behind when the reader moves to another process, which opens what it needs.
        return {**self.__dict__, "_open": OrderedDict()}

    def shard(self, number: int) -> MappedShard:
        """Return a shard, opening it if need be."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        shard = self._open[number] = _open_shard(self._manifest, number, self._cache_dir)
        if len(self._open) > _OPEN_SHARDS:
            self._open.popitem(last=False)
        return shard


def _open_shard(manifest: Manifest, number: int, cache_dir: Path | None) -> MappedShard:
    dataset = manifest.label(number)
    manifest, number = manifest.part(number)
    path = local_shard(manifest, number, cache_dir)
    listed = manifest.shard(number)
    index = tarindex.shard_index(path, listed_in=manifest.base)
    try:
        with path.open("rb") as stream:
            content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise ShardNotFoundError(f"shard {path} does not exist") from error
    listed_size = listed.tar_size if listed.is_compressed else listed.size
    for what, found, promised in (
        ("bytes", len(content), index.size),
        ("bytes", len(content), listed_size if listed_size >= 0 else len(content)),
        ("samples", index.num_samples, listed.num_samples),
    ):
        if found != promised:
            raise ShardDamagedError(
                f"shard {path} has {found:,} {what} but its index says {promised:,}: fetch or pack it again"
            )
    if listed.sha256 and listed.sha256 != index.file.sha256:
        raise ShardDamagedError(
            f"shard {path} was indexed with another digest than index.json gives: run `wdsdist verify` on its folder"
        )
    for sample in sorted({index.num_samples * part // _LOOKS for part in range(_LOOKS)} if index.num_samples else ()):
        extension, offset, _ = index.members(sample)[0]
        if not is_header_of(f"{index.key(sample)}.{extension}", bytes(content[offset - BLOCK : offset])):
            raise ShardDamagedError(
                f"shard {path} does not hold what its index says (sample {index.key(sample)!r} is not at byte "
                f"{offset:,}): it was replaced by another; fetch or pack it again"
            )
    if content[-len(END) :] != END:
        raise ShardDamagedError(
            f"shard {path} does not end in the two zero blocks of a whole tar: fetch or pack it again"
        )
    return MappedShard(storage.split(manifest.location(number))[1], index, content, dataset)
