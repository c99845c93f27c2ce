"""The shuffled order of an epoch: which sample stands at which position.

An epoch is a permutation ``G`` of the ``N`` samples: a pure function of the shards' sample counts, the settings and
the epoch. Orders answer for any positions at once, as shard, sample within the shard, and epoch.

``shard``: shards are permuted and laid on one line; the line is cut into equal *canonical lanes*; position ``i`` is
offset ``i // C`` of lane ``i % C``; within a lane, samples are permuted inside consecutive windows. A lane is the
sequence of samples of one canonical replica. Ranks that stride over the positions thereby read shards of their own,
nearly in sequence. If a shard is longer than a lane, the line is first turned by a random offset: otherwise the cuts
would fall on the same samples in every epoch, and a rank would get the same samples each time. Memory grows with the
number of shards and lanes, never with the number of samples.

``sampler``: the index sequence of ``torch.utils.data.DistributedSampler``, bit for bit. It holds one array of ``N``
numbers, as the original does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from wdsdist._util.array_types import Int64s, distinct
from wdsdist._util.validation import MOST_PROCESSES, check_integer
from wdsdist.errors import ArgumentError
from wdsdist.sampling.permutation import mix_key, mix_keys, permute, shuffled

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

OrderName = Literal["shard", "sampler"]

# Distinct last words keep the hashes for shards, for windows, for turns and for blocks apart.
_SHARDS, _WINDOWS, _TURNS, _BLOCKS = 1, 2, 3, 4

# Measured on class-sorted data: up to 16 shards each doubling mixes batches about as much as the first one did,
# beyond it less and less, while the disk for two windows doubles each time. See docs/order.md.
_WINDOW_SHARDS = 16
_WINDOW_SAMPLES = 4096

_LEAST_BLOCKS = 2048
"""Blocks of a first window, at least: its first 1/64 then has samples from half as many places as a batch of 64 has."""

_STRATA = 6, 4, 2
"""Binary logarithms of the shares of its blocks at which the first window is cut."""

_STRETCHES = 4
"""The most stretches of a lane for each shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """The settings of the shuffled order; with the samples and the epoch, they decide it."""

    name: OrderName = "shard"
    shuffle: bool = True
    seed: int = 0
    window: int = _WINDOW_SAMPLES
    """Samples that a lane shuffles together. The order ``sampler`` has no windows."""
    num_canonical_replicas: int = 1
    """Lanes. The order ``sampler`` has none."""

    def __post_init__(self) -> None:
        if self.name not in ("shard", "sampler"):
            raise ArgumentError(f"order is {self.name!r}: it can be 'shard' or 'sampler'", argument="order")
        # Plain integers: integers of numpy overflow in sums and cannot be written as JSON.
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, 2**64 - 1))
        object.__setattr__(self, "window", check_integer("shuffle_window", self.window, 1))
        lanes = check_integer("num_canonical_replicas", self.num_canonical_replicas, 1, MOST_PROCESSES)
        object.__setattr__(self, "num_canonical_replicas", lanes)


