"""`Listing`: the shards of one or several data sets as arrays; `Shard`, one of them; `Source`, one data set."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s, distinct
from wdsdist._util.shared_memory import SharedCopy, is_spawning
from wdsdist._util.validation import check_integer, counted
from wdsdist.errors import ArgumentError, ShardDamagedError, printable
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.tar import FIRST_DOT, is_compressed

if TYPE_CHECKING:
    from wdsdist.shards.view_file import Picks

PARTS = "__part__", "__parts__"
"""Columns of a view whose samples are parts of records: the number of each part, and how many its record has. Samples
and batches have them under the same names."""
NOTES_ON_ALL = ("payload_bytes", "skipped", "left_out", "scattered", "generations")
"""Notes of an ``index.json`` on all samples, such as totals, so that they are wrong for a part of them."""

ARRAYS = ("names", "counts", "sizes", "digests", "tar_sizes")
THIN = 1 / 2
"""A remote shard of which an epoch reads less than this share is fetched in parts."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a data set."""

    name: str
    """Path relative to the manifest, or a full location."""
    num_samples: int
    size: int
    """Bytes; -1 where unknown."""
    sha256: str
    """Hexadecimal digest; empty where unknown."""
    tar_size: int = -1
    """Bytes of the decompressed tar of a compressed shard; -1 if unknown."""

    @classmethod
    def of(cls, name: str, index: ShardIndex) -> Shard:
        """Return the shard that an index describes."""
        file = index.file
        return cls(name, index.num_samples, file.size, file.sha256, index.size if index.stored else -1)

    @property
    def is_compressed(self) -> bool:
        """Whether the shard is compressed (gzip or zstd), by its name; the cache decompresses it before it is read."""
        return is_compressed(storage.split(self.name)[1])


@dataclass(frozen=True, eq=False)
class Source:
    """One data set whose shards a manifest lists: where it lies, how it is reached, and which of it is chosen."""

    base: str
    """The folder or URL that shard names are relative to."""
    name: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """Notes of the packer, such as ``classes`` and ``source``."""
    client_options: storage.StorageOptions | None = field(default=None, repr=False)
    """The options of clients, bound to the stores that the user named; in no message: they may hold credentials."""
    is_named: bool = False
    """Whether the user named the shards, in a list or to `wdsdist.index`, so that they may lie outside the base and be
    repaired there."""
    version: str = ""
    """SHA-256 of the ``index.json`` that a store gave; empty if the manifest comes from elsewhere."""
    origin: str = ""
    """The path or URL of the ``index.json``, or an empty string."""
    label: str = ""
    """The value of ``"__dataset__"`` in the samples, if several data sets are joined."""
    picks: Picks | None = None
    """The chosen samples of a view; ``None`` if all samples of the shards are taken."""
    made_by: tuple[dict[str, Any], ...] = ()
    """Provenance of a view, step by step: the request, and the samples before and after."""
    is_staged: bool = False
    """Whether local shards are read through the cache too, as for a slow mount."""


SEVERAL = Source("/")
"""Stands for the source of a manifest that lists several data sets."""


