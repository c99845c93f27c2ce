"""The options of planned batches, as a loader takes them: token budgets, groups by length, buckets, packed rows."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import MOST_PROCESSES, check_column, check_integer, counted
from wdsdist.distributed import check_same
from wdsdist.distributed.kept import kept_arrays, kept_count
from wdsdist.errors import ArgumentError, StateError
from wdsdist.loader.batch_columns import Codes, CostColumn, Lengths, cost_of, lengths_of, ones
from wdsdist.loader.checkpoint import Position
from wdsdist.samples.packed_rows import pack_rows
from wdsdist.sampling.block_plan import VERSION, BatchRule, World
from wdsdist.sampling.order import Order
from wdsdist.sampling.permutation import mix_key
from wdsdist.sampling.planned_epoch import (
    Batching,
    Long,
    NodeBatches,
    Oversize,
    Place,
    PlannedEpoch,
    Segment,
    joined,
)

if TYPE_CHECKING:
    from wdsdist.curation.columns import ColumnLookup
    from wdsdist.distributed import Identity
    from wdsdist.shards.manifest import Manifest

Finish = Callable[..., Any]
"""Makes a batch of samples, and of the `Pieces` of them, by their names."""

BLOCK_STEPS = 128
"""Steps of a block of the first run, about: more fill better, fewer need less memory and planning at once."""

_LOOKED_AT = 16
"""Shards whose samples tell the mean length, by which blocks are cut."""

_MOST_TOKENS = 1 << 40
"""Of a batch or a row: the sums over a block are 64-bit integers."""

_MOST_WORLDS = 64
"""On which the steps of one block can be taken: a state names each, and takes some 2 KB with so many."""

_SHARED = 1 << 18
"""Samples of a block from which on one process plans it for all of a node, some quarter of a second."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The arguments of a `StreamingDataLoader` about its batches."""

    batch_size: int
    max_tokens: int | None = None
    max_samples: int | None = None
    length: str | None = None
    cost: str = "linear"
    oversize: Oversize = "error"
    group_by: str | None = None
    bucket_by: str | None = None
    pack_to: int | None = None
    long: Long = "split"
    labels: bool | Literal["next"] = False
    drop_last: bool = True
    mark_padding: bool = False

    def __post_init__(self) -> None:
        chosen = [
            name for name in ("max_tokens", "pack_to", "group_by", "bucket_by") if getattr(self, name) is not None
        ]
        budgets = {"max_tokens", "pack_to"} & set(chosen)
        if len(budgets) > 1 or (budgets and len(chosen) > 1):
            raise ArgumentError(f"{' and '.join(chosen)} are different ways to make batches: give one of them")
        for name in budgets:
            check_integer(name, getattr(self, name), 1, _MOST_TOKENS)
            if self.length is None:
                raise ArgumentError(f'{name} needs the column of lengths: length="input_ids.tokens", for instance')
        for name, kinds in (("oversize", Oversize), ("long", Long)):
            if getattr(self, name) not in get_args(kinds):
                raise ArgumentError(f"{name} is {getattr(self, name)!r}: it can be {', '.join(get_args(kinds))}")
        for name in ("length", "group_by", "bucket_by"):
            if getattr(self, name) is not None:
                check_column(name, getattr(self, name))
        if (check_column("cost", self.cost) != "linear" or self.length is not None) and self.is_plain:
            raise ArgumentError("length and cost plan batches: give max_tokens, pack_to, group_by or bucket_by as well")
        if self.labels not in (False, True, "next"):
            raise ArgumentError(f"labels is {self.labels!r}: it can be False, True or 'next'")
        for name, of in (("max_samples", "max_tokens"), ("labels", "pack_to")):
            if getattr(self, name) and getattr(self, of) is None:
                raise ArgumentError(f"{name} goes with {of} only")
        if self.max_samples is not None:
            check_integer("max_samples", self.max_samples, 1)

    @property
    def is_plain(self) -> bool:
        """Whether batches are so many samples in the order as it is."""
        return all(one is None for one in (self.max_tokens, self.pack_to, self.group_by, self.bucket_by))

    @property
    def rule(self) -> BatchRule:
        """The rule of the batches of a block."""
        if self.max_tokens is not None:
            most = self.max_samples or 0
            return BatchRule(kind="tokens", budget=self.max_tokens, most=most, drops=self.drop_last)
        if self.pack_to is not None:
            return BatchRule(kind="rows", budget=self.pack_to, most=self.batch_size, drops=self.drop_last)
        kind: Literal["buckets", "groups"] = "groups" if self.bucket_by is None else "buckets"
        return BatchRule(kind=kind, most=self.batch_size, drops=self.drop_last)

    @property
    def label(self) -> str:
        """The options that must be the same to continue a state inside an epoch."""
        if self.pack_to is not None:
            return f"rows of {self.pack_to} by {self.length}, long={self.long}"
        return f"{self.rule.kind} by {self.length or self.group_by or ''} {self.bucket_by or ''}".strip()

    @property
    def dealing(self) -> str:
        """The further options that must be the same to continue a state inside a block, beside its segments."""
        return f"cost={self.cost}, oversize={self.oversize}, drop_last={self.drop_last}"