class Order(Protocol):
    """One epoch's permutation of the samples."""

    @property
    def num_samples(self) -> int:
        """``N``: the samples in the epoch."""

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the shard at each position, the sample within it, and its epoch; positions lie in ``range(N)``.

        In a mix it is the epoch of the data set.
        """


class EpochOrder(NamedTuple):
    """The order of one epoch, which is made late: plans may need no more than the number of samples."""

    num_samples: int
    """``N``: the samples in the epoch."""
    seed: int
    label: str
    """All that the order depends on, but for the samples."""
    make: Callable[[], Order]
    """Returns the order, always the same."""


def default_window(counts: Int64s) -> int:
    """Return the shuffle window for shards of ``counts`` samples: 16 shards' worth, at least 4,096 samples."""
    filled = int(np.count_nonzero(counts))
    mean = -(-int(counts.sum()) // filled) if filled else 1
    return max(_WINDOW_SAMPLES, _WINDOW_SHARDS * mean)


def epoch_order(counts: Int64s, settings: OrderSettings, epoch: int, num_samples: int | None = None) -> Order:
    """Return the order of one epoch over shards that hold ``counts`` samples each, or of a virtual one.

    ``num_samples`` is the length of the epochs, by default all samples of the shards: see `VirtualOrder`. Raises
    ``ArgumentError`` for a negative epoch.

    >>> order = epoch_order(np.array([3, 0, 2]), OrderSettings(seed=1), epoch=0)
    >>> shards, samples, _ = order.locate(np.arange(5))
    >>> sorted(zip(shards.tolist(), samples.tolist()))
    [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    """
    epoch = check_integer("epoch", epoch, 0, 2**63 - 1)
    if num_samples is not None and num_samples != int(counts.sum()):
        return VirtualOrder(counts, settings, epoch * num_samples, num_samples)
    if settings.name == "sampler":
        if settings.shuffle:
            return SamplerOrder(counts, settings, epoch)
        settings = replace(settings, num_canonical_replicas=1)  # the shards as they lie
    return ShardOrder(counts, settings, epoch)


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """The order of one data set: its samples, and the settings that the user gave.

    Raises `ArgumentError` for a setting that cannot work.
    """

    manifest: Manifest
    name: OrderName = "shard"
    shuffle: bool = True
    seed: int = 0
    shuffle_window: int | None = None
    """Samples that a lane shuffles together; ``None`` for the default."""
    num_canonical_replicas: int | None = None
    """Lanes; ``None`` for the world size of the first run."""
    samples_per_epoch: int | None = None
    """Length of the epochs; ``None`` for all samples of the data set."""

    def __post_init__(self) -> None:
        lanes = 1 if self.num_canonical_replicas is None else self.num_canonical_replicas
        window = 1 if self.shuffle_window is None else self.shuffle_window
        OrderSettings(name=self.name, seed=self.seed, window=window, num_canonical_replicas=lanes)  # checks them
        if self.samples_per_epoch is not None:
            length = check_integer("samples_per_epoch", self.samples_per_epoch, 1, 2**53)
            if not self.manifest.num_samples:
                raise ArgumentError(f"samples_per_epoch is {length:,}, but {self.manifest!r} has no samples")
            object.__setattr__(self, "samples_per_epoch", length)

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self.samples_per_epoch or self.manifest.num_samples

    @property
    def mean_sample_bytes(self) -> int:
        """Bytes that a sample of an epoch takes in its shard, on average."""
        return self.manifest.mean_sample_bytes

    @property
    def fingerprint(self) -> str:
        """A digest of the samples, wherever they lie: a state must come from the same ones."""
        return self.manifest.fingerprint

    @property
    def notes(self) -> dict[str, str]:
        """Further settings that decide the order, for a loader's state."""
        return {}

    @property
    def default_window(self) -> int:
        """Samples that a lane shuffles together unless the user or a state says otherwise."""
        return default_window(self.manifest.counts)

    def settings(self, world_size: int, state: Mapping[str, Any] | None = None) -> OrderSettings:
        """Return the settings of the order: as the user gave them, else as in a state, else by the world size."""
        lanes, window = ((state or {}).get(name) for name in ("num_canonical_replicas", "shuffle_window"))
        return OrderSettings(
            name=self.name,
            shuffle=self.shuffle,
            seed=self.seed,
            window=self.shuffle_window or window or self.default_window,
            num_canonical_replicas=self.num_canonical_replicas or lanes or world_size,
        )

    def order(self, settings: OrderSettings, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return EpochOrder(
            num_samples=self.num_samples,
            seed=settings.seed,
            label=f"{settings} {self.notes} epoch {epoch}",
            make=functools.cache(functools.partial(self._order, settings, epoch)),
        )

    def _order(self, settings: OrderSettings, epoch: int) -> Order:
        return epoch_order(self.manifest.counts, settings, epoch, self.samples_per_epoch)

    def as_in(self, state: Mapping[str, Any]) -> OrderConfig:
        """Return the configuration over the generation of the data set that a state was saved with.

        That is over its first shards, if they are the state's; else over all.
        """
        manifest, total, known = self.manifest, state.get("num_samples"), state.get("fingerprint")
        if known == manifest.fingerprint or not isinstance(total, int) or manifest.labels != ("",):
            return self
        parts = (manifest.prefix(int(last) + 1) for last in np.flatnonzero(manifest.ends == total))
        part = next((part for part in parts if part.fingerprint == known), None)
        return self if part is None else replace(self, manifest=part)

    def bytes_at_once(self, settings: OrderSettings, num_replicas: int, ranks: int) -> int:
        """Return the most bytes of copies that any ``ranks`` of all need at once."""
        from wdsdist.sampling.shard_schedule import bytes_at_once

        sizes = np.where(self.manifest.is_copied, self.manifest.needed_sizes, 0)
        return bytes_at_once(self.manifest.counts, sizes, settings, num_replicas=num_replicas, ranks=ranks)


class VirtualOrder:
    """The order of a virtual epoch: a cut of a given length out of the data set's own epochs, laid end to end.

    A cut that begins at the end of the one before gives each sample once before any comes again.

    Args:
        counts, settings: of the data set's own epochs.
        start: samples of them that come before the cut.
        num_samples: of the cut.
    """

    def __init__(self, counts: Int64s, settings: OrderSettings, start: int, num_samples: int) -> None:
        self._counts = counts
        self._settings = settings
        self.num_samples = num_samples
        self._size = int(counts.sum())
        self._first_epoch, self._start = divmod(start, self._size)
        self._orders: dict[int, Order] = {}

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        located = np.empty((3, *positions.shape), np.int64)
        epochs, offsets = np.divmod(self._start + positions, self._size)
        used = {}
        for later in distinct(epochs).tolist():
            epoch = self._first_epoch + later
            used[epoch] = self._orders.get(epoch) or epoch_order(self._counts, self._settings, epoch)
            located[:, epochs == later] = used[epoch].locate(offsets[epochs == later])
        self._orders = used  # neighbouring positions need the orders that were used last
        return located[0], located[1], located[2]


class SamplerOrder:
    """The order of ``DistributedSampler``: torch's own permutation of all samples, drawn from seed plus epoch."""

    def __init__(self, counts: Int64s, settings: OrderSettings, epoch: int) -> None:
        self._epoch = epoch
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.num_samples = int(counts.sum())
        self._seed = check_integer("seed + epoch", settings.seed + epoch, 0, 2**64 - 1)

    @functools.cached_property
    def _samples(self) -> Int64s:
        import torch  # not at the top: planning on the command line takes no torch

        order: Int64s = torch.randperm(self.num_samples, generator=torch.Generator().manual_seed(self._seed)).numpy()
        return order

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        return *split_line(self._ends, self._samples[positions]), np.full(positions.shape, self._epoch)


@dataclass(eq=False)
class LaneWindows:
    """The windows of all lanes of an epoch's order: runs of samples that are shuffled together.

    All windows of a lane have the same size, but for the last, which has what is left. The first window is read in
    *blocks*, runs of neighbouring samples, at least `_LEAST_BLOCKS` or one for each sample: the blocks are in random
    order, and its first 1/64 is shuffled by itself, then the samples up to 1/16, up to 1/4, and the rest. So the first
    batches of an epoch have samples of all shards of the window, and read a few ranges of bytes of each, which serve
    several batches.
    """

    lengths: Int64s
    """int64 [lanes]: samples of each lane."""
    window: int
    """The most samples that are shuffled together."""
    key: int
    """Decides the order of the blocks."""

    def __post_init__(self) -> None:
        # As few windows as can be, of like size: a short last one would mix worse than the others.
        self._size = np.maximum(1, -(-self.lengths // np.maximum(1, -(-self.lengths // self.window))))
        self._block = np.maximum(1, self._size // _LEAST_BLOCKS)

    def find(self, lane: Int64s, offset: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the number, the start and the size of the window, or stratum, that holds each offset of a lane."""
        first, block = self._size[lane], self._block[lane]
        number, within = np.divmod(offset, first)
        begin = offset - within
        # The strata of the first window.
        cuts = np.stack([(first // block >> share) * block for share in _STRATA])
        stratum = (offset >= cuts).sum(axis=0)
        edges = np.concatenate((np.zeros_like(cuts[:1]), cuts, first[None]))
        begins, ends = (np.take_along_axis(edges, stratum[None] + step, axis=0)[0] for step in (0, 1))
        is_first = number == 0
        return (
            np.where(is_first, stratum, number + len(_STRATA)),
            np.where(is_first, begins, begin),
            np.where(is_first, ends - begins, np.minimum(first, self.lengths[lane] - begin)),
        )

    def in_blocks(self, lane: Int64s, offset: Int64s) -> Int64s:
        """Return where in its lane each offset lies once the blocks of the first window are in random order."""
        moved = offset.copy()
        inside = np.flatnonzero(offset < self._size[lane])
        lane, offset = lane[inside], offset[inside]
        first, block = self._size[lane], self._block[lane]
        number, within = np.divmod(offset, block)
        # Samples beyond the whole blocks stay behind them. The turn moves other samples there in each epoch.
        whole = np.flatnonzero(number < first // block)
        number[whole] = permute(number[whole], (first // block)[whole], mix_keys(self.key, lane[whole]))
        turn = (mix_keys(self.key, lane, 1) >> np.uint64(1)).astype(np.int64)
        moved[inside] = (number * block + within + turn % first) % first
        return moved

    def begins(self, lane: int, together: int = 1) -> Int64s:
        """Return the offsets at which the windows of a lane begin, or every ``together``-th of them."""
        return np.arange(0, self.lengths[lane], together * self._size[lane])


class ShardOrder:
    """Shards in random order, cut into lanes, shuffled within the windows of each lane.

    Without ``shuffle`` the lanes are read as they lie: one lane gives the samples in the order of the manifest.
    """

    def __init__(self, counts: Int64s, settings: OrderSettings, epoch: int) -> None:
        self._epoch = epoch
        self._key = mix_key(mix_key(settings.seed, epoch), _WINDOWS)
        self._shuffle = settings.shuffle
        self.shards = np.arange(len(counts))
        """int64 [pieces]: all shards, as they lie on the line; the shard that a turn has cut stands at both ends."""
        if self._shuffle:
            self.shards = shuffled(len(counts), mix_key(settings.seed, epoch, _SHARDS))
        lengths, self.num_samples = counts[self.shards], int(counts.sum())
        self._first_sample = 0  # of the line, in its shard
        if self._shuffle and lengths.max(initial=0) > self.num_samples // settings.num_canonical_replicas:
            turn = mix_key(settings.seed, epoch, _TURNS) % self.num_samples
            self.shards, lengths, self._first_sample = _turned(self.shards, lengths, turn)
        self._is_filled = lengths > 0
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._window = max(1, min(settings.window, self.num_samples))  # a larger one means the same and overflows
        self.num_lanes = settings.num_canonical_replicas
        lanes = np.arange(self.num_lanes + 1, dtype=np.int64)
        share, more = divmod(self.num_samples, self.num_lanes)
        self._lane_starts = lanes * share + np.minimum(lanes, more)
        self._windows = LaneWindows(
            np.diff(self._lane_starts), self._window, key=mix_key(settings.seed, epoch, _BLOCKS)
        )

    def lanes_of(self, rank: int, num_replicas: int) -> range:
        """Return the lanes that a rank meets as it strides over the positions."""
        # They agree with the rank modulo the common divisor of lanes and ranks.
        step = math.gcd(self.num_lanes, num_replicas)
        return range(rank % step, self.num_lanes, step)

    def lane_stretches(self, lane: int) -> Int64s:
        """Return the offsets at which the windows of a lane begin, and behind them the lane's length.

        Windows much smaller than a shard are taken together, so that there are never many more stretches than shards.
        Without shuffle, each shard is a stretch.
        """
        start, stop = self._lane_starts[lane : lane + 2].tolist()
        length = stop - start
        if not self._shuffle:
            inside = self._ends[(self._ends > start) & (self._ends < stop)]
            return distinct(np.concatenate(((0,), inside - start, (length,))))
        together = max(1, self.num_samples // (_STRETCHES * len(self.shards) * self._window))
        return np.append(self._windows.begins(lane, together), length)

    def lane_spans(self, lane: int, begins: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
        """Return which of `shards` hold the samples of a lane from offsets ``begins`` to ``ends``.

        Returns:
            int64 [n] and [n]: the first index of each span, and one past the last.
        """
        start = self._lane_starts[lane]
        firsts = np.searchsorted(self._ends, start + begins, side="right")
        lasts = np.searchsorted(self._ends, start + ends - 1, side="right") + 1
        return firsts, np.where(begins < ends, lasts, firsts)

    def lane_shards(self, lane: int, begin: int, end: int) -> Int64s:
        """Return the shards of a lane from offset ``begin`` to ``end``, in increasing order."""
        (first,), (last,) = self.lane_spans(lane, np.array([begin]), np.array([end]))
        pieces = np.arange(first, last)
        return distinct(self.shards[pieces[self._is_filled[pieces]]])

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        offset, lane = np.divmod(positions, self.num_lanes)
        if self._shuffle:
            number, begin, size = self._windows.find(lane, offset)
            offset = begin + permute(offset - begin, size, mix_keys(self._key, lane, number))
            offset = self._windows.in_blocks(lane, offset)
        pieces, samples = split_line(self._ends, self._lane_starts[lane] + offset)
        samples += np.where(pieces == 0, self._first_sample, 0)
        return self.shards[pieces], samples, np.full(positions.shape, self._epoch)


def _turned(shards: Int64s, lengths: Int64s, start: int) -> tuple[Int64s, Int64s, int]:
    """Turn a line to begin at one of its samples, inside a shard whose head then lies at the end of the line.

    Returns the shards and the lengths of the pieces, and the number of the first sample in its shard.

    >>> shards, lengths, first = _turned(np.array([4, 5]), np.array([10, 7]), 12)
    >>> shards.tolist(), lengths.tolist(), first
    ([5, 4, 5], [5, 10, 2], 2)
    """
    ends = np.cumsum(lengths)
    position = int(np.searchsorted(ends, start, side="right"))
    first = start - int(ends[position] - lengths[position])
    shards, lengths = (np.concatenate((line[position:], line[: position + 1])) for line in (shards, lengths))
    lengths[0] -= first
    lengths[-1] = first
    return shards, lengths, first


def split_line(ends: Int64s, samples: Int64s) -> tuple[Int64s, Int64s]:
    """Find, on the line of all samples, the shard of each and its number within the shard.

    ``ends[s]`` is one past the last sample of shard ``s``, so empty shards are never found.
    """
    shards = np.searchsorted(ends, samples, side="right")
    return shards, samples - np.where(shards > 0, ends[shards - 1], 0)