@dataclass(frozen=True, eq=False)
class Listing:
    """The shards of one or several data sets, in order, as arrays that are shared after a fork.

    A hundred thousand shards cost a few megabytes. The shards of each source follow one another.
    """

    names: npt.NDArray[np.bytes_]
    """[shards]: path relative to the base of the source, or a full location."""
    counts: Int64s
    """int64 [shards]: samples in each; in a view, the chosen ones."""
    sizes: Int64s
    """int64 [shards]: bytes of each, -1 if unknown."""
    digests: npt.NDArray[np.bytes_]
    """SHA-256 of each, hexadecimal, empty if unknown."""
    tar_sizes: Int64s
    """int64 [shards]: bytes of the tar in each that is compressed, -1 if unknown."""
    sources: tuple[Source, ...]
    source: npt.NDArray[np.int32]
    """int32 [shards]: the number of each shard's source."""
    kept: dict[str, ShardIndex] = field(default_factory=dict, repr=False)
    """Remote indexes that this process has read, by location; also for views that are chosen from this manifest."""

    @classmethod
    def of(cls, base: str, shards: Iterable[Shard], **more: Any) -> Self:
        """Make a manifest of shards in the given order; ``more`` are fields of its `Source`."""
        listed = list(shards)
        try:
            names = [shard.name.encode() for shard in listed]
        except UnicodeEncodeError as error:
            raise ArgumentError(f"the name of shard {error.object!r} is not UTF-8: rename it") from error
        return cls(
            names=np.array(names, np.bytes_),
            counts=np.array([shard.num_samples for shard in listed], np.int64),
            sizes=np.array([shard.size for shard in listed], np.int64),
            digests=np.array([shard.sha256.encode() for shard in listed], np.bytes_),
            tar_sizes=np.array([shard.tar_size for shard in listed], np.int64),
            sources=(Source(base, **more),),
            source=np.zeros(len(listed), np.int32),
        )

    @property
    def _only(self) -> Source:
        return self.sources[0] if len(self.sources) == 1 else SEVERAL

    @property
    def base(self) -> str:
        """The folder or URL that shard names are relative to."""
        return self._only.base

    @property
    def name(self) -> str:
        return self._only.name

    @property
    def extra(self) -> dict[str, Any]:
        """Notes of the packer, such as ``classes`` and ``source``; none for several data sets."""
        return self._only.extra

    @property
    def origin(self) -> str:
        """The path or URL of the ``index.json``, or an empty string."""
        return self._only.origin

    @property
    def picks(self) -> Picks | None:
        """The chosen samples of a view; ``None`` if all samples of the shards are taken."""
        return self._only.picks

    @property
    def made_by(self) -> tuple[dict[str, Any], ...]:
        """Provenance of a view, step by step: the request, and the samples before and after."""
        return self._only.made_by

    @property
    def client_options(self) -> storage.StorageOptions | None:
        """The options of clients, bound to the stores that they are for."""
        return self._only.client_options

    @property
    def key_rule(self) -> str:
        """The rule by which names in the tars are cut into keys and extensions."""
        return str(self.extra.get("key_rule", FIRST_DOT))

    @functools.cached_property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return int(self.counts.sum())

    @functools.cached_property
    def ends(self) -> Int64s:
        """int64 [shards]: samples up to the end of each shard."""
        return np.cumsum(self.counts)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards whose size is known."""
        return int(self.sizes[self.sizes > 0].sum())

    @functools.cached_property
    def mean_sample_bytes(self) -> int:
        """Bytes that a sample takes in its shard, as far as sizes are known."""
        return self.num_bytes // max(1, self.whole.num_samples, self.num_samples)

    @functools.cached_property
    def whole(self) -> Self:
        """The manifest of all samples in the shards: of a view, the data set that it was chosen from."""
        if all(source.picks is None for source in self.sources):
            return self
        counts = [data.counts if data.picks is None else data.picks.stored_counts for data in self.data_sets]
        sources = tuple(replace(source, picks=None, made_by=()) for source in self.sources)
        return replace(self, counts=np.concatenate(counts), sources=sources)

    @property
    def generations(self) -> tuple[int, ...]:
        """The shards that the data set had when it was packed, and after each time that it has grown since."""
        return tuple(self.extra.get("generations", (len(self.counts),)))

    def with_source(self, **changes: Any) -> Self:
        """Return the manifest with other fields of its only `Source`."""
        return replace(self, sources=(replace(self.sources[0], **changes),))

    def chosen(self, picks: Picks, made_by: tuple[dict[str, Any], ...]) -> Self:
        """Return the view that has some samples of this data set, and how it was made."""
        if len(self.sources) > 1:
            raise ArgumentError(f"these are {self.shown}: choose samples of each before they are joined")
        extra = {name: note for name, note in self.extra.items() if name not in NOTES_ON_ALL}
        return replace(self.with_source(picks=picks, made_by=made_by, extra=extra), counts=picks.counts)

    def staged(self) -> Self:
        """Return the manifest whose local shards are copied into the cache as remote ones are, and read there."""
        return replace(self, sources=tuple(replace(source, is_staged=True) for source in self.sources))

    def at_generation(self, number: int) -> Self:
        """Return the data set as it was in a generation: 1 before anything was appended, up to the present one.

        Raises `ArgumentError` for an unknown generation.
        """
        known = self.generations
        number = check_integer("generation", number, 1)
        if number > len(known):
            raise ArgumentError(
                f"generation is {number:,}: {storage.shown(self.base)} has 1 to {len(known):,}; `wdsdist info` lists "
                f"them"
            )
        part = self.prefix(known[number - 1])
        return part if part is self else part.with_source(extra={**part.extra, "generations": list(known[:number])})

    @property
    def num_tar_bytes(self) -> int:
        """Bytes of all tars, decompressed, as far as known."""
        return int(np.maximum(self.sizes, self.tar_sizes).clip(0).sum())

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, in order."""
        return tuple(self.shard(number) for number in range(len(self.counts)))

    def shard(self, number: int) -> Shard:
        """Return one shard."""
        return Shard(
            self.names[number].decode(),
            int(self.counts[number]),
            int(self.sizes[number]),
            self.digests[number].decode(),
            int(self.tar_sizes[number]),
        )

    def location(self, number: int) -> str:
        """Return the path or URL of one shard."""
        return storage.join(self.sources[self.source[number]].base, self.names[number].decode())

    def check_index(self, number: int, index: ShardIndex, shard: object) -> ShardIndex:
        """Return an index; raise `ShardDamagedError` if the listed shard has another one."""
        listed, file = self.whole.shard(number), self.extra.get("counts_from", "index.json")
        for what, stated, actual in (
            ("bytes", listed.size, index.file.size),
            ("bytes of tar", listed.tar_size, index.size),
            ("samples", listed.num_samples, index.num_samples),
        ):
            if stated not in (-1, actual):
                raise ShardDamagedError(
                    f"shard {shard} has {actual:,} {what} but {file} says {stated:,}: fetch, pack or upload it again, "
                    f"or count again by `wdsdist index`"
                )
        if index.file.sha256 and listed.sha256 not in ("", index.file.sha256):
            raise ShardDamagedError(
                f"shard {shard} was indexed with another digest than index.json gives: run `wdsdist verify` there"
            )
        return index

    def shown_name(self, number: int) -> str:
        """Return the name of one shard for messages: of a URL without credentials and query."""
        name = self.names[number].decode()
        return storage.shown(name).partition("?")[0] if storage.is_remote(self.location(number)) else name

    @functools.cached_property
    def is_copied(self) -> npt.NDArray[np.bool_]:
        """bool [shards]: which are read through the cache, because they are remote, compressed or staged."""
        is_remote = np.array([storage.is_remote(source.base) for source in self.sources], np.bool_)[self.source]
        with_place = (np.char.find(self.names, b"://") >= 0) | np.char.startswith(self.names, b"/")
        for number in np.flatnonzero(with_place).tolist():
            is_remote[number] = storage.is_remote(self.location(number))
        return is_remote | self._is_compressed | self._is_staged

    @property
    def _is_staged(self) -> npt.NDArray[np.bool_]:
        return np.array([source.is_staged for source in self.sources], np.bool_)[self.source]

    @property
    def read_sizes(self) -> Int64s:
        """int64 [shards]: bytes of the tar in each, decompressed; -1 if unknown."""
        return np.where(self._is_compressed, self.tar_sizes, self.sizes)

    @functools.cached_property
    def needed_sizes(self) -> Int64s:
        """int64 [shards]: about the bytes of each that an epoch reads, less than all in a thin view of remote tars.

        Samples are taken to be of one size; of each, a fourth more is fetched, and two ends of disk blocks.
        """
        sizes, share = self.read_sizes, self.counts / np.maximum(self.whole.counts, 1)
        parts = (1.25 * share * sizes + 8192 * self.counts).astype(np.int64)
        is_thin = self.is_copied & ~self._is_compressed & (sizes > 0) & (share < THIN) & ~self._is_staged
        return np.where(is_thin, np.minimum(parts, sizes), sizes)

    @functools.cached_property
    def _is_compressed(self) -> npt.NDArray[np.bool_]:
        """bool [shards]."""
        compressed = ~np.char.endswith(self.names, b".tar")
        for number in np.flatnonzero(compressed).tolist():
            compressed[number] = self.shard(number).is_compressed
        return compressed

    @functools.cached_property
    def data_sets(self) -> tuple[Self, ...]:
        """The manifest of each data set that this one lists; itself alone if it lists one."""
        return (self,) if len(self.sources) == 1 else self._divided(range(len(self.sources)))

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the data sets that were joined, which may list several themselves; one empty label if none."""
        return tuple(dict.fromkeys(source.label for source in self.sources))

    @functools.cached_property
    def parts(self) -> tuple[Self, ...]:
        """The manifest of the shards of each label."""
        labels = [source.label for source in self.sources]
        return (self,) if len(self.labels) == 1 else self._divided([labels.index(label) for label in self.labels])

    def _divided(self, firsts: Sequence[int]) -> tuple[Self, ...]:
        """Return the manifests of consecutive sources, which begin at some of them."""
        stops = [*firsts[1:], len(self.sources)]
        divided = []
        for first, stop in zip(firsts, stops, strict=True):
            start, end = np.searchsorted(self.source, (first, stop)).tolist()
            arrays = {name: getattr(self, name)[start:end] for name in ARRAYS}
            source = self.source[start:end] - np.int32(first)
            divided.append(replace(self, **arrays, sources=self.sources[first:stop], source=source))
        return tuple(divided)

    def part(self, number: int) -> tuple[Self, int]:
        """Return the manifest of the data set that a shard belongs to, and the shard's number there."""
        source = int(self.source[number])
        return self.data_sets[source], number - int(np.searchsorted(self.source, source))

    def label(self, number: int) -> str:
        """Return the label of a shard's data set; empty if no data sets were joined."""
        return self.sources[int(self.source[number])].label

    @property
    def has_raw_images(self) -> bool:
        """Whether any data set has images that were packed as their pixels, in ``.npy`` members."""
        notes = (data.extra.get("images") for data in self.data_sets)
        return any(isinstance(note, dict) and note.get("store") == "raw" for note in notes)

    @functools.cached_property
    def has_parts(self) -> bool:
        """Whether samples of any data set are parts of records, as `explode` makes them."""
        return any(data.picks is not None and data.picks.parts is not None for data in self.data_sets)

    def parts_of(self, shards: Int64s, samples: Int64s) -> Int64s | None:
        """Return int64 [2, n]: which part each sample is, and how many its record has; ``None`` if all are whole.

        Args:
            shards, samples: int64 [n]: the shard of each, and its number there.
        """
        if not self.has_parts:
            return None
        numbers = np.tile(np.array([[0], [1]], np.int64), len(shards))
        for shard in distinct(shards).tolist():
            part, number = self.part(shard)
            is_in = shards == shard
            if part.picks is not None and part.picks.parts is not None:
                numbers[:, is_in] = part.picks.parts[part.picks.starts[number] + samples[is_in]].T
        return numbers

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the content of the data set, whatever folder or store it lies in.

        Two manifests agree when their shards have the same file names, sample counts, sizes and digests in the same
        order, and the same samples of them are chosen.
        """
        if self.picks is not None:
            return hashlib.sha256(f"{self.whole.fingerprint}\0{self.picks.digest}".encode()).hexdigest()[:32]
        if self.whole is not self:
            return hashlib.sha256("\n".join(data.fingerprint for data in self.data_sets).encode()).hexdigest()[:32]
        state = hashlib.sha256()
        for shard in self.shards:
            name = storage.split(shard.name)[1]
            state.update(f"{name}\0{shard.num_samples}\0{shard.size}\0{shard.sha256}\n".encode())
        return state.hexdigest()[:32]

    def of_shards(self, numbers: Iterable[int]) -> Self:
        """Return the manifest of some of the shards of one data set."""
        chosen = np.fromiter(numbers, np.int64)
        extra = {name: note for name, note in self.extra.items() if name not in (*NOTES_ON_ALL, "with_checksums")}
        if self.extra.get("with_checksums") == len(self.counts):
            extra["with_checksums"] = len(chosen)
        source = replace(
            self.sources[0],
            extra=extra,
            picks=None if self.picks is None else self.picks.of_shards(chosen),
        )
        arrays = {name: getattr(self, name)[chosen] for name in ARRAYS}
        return replace(self, **arrays, sources=(source,), source=self.source[chosen])

    def prefix(self, count: int) -> Self:
        """Return the manifest of the first ``count`` shards; itself if these are all."""
        return self if count == len(self.counts) else self.of_shards(range(count))

    @functools.cached_property
    def _shared(self) -> SharedCopy:
        return SharedCopy(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self) if field.name != "kept")

    @classmethod
    def _arrived(cls, shared: SharedCopy) -> Self:
        return cls(*shared.value())

    def __reduce__(self) -> tuple[Any, ...]:
        if is_spawning():  # else megabytes would go through the pipe to each worker
            return type(self)._arrived, (self._shared,)
        return type(self), self._values()

    @functools.cached_property
    def shown(self) -> str:
        """Where it lies, as messages and metrics name it."""
        if len(self.sources) > 1:
            return counted(len(self.sources), "data set")
        chosen = "" if self.picks is None else f" ({counted(self.num_samples, 'sample')} chosen)"
        return storage.shown(self.base) + chosen

    def __repr__(self) -> str:
        chosen = "" if self.picks is None else f"{self.num_samples:,} of "
        samples, shards = counted(self.whole.num_samples, "sample"), counted(len(self.counts), "shard")
        fields = ", ".join(map(str, self.extra.get("fields") or []))
        about = f", fields {printable(fields):.100}" if fields else ""
        where = self.shown if len(self.sources) > 1 else repr(storage.shown(self.base))
        return f"Manifest({where}: {chosen}{samples} in {shards}, {counted(self.num_bytes, 'byte')}{about})"
