"""Read samples from the shards of a data set, each mapped into memory when it is first needed."""

from __future__ import annotations

import functools
import mmap
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.files import open_files_remedy
from wdsdist.cache import Members, PartNeeds, Pinned, PinnedPart, ShardCache
from wdsdist.errors import NotFoundError, ShardDamagedError, StorageError
from wdsdist.samples.fields import Fields
from wdsdist.samples.marks import Part
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.quarantine import BadEntry
from wdsdist.shards.tar import END, is_member_at
from wdsdist.storage.compression import Expansion

_LOOKS = 8
"""Samples whose headers are looked at when a shard is opened: one replaced by another may have the same size."""

_OPEN_SHARDS = 64
"""Shards that stay mapped at once; more are let go in the order of their last use."""

Taken = Callable[[int], Int64s | None]
"""Returns some samples of a shard, by their numbers in the data set's shard; ``None`` for all."""
Reads = tuple[Fields, Int64s]
"""What is read of a shard: the fields, and the samples by their numbers in the data set's shard."""

_RELEASED = memoryview(b"")
_RELEASED.release()  # to read it is an error


class MappedShard:
    """One shard, mapped and checked against its index."""

    def __init__(
        self,
        name: str,
        pinned: Pinned,
        content: mmap.mmap,
        dataset: str,
        picks: npt.NDArray[np.uint32] | None,
    ) -> None:
        index = pinned.index
        self.picks = picks
        """uint32 [samples]: of a view the chosen samples, by their numbers here; ``None`` where all are."""
        self.name = name
        self.dataset = dataset  # its name, where several are joined
        self.index = index
        self.pinned = pinned
        self._map = content
        self._owner: weakref.ref[npt.NDArray[np.uint8]] | None = None
        self.content = self._view()
        """The tar; after `release` nothing that can be read."""
        # A view gives a number in a third of the time that an array takes.
        self._starts = index.sample_starts.data
        self._offsets = index.offsets.data
        self._sizes = index.sizes.data
        self._ids = index.extension_ids.data
        self._key_starts = index.key_starts.data
        self._key_bytes = index.key_bytes.data
        self._extensions = tuple(extension.lower() for extension in index.extensions)
        self.is_uniform = index.is_uniform  # which the index looks for in all samples
        self._only_layout: tuple[str, ...] | None = None
        if self.is_uniform:
            self._only_layout = self.layout(0)

    def hold(self) -> bool:
        """Make the bytes of the shard readable, and say whether they are still there and what they were.

        To read a map beyond the end of a file that was cut kills the process: so this is asked before each batch.
        Raises `ShardDamagedError` where a local shard was altered.
        """
        if not self.pinned.lock():
            if not self.pinned.is_in_place:
                return False
            self.pinned.check_in_place()
        if self.content is _RELEASED:
            self.content = self._view()
        return True

    def release(self) -> None:
        """Let the shard be evicted as soon as no view of its bytes is left."""
        if not self.pinned.is_in_place:
            self.content = _RELEASED

    def _view(self) -> memoryview:
        if self.pinned.is_in_place:
            return memoryview(self._map)
        owner = None if self._owner is None else self._owner()
        if owner is None:
            # Every view of a part keeps this array alive. Were the shard evicted before the last view is gone, to
            # read that one would kill the process.
            owner = np.frombuffer(self._map, np.uint8)
            self._owner = weakref.ref(owner)
            weakref.finalize(owner, self.pinned.unlock).atexit = False
        return owner.data

    @property
    def num_samples(self) -> int:
        """Samples of the data set in the shard: in a view, the chosen ones."""
        return self.index.num_samples if self.picks is None else len(self.picks)

    def stored(self, sample: int) -> int:
        """Return where a sample of the data set lies in the shard: in a view, the numbers of chosen ones differ."""
        return sample if self.picks is None else int(self.picks[sample])

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        starts = self._key_starts
        return str(self._key_bytes[starts[sample] : starts[sample + 1]], "utf-8", "surrogateescape")

    def layout(self, sample: int) -> tuple[str, ...]:
        """Return the extensions of a sample's members, in lower case."""
        if self._only_layout is not None:
            return self._only_layout
        return tuple(
            [self._extensions[number] for number in self._ids[self._starts[sample] : self._starts[sample + 1]]]
        )

    def member(self, sample: int, number: int) -> memoryview:
        """Return the data of one member of a sample, by its place in the layout."""
        place = self._starts[sample] + number
        start = self._offsets[place]
        return self.content[start : start + self._sizes[place]]

    def unzip(self, sample: int, number: int) -> Callable[[bytes, int, int], bytes]:
        """Return the decompressor of one member, within the limit on the decompressed size of the whole shard."""
        return functools.partial(self._expansion.unzip, self._starts[sample] + number)

    @functools.cached_property
    def _expansion(self) -> Expansion:
        return Expansion(self.index.file.size, len(self.index.sizes))