class PlannedBatches:
    """Makes the planned epochs of a data set.

    Args:
        manifest: the data set.
        options: how batches are made.
        itemsizes: bytes of an item of raw arrays, by extension: of these the column ``<ext>.tokens`` is known.

    Raises `ArgumentError` for a column that there is not.
    """

    def __init__(self, manifest: Manifest, options: BatchOptions, itemsizes: dict[str, int]) -> None:
        self.manifest = manifest
        self.options = options
        self._itemsizes = itemsizes
        self._column = options.length or options.group_by
        buckets = None
        if options.bucket_by is not None:
            from wdsdist.curation.columns import ColumnLookup

            buckets = Codes(ColumnLookup(manifest, options.bucket_by))
        lengths: Callable[[Int64s, Int64s], npt.NDArray[Any]]
        lengths = ones if self._column is None else lengths_of(manifest, self._column, itemsizes)
        self._batching = Batching(
            rule=options.rule,
            lengths=lengths,
            costs=cost_of(manifest, options.cost),
            buckets=buckets,
            oversize=options.oversize,
            long=options.long,
            mark_padding=options.mark_padding,
        )
        self._is_checked = False

    @classmethod
    def of(
        cls, manifest: Manifest, options: BatchOptions, itemsizes: dict[str, int], collate_fn: object
    ) -> PlannedBatches | None:
        """Return what the options ask for: ``None`` where batches are plain."""
        if options.is_plain:
            return None
        if options.pack_to is not None and collate_fn is not None:
            raise ArgumentError("pack_to makes the batches itself: give either that or collate_fn")
        return cls(manifest, options, itemsizes)

    def usual_block(self, world_size: int, window: int | None) -> int:
        """Return the positions of a block for the first run, which all ranks find alike.

        A batch may hold samples from anywhere in its block, so that its shards are needed at once: where a cache has a
        limit, ``window`` says how many positions those are of for which it was found to have room.
        """
        samples = world_size * self.usual_batch
        return samples * (BLOCK_STEPS if window is None else min(BLOCK_STEPS, max(1, window // samples)))

    @functools.cached_property
    def usual_batch(self) -> int:
        """Samples in a batch, about."""
        rule = self.options.rule
        tokens = rule.budget * (rule.most if rule.kind == "rows" else 1)
        samples = max(1, int(tokens / self.mean_length)) if tokens else rule.most
        return min(samples, rule.most) if rule.kind == "tokens" and rule.most else samples

    @functools.cached_property
    def mean_length(self) -> float:
        """The mean length of samples, as those of some shards tell it."""
        filled = np.flatnonzero(self.manifest.counts)
        some = filled[:: max(1, len(filled) // _LOOKED_AT)][:_LOOKED_AT]
        lengths = [self._lengths_in(number) for number in some.tolist()]
        return max(1.0, float(np.concatenate(lengths).mean())) if lengths else 1.0

    def check_lengths(self) -> None:
        """Raise `ArgumentError` where samples are longer than a batch may be, with how many, and the longest.

        The pass over all lengths is made once.
        """
        budget, how = self.options.rule.budget, self.options.oversize
        if self.options.rule.kind == "rows":
            how = "error" if self.options.long == "error" else "drop"
        if not budget or how != "error" or self._is_checked:
            return
        count, longest, where = 0, 0, (0, 0)
        for number in np.flatnonzero(self.manifest.counts).tolist():
            lengths = self._lengths_in(number)
            count += int((lengths > budget).sum())
            if len(lengths) and int(lengths.max()) > longest:
                longest, where = int(lengths.max()), (number, int(lengths.argmax()))
        if count:
            raise ArgumentError(self._too_long(count, longest, where))
        self._is_checked = True

    def epoch(self, order: Order, *, seed: int, epoch: int, world: World, place: Place, block: int) -> PlannedEpoch:
        """Return an epoch, or the rest of it from a place on."""
        batching = replace(self._batching, block_samples=block)
        return PlannedEpoch(batching=batching, order=order, world=world, key=mix_key(seed, epoch), start=place)

    def misfits(self, shard: int, numbers: Int64s, place: int) -> Int64s:
        """Return how little samples of a shard fit in the place of one of them, ``numbers[place]``: 0 fits.

        In a batch, one that is no longer fits; in rows, one that is no shorter, for its tokens may lie in several.
        """
        shards = np.full(len(numbers), shard)
        lengths = self._batching.lengths(shards, numbers)
        longer = lengths - lengths[place]
        found: Int64s = np.maximum(-longer if self.options.pack_to is not None else longer, 0)
        if self._batching.buckets is not None:
            buckets = self._batching.buckets(shards, numbers)
            found[buckets != buckets[place]] += int(lengths.max()) + 1
        return found

    def finisher(self) -> Finish | None:
        """Return the function that packs samples and their pieces into rows; ``None`` where batches are not packed."""
        if self.options.pack_to is None:
            return None
        return functools.partial(
            pack_rows,
            num_rows=self.options.batch_size,
            length=self.options.pack_to,
            field=str(self.options.length).rpartition(".")[0],
            labels=self.options.labels,
        )

    def state(self, place: Place | None, block: int) -> dict[str, Any]:
        """Return the fields of a loader's state for a place: flat, of strings and numbers."""
        place = place or Place(0)
        segments = ";".join(",".join(map(str, one)) for one in place.segments)
        rules = {"batches": self.options.label, "dealing": self.options.dealing}
        place_of = {"block_samples": block, "block": place.block, "segments": segments}
        return {**rules, "plan_version": VERSION, "columns": self._columns, **place_of}

    def check_columns(self, stated: str) -> None:
        """Raise `StateError` where a block was planned by other values of the same samples."""
        if stated != self._columns and stated.partition(":")[0] == self._columns.partition(":")[0]:
            names = " and ".join(self._column_names)
            raise StateError(
                f"the state was taken inside a block of batches that was planned by other values of {names}, by which "
                f"other samples would be left: put those values back (`wdsdist columns`), or begin an epoch"
            )

    @functools.cached_property
    def _columns(self) -> str:
        """The samples of the data set, and a digest of the columns that it is planned by."""
        digests = " ".join(one.digest for one in self._looked_up)
        return f"{self.manifest.num_samples}:{hashlib.sha256(digests.encode()).hexdigest()[:16]}"

    @property
    def _column_names(self) -> list[str]:
        return list(dict.fromkeys(repr(one.name) for one in self._looked_up))

    @property
    def _looked_up(self) -> list[ColumnLookup]:
        by = (self._batching.lengths, self._batching.costs, self._batching.buckets)
        return [one.values for one in by if isinstance(one, (Lengths, CostColumn, Codes))]

    def check_ranks_agree(self, here: Identity, block: int) -> None:
        """Raise `StateError` where this rank would plan other batches than the ranks that began before it.

        Args:
            here: this rank.
            block: positions in a block.
        """
        names = " and ".join(self._column_names) or "its lengths"
        check_same(
            "set of columns",
            self._columns,
            why=f"batches are planned by {names}, of which all ranks need the same values: let all read the columns of "
            f"one place, or run the same `wdsdist columns` for each copy",
        )
        options = f"version {VERSION}, {here.ranks_per_node} ranks a node, {block} a block, {self.options}"
        check_same(
            "plan of batches",
            hashlib.sha256(f"{options} {self._itemsizes}".encode()).hexdigest(),
            why="let all ranks pass the same options to the loader, have as many ranks on each node, and run the same "
            "release of wdsdist",
        )

    def count_steps(self, epoch: PlannedEpoch, order: str) -> int:
        """Return the steps of an epoch: counted once on a node, and kept in the user's cache folder.

        ``order`` is all that its order depends on beside the data set and the seed.
        """

        def count() -> int:
            self.check_lengths()  # whose error names the sample
            return sum(epoch.steps())

        return kept_count(self._about(epoch, order), count)

    def shared(self, epoch: PlannedEpoch, order: str) -> PlannedEpoch:
        """Return an epoch whose blocks one process of a node plans for all, where that takes long."""
        if epoch.batching.block_samples < _SHARED:
            return epoch
        about = f"{self._about(epoch, order)} {epoch.start}"

        def share(number: int, ranks: range, plan: Callable[[], NodeBatches]) -> NodeBatches:
            return NodeBatches(**kept_arrays(f"{about} {number} {ranks}", lambda: plan()._asdict()))

        return replace(epoch, share=share)

    def _about(self, epoch: PlannedEpoch, order: str) -> str:
        digests = [one.digest for one in self._looked_up]
        return (
            f"{VERSION} {self.manifest.fingerprint} {self.options} {self._itemsizes} {epoch.world} {epoch.key} "
            f"{epoch.batching.block_samples} {epoch.num_samples} {order} {digests}"
        )

    def _lengths_in(self, number: int) -> Int64s:
        samples = np.arange(int(self.manifest.counts[number]))
        return self._batching.lengths(np.full(len(samples), number), samples)

    def _too_long(self, count: int, longest: int, where: tuple[int, int]) -> str:
        from wdsdist.shards.shard_indexes import shard_index

        part, number = self.manifest.part(where[0])
        stored = where[1] if part.picks is None else int(part.picks.of_shard(number)[where[1]])
        key = shard_index(part, number).key(stored)
        option, remedy = ("max_tokens", 'oversize="drop" or "alone"')
        if self.options.pack_to is not None:
            option, remedy = "pack_to", 'long="split" or "truncate"'
        samples = "1 sample is" if count == 1 else f"{count:,} samples are"
        return (
            f"{samples} longer than {option}={self.options.rule.budget:,}, by {self._column}; the longest, {key!r} of "
            f"{part.shown_name(number)}, has {longest:,}: raise {option}, choose other samples, or pass {remedy}"
        )


def planned_position(
    planned: PlannedBatches | None, position: Position, state: Mapping[str, Any], block: int
) -> tuple[Position, int]:
    """Return the position of a state with its place in planned batches, and the size of its blocks.

    Raises `StateError` where the state was taken inside an epoch of other batches, or inside a block that was
    dealt in another way, or by another version of the plan.
    """
    stated = str(state.get("batches", ""))
    # Whole blocks are consumed, and of the next one the steps that segments tell.
    is_at_start = not (position.consumed or state.get("block") or state.get("segments"))
    is_at_end = position.consumed >= state["num_samples"] and not state.get("segments")
    own = "" if planned is None else planned.options.label
    if stated != own and not (is_at_start or is_at_end):
        raise StateError(
            f"the state was taken inside an epoch of batches by other rules ({stated or 'a number of samples'}, here "
            f"{own or 'a number of samples'}): finish that epoch with its own, or begin an epoch"
        )
    if planned is None or stated != own:
        return position, block
    dealing = state.get("dealing", planned.options.dealing)  # states of before do not tell
    if state.get("segments") and dealing != planned.options.dealing:
        raise StateError(
            f"the state was taken inside a block of batches that was dealt with {dealing}, and here it would be with "
            f"{planned.options.dealing}: finish that epoch with its own, or begin an epoch"
        )
    version = state.get("plan_version", 1)
    known = (2, 3, 4, VERSION) if planned.options.rule.budget else (VERSION,)
    if state.get("segments") and version not in known:
        raise StateError(
            f"the state was taken inside a block of batches of plan version {version}, and this wdsdist plans version "
            f"{VERSION}, in which other samples would be left: finish that epoch with the release that saved it, or "
            f"begin an epoch"
        )
    if state.get("segments") and "columns" in state:  # states of before do not tell
        planned.check_columns(str(state["columns"]))
    size, number = state.get("block_samples"), state.get("block")
    if type(size) is not int or type(number) is not int or size < 1 or number < 0:
        raise StateError(f"the state is damaged: block {number!r} of {size!r} samples")
    if state.get("finished") and position.consumed:  # at the end of an epoch, which the state of the next one tells
        return Position(position.epoch, position.consumed, Place(-(-position.consumed // size))), size
    return Position(position.epoch, position.consumed, Place(number, _segments(state.get("segments", "")))), size


def _segments(text: Any) -> tuple[Segment, ...]:
    try:
        found = tuple(Segment(*map(int, one.split(","))) for one in text.split(";") if one)
    except (TypeError, ValueError, AttributeError):
        raise StateError(f"the state is damaged: its segments are {text!r}") from None
    for one in found:
        if not (1 <= min(one[:2]) <= max(one[:2]) <= MOST_PROCESSES and 0 <= min(one[2:]) <= max(one[2:]) < 2**63):
            raise StateError(f"the state is damaged: its segments are {text!r}")
    return found


def check_worlds(epoch: PlannedEpoch) -> None:
    """Raise `StateError` where a block would be divided between more worlds than a state may name."""
    segments = epoch.start.segments
    if len(joined((*segments, epoch.segment(0)))) > _MOST_WORLDS:
        last = segments[-1]
        raise StateError(
            f"this epoch was resumed on {_MOST_WORLDS} worlds within one block of batches already: resume it on the "
            f"last one ({counted(last.num_replicas, 'rank')}, {last.per_node} a node, with the same limits of a batch) "
            f"up to the end of the block, or go back to an earlier checkpoint"
        )


def options_of(batches: Any) -> dict[str, Any]:
    """Return the options that a value of `wdsdist.batching` stands for."""
    from wdsdist import batching

    match batches:
        case batching.TokenBudget():
            names = ("length", "max_samples", "cost", "oversize")
            return {"max_tokens": batches.tokens, **{name: getattr(batches, name) for name in names}}
        case batching.LengthGroups():
            return {"batch_size": batches.size, "group_by": batches.by}
        case batching.Buckets():
            return {"batch_size": batches.size, "bucket_by": batches.by}
        case batching.PackedRows():
            rows = {"batch_size": batches.rows, "pack_to": batches.tokens, "labels": batches.labels or False}
            return {**rows, "length": batches.length, "long": batches.long}
    raise ArgumentError(
        f"batches is {batches!r}: it must be a TokenBudget, LengthGroups, Buckets or PackedRows of wdsdist.batching",
        argument="batches",
    )