class PartOfShard(MappedShard):
    """A sparse copy of a shard, mapped.

    Its reader asks for what a batch needs before; what else is read, such as a substitute, is fetched by itself.
    """

    pinned: PinnedPart

    def __init__(self, name: str, pinned: PinnedPart, *of: Any) -> None:
        super().__init__(name, pinned, *of)
        self.fetch: Callable[[int], MappedShard | None] = lambda member: None
        """Fetches one member; returns the whole shard where that was needed."""
        self._is_there = np.zeros(len(pinned.index.offsets), np.bool_)

    def has(self, members: Int64s) -> bool:
        """Return whether members are there."""
        unknown = members[~self._is_there[members]]
        if len(unknown) and not len(self.pinned.missing(unknown)):
            self._is_there[unknown] = True
        return bool(self._is_there[members].all())

    def member(self, sample: int, number: int) -> memoryview:
        place = self._starts[sample] + number
        if not self._is_there[place] and not self.has(np.array([place])):
            whole = self.fetch(place)
            if whole is not None:
                return whole.member(sample, number)
        return super().member(sample, number)


class ShardReader:
    """Gives the shards of a data set, each mapped and checked when it is first asked for.

    Its size, its end and its number of samples must be what the indexes say. What it gives may be read until
    `release`; views that are kept longer keep their shard from being evicted.
    """

    def __init__(self, manifest: Manifest, cache: ShardCache | None = None) -> None:
        self._manifest = manifest
        self.cache = cache or ShardCache()
        self._open: OrderedDict[int, MappedShard] = OrderedDict()
        self._altered: set[int] = set()  # copies that have to be fetched anew
        self._is_cached = bool(manifest.is_copied.any())
        self.taken: Taken | None = None
        """Where an epoch takes few samples of a shard for this node, which these are."""
        self.along: Callable[[int], Int64s] | None = None
        """Returns samples of a shard that are fetched along with those that are read, where these come in ranges."""

    def __getstate__(self) -> dict[str, Any]:
        # Maps stay behind when the reader moves to another process, which opens what it needs.
        return {**self.__dict__, "_open": OrderedDict(), "_altered": set(), "taken": None, "along": None}

    @property
    def is_bounded(self) -> bool:
        """Whether shards make room for others once they are released."""
        return self.cache.limit is not None and self._is_cached

    @property
    def has_parts(self) -> bool:
        """Whether samples are parts of records."""
        return self._manifest.has_parts

    def parts(self, shards: Int64s, samples: Int64s) -> list[Part | None]:
        """Return which part of its record each sample is; ``None`` for each where the data set has whole samples."""
        found = self._manifest.parts_of(shards, samples)
        return [None] * len(shards) if found is None else [Part(*numbers) for numbers in found.T.tolist()]

    def bad_entry(self, number: int, key: str, field: str, reason: str) -> BadEntry:
        """Return the entry of a bad sample of a shard in a quarantine file."""
        part, shard = self._manifest.part(number)
        label = self._manifest.label(number)
        return BadEntry(key, part.shown_name(shard), field, reason, part.whole.fingerprint, label)

    def shard(self, number: int) -> MappedShard:
        """Return a shard, opened as `hold` opens those of a batch."""
        return self.hold((number,))[number]

    def hold(self, numbers: Collection[int], reads: Callable[[int], Reads] | None = None) -> dict[int, MappedShard]:
        """Open and return all shards that a batch needs; none of them goes until `release`. Looks for altered ones.

        To ask for one after the other would not do: while it waits for one, others may evict those that came before.
        Where ``reads`` returns what is read of each shard, some may be fetched in parts.
        """
        # Asked for only where it matters: nearly always all shards are held.
        needs = (
            functools.cache(lambda number: self._needs(number, *reads(number))) if reads and self._is_cached else None
        )
        try:
            # Once more after each wait, in which all were let go.
            while missing := [number for number in numbers if not self._is_held(number, needs)]:
                parts = self._pin_parts({number: needs(number) for number in missing}, numbers) if needs else ()
                for number in missing:
                    if number in parts:
                        continue
                    anew = number in self._altered
                    pinned = self.cache.pin(self._manifest, number, batch=numbers, let_go=self.release, anew=anew)
                    self._altered.discard(number)
                    self._open[number] = _map_shard(self._manifest, number, pinned)
        finally:
            self.cache.rest()
        while len(self._open) > max(_OPEN_SHARDS, len(numbers)):
            self._open.popitem(last=False)
        return {number: self._open[number] for number in numbers}

    def release(self) -> None:
        """Let shards be evicted once nothing refers to their bytes; they stay mapped, to be looked at again."""
        for shard in self._open.values():
            shard.release()

    def _is_held(self, number: int, needs: Callable[[int], PartNeeds] | None) -> bool:
        if number not in self._open:
            return False
        self._open.move_to_end(number)
        shard = self._open[number]
        if shard.hold():
            return needs is None or not isinstance(shard, PartOfShard) or shard.has(needs(number).now(shard.index))
        if self._open.pop(number).pinned.must_be_replaced:  # views keep the altered copy
            self._altered.add(number)
        return False

    def epoch_members(self, number: int, fields: Fields) -> Members | None:
        """Return which members of a shard an epoch reads; ``None`` where that is all of them."""
        picks, taken = _picks(self._manifest, number), self.taken and self.taken(number)
        if picks is None and taken is None and fields.are_all:
            return None
        chosen: slice | npt.NDArray[Any] = slice(None) if taken is None else taken
        if picks is not None:
            chosen = np.unique(picks[chosen])
        return lambda index: fields.members(index, np.arange(index.num_samples)[chosen])

    def _needs(self, number: int, fields: Fields, samples: Int64s) -> PartNeeds:
        """Return which members are read of a shard: now, and in an epoch."""
        picks = _picks(self._manifest, number)
        if self.along is not None:
            samples = np.union1d(samples, self.along(number))
        stored = samples if picks is None else picks[samples].astype(np.int64)
        return PartNeeds(lambda index: fields.members(index, stored), self.epoch_members(number, fields))

    def _pin_parts(self, needs: dict[int, PartNeeds], batch: Collection[int]) -> Collection[int]:
        """Open shards of which byte ranges suffice as sparse copies with the members needed; return their numbers."""
        needs = {number: one for number, one in needs.items() if number not in self._altered}
        for number, one in needs.items():
            shard = self._open.get(number)
            if isinstance(shard, PartOfShard):
                needs[number] = replace(one, pinned=shard.pinned)
        parts = self.cache.pin_parts(self._manifest, needs, batch=batch, let_go=self.release) if needs else {}
        for number, pinned in parts.items():
            if pinned is not needs[number].pinned:
                shard = self._open[number] = _map_shard(self._manifest, number, pinned)
                assert isinstance(shard, PartOfShard)
                shard.fetch = functools.partial(self._fetch_member, number)
        return parts

    def _fetch_member(self, number: int, member: int) -> MappedShard | None:
        """Fetch one member into an open sparse copy, or else return the whole shard."""
        shard, members = self._open[number], np.array([member])
        assert isinstance(shard, PartOfShard)
        needs = PartNeeds(lambda _: members, lambda _: members, shard.pinned)
        if self.cache.pin_parts(self._manifest, {number: needs}):
            return None
        return _map_shard(self._manifest, number, self.cache.pin(self._manifest, number))


def _picks(manifest: Manifest, number: int) -> npt.NDArray[np.uint32] | None:
    """Return the samples of a shard that a view has, by their numbers there; ``None`` where it is no view."""
    manifest, number = manifest.part(number)
    return None if manifest.picks is None else manifest.picks.of_shard(number)


def _map_shard(manifest: Manifest, number: int, pinned: Pinned) -> MappedShard:
    path, index = pinned.path, pinned.index
    dataset = manifest.label(number)
    picks = _picks(manifest, number)
    manifest, number = manifest.part(number)
    listed = manifest.whole.shard(number)
    try:
        with path.open("rb") as stream:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise NotFoundError(f"shard {path} does not exist") from error
    except OSError as error:
        raise StorageError(f"shard {path} cannot be opened ({error.strerror}){open_files_remedy(error)}") from error
    listed_size = listed.tar_size if listed.is_compressed else listed.size
    for promised in (index.size, listed_size if listed_size >= 0 else len(content)):
        if len(content) != promised:
            raise ShardDamagedError(
                f"shard {path} has {len(content):,} bytes but its index says {promised:,}: fetch or pack it again"
            )
    manifest.check_count(number, index.num_samples, path)
    if listed.sha256 and listed.sha256 != index.file.sha256:
        raise ShardDamagedError(
            f"shard {path} was indexed with another digest than index.json gives: run `wdsdist verify` on its folder"
        )
    name = storage.split(manifest.location(number))[1]
    if isinstance(pinned, PinnedPart):
        return PartOfShard(name, pinned, content, dataset, picks)
    for sample in sorted({index.num_samples * part // _LOOKS for part in range(_LOOKS)} if index.num_samples else ()):
        extension, offset, size = index.members(sample)[0]
        member = f"{index.key(sample)}.{extension}"
        if not is_member_at(lambda start, stop: content[start:stop], offset, member, size):
            raise ShardDamagedError(
                f"shard {path} does not hold what its index says (sample {index.key(sample)!r} is not at byte "
                f"{offset:,}): it was replaced by another; fetch or pack it again"
            )
    if content[-len(END) :] != END:
        raise ShardDamagedError(
            f"shard {path} does not end in the two zero blocks of a whole tar: fetch or pack it again"
        )
    return MappedShard(name, pinned, content, dataset, picks)
