"""The settings of a data set's sampling order: as given, and as the world size and the cache decide the rest."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.distributed import Identity, check_same
from wdsdist.distributed.identity import process_group
from wdsdist.errors import ArgumentError
from wdsdist.loader.checkpoint import VIEW, Position, State, make_state
from wdsdist.sampling.mix_order import MixOrder, Mixture, Schedule, changed, described, parsed
from wdsdist.sampling.order import VERSIONS, Order, OrderSettings, default_window, epoch_order
from wdsdist.sampling.working_set import bytes_at_once, check_limit, fitting_window, readers_of
from wdsdist.shards.manifest import BLOCKS, Manifest


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """The order of one data set."""

    manifest: Manifest
    given: OrderSettings
    """As they were given; lanes and window in it are defaults, and those that were given are below."""
    lanes: int | None
    """Canonical replicas, where they were given."""
    window: int | None
    """Samples that a lane shuffles together, where they were given."""
    cache_limit: int | None
    """Bytes."""
    samples_per_epoch: int | None = None
    """Length of the epochs, where it is not that of the data set."""
    fields: tuple[str, ...] | None = None
    """Those that are read of each sample; ``None`` for all, or where data sets of a mix differ in them."""

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self.samples_per_epoch or self.manifest.num_samples

    @property
    def mean_sample_bytes(self) -> int:
        """Bytes that a sample of an epoch takes in its shard, on average."""
        return self.manifest.mean_sample_bytes

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the samples, wherever they lie: a state must come from the same ones."""
        return self.manifest.fingerprint

    @property
    def notes(self) -> dict[str, str]:
        """Further settings that decide the order, for a loader's state."""
        return {}

    def as_in(self, state: Mapping[str, Any]) -> OrderConfig:
        """Return the config that a state was saved in: of an older version of the order, or with fewer shards."""
        version = state.get("order_version", 1)
        if version not in VERSIONS:
            version = VERSIONS[-1]  # the state will be found to belong to another
        given = dataclasses.replace(self.given, version=version)
        return dataclasses.replace(self, given=given, manifest=self._manifest_in(state))

    def after(self, state: Mapping[str, Any]) -> OrderConfig:
        """Return the config of the epochs after the one that a state was saved in."""
        return self

    def expected(self, state: Mapping[str, Any], settings: OrderSettings) -> State:
        """Return the fields that a state must have to be continued here, without its position."""
        return self.state(Position(0, 0), settings)

    def _manifest_in(self, state: Mapping[str, Any]) -> Manifest:
        """Return the first shards of the data set that a state was saved with; all, where none of them are."""
        manifest, total, known = self.manifest, state.get("num_samples"), state.get("fingerprint")
        if manifest.labels != ("",) or known == manifest.fingerprint or not isinstance(total, int):
            return manifest
        parts = (manifest.prefix(int(last) + 1) for last in np.flatnonzero(manifest.ends == total))
        return next((part for part in parts if part.fingerprint == known), manifest)

    def settings(self, here: Identity, state: Mapping[str, Any] | None = None) -> OrderSettings:
        """Return the settings of the order: those of a ``state``, as far as none were given at first.

        What neither gives is decided by the world size, and by the room in the cache. This is the config `as_in` that
        state.
        """
        lanes, window = ((state or {}).get(name) for name in ("num_canonical_replicas", "shuffle_window"))
        settings = dataclasses.replace(self.given, num_canonical_replicas=self.lanes or lanes or here.world_size)
        window = self.window or window or None
        if window is None and self.cache_limit is not None:
            readers = readers_of(self.manifest, here)
            needed = functools.partial(self.bytes_at_once, here=here, ranks=readers.ranks)
            window = fitting_window(needed, readers, settings, self.cache_limit)
        return settings if window is None else dataclasses.replace(settings, window=window)

    def check_room(self, settings: OrderSettings, here: Identity) -> None:
        """Check that the cache has room for the working set: all shards that are needed at once.

        Raises `ArgumentError` where there is too little for one rank; warns where it is for those of this node.
        """
        if self.cache_limit is not None:
            needed = functools.partial(self.bytes_at_once, settings, here)
            check_limit(needed, settings, ranks=readers_of(self.manifest, here).ranks, limit=self.cache_limit)

    def needed_sizes(self, settings: OrderSettings, ranks: int, world_size: int) -> Int64s:
        """Return the bytes that so many ranks of one node need of each shard in an epoch: int64 [shards]."""
        if settings.name != "sampler" or not settings.shuffle:
            return self.manifest.needed_sizes
        return self.manifest.needed_of(ranks / world_size)

    def cached_sizes(self, settings: OrderSettings, ranks: int, world_size: int) -> Int64s:
        """Return the bytes that the cache takes of each shard for so many ranks of one node: int64 [shards].

        Of a shard of which some ``fields`` are little, their ranges: the index of one shard tells that of all.
        """
        needed = self.needed_sizes(settings, ranks, world_size)
        if self.fields is not None and self.manifest.is_copied.any() and not self.manifest.is_staged:
            share = ranks / world_size if settings.name == "sampler" and settings.shuffle else 1.0
            needed = np.minimum(needed, self._sizes_of_fields(self.fields, share))
        return np.where(self.manifest.is_copied, needed, 0)

    def _sizes_of_fields(self, fields: tuple[str, ...], share: float) -> Int64s:
        if share not in self._known_sizes:
            from wdsdist.samples.needed_parts import parts_read

            sizes = self.manifest.read_sizes
            try:
                read, ranges = parts_read(
                    self.manifest.counts, sizes, manifest=self.manifest, fields=fields, share=share
                )
                sizes = np.where(ranges > 0, np.minimum(read + BLOCKS * ranges, sizes), sizes)
            except ArgumentError:  # a field that the first shard lacks: what becomes of that is said where it is read
                pass
            self._known_sizes[share] = sizes
        return self._known_sizes[share]

    @functools.cached_property
    def _known_sizes(self) -> dict[float, Int64s]:
        return {}

    def bytes_at_once(self, settings: OrderSettings, here: Identity, ranks: int) -> int:
        """Return the most bytes of copies that any ``ranks`` ranks need at once."""
        sizes = self.cached_sizes(settings, len(here.node_ranks), here.world_size)
        readers = dataclasses.replace(readers_of(self.manifest, here), sizes=sizes)
        return bytes_at_once(readers, settings, ranks=ranks)

    def order(self, settings: OrderSettings, epoch: int) -> Order:
        """Return which sample stands at which position of an epoch."""
        return epoch_order(self.manifest.counts, settings, epoch, self.samples_per_epoch, self.manifest.records)

    def state(self, position: Position, settings: OrderSettings) -> State:
        """Return the state of a loader at a position."""
        return make_state(
            position,
            num_samples=self.num_samples,
            fingerprint=self.fingerprint,
            settings=settings,
            notes={**self.notes, **({VIEW: self.manifest.picks.path} if self.manifest.picks else {})},
        )


@dataclass(frozen=True, kw_only=True)
class MixedOrderConfig(OrderConfig):
    """The order of several data sets in one stream."""

    manifest: Manifest
    phases: Schedule
    change_weights: bool
    """Whether a state of other weights is continued: the epoch that it is in with its own, the next ones with these."""
    stratified: bool

    @property
    def mean_sample_bytes(self) -> int:
        sizes = [part.mean_sample_bytes for part in self.manifest.parts]
        return max(int(sum(map(operator.mul, phase.weights, sizes))) for phase in self.phases)

    @functools.cached_property
    def fingerprint(self) -> str:
        parts = zip(self.manifest.parts, self.windows, strict=True)
        text = "\n".join(f"{part.fingerprint} {window}" for part, window in parts)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def notes(self) -> dict[str, str]:
        return {"mix": described(self.phases), "stratified": str(self.stratified)}

    def as_in(self, state: Mapping[str, Any]) -> OrderConfig:
        return super(MixedOrderConfig, self.after(state)).as_in(state)

    def after(self, state: Mapping[str, Any]) -> MixedOrderConfig:
        before = self._phases_in(state)
        if before == self.phases:
            return self
        has_begun = bool(state.get("consumed", state.get("taken")) or state.get("segments"))
        return dataclasses.replace(self, phases=changed(before, self.phases, state["epoch"] + has_begun))

    def expected(self, state: Mapping[str, Any], settings: OrderSettings) -> State:
        return {**super().expected(state, settings), "mix": described(self._phases_in(state))}

    def _phases_in(self, state: Mapping[str, Any]) -> Schedule:
        """Return the weights that a state was saved with, if these may change to others; else those of this mix."""
        if not self.change_weights:
            return self.phases
        try:
            before = parsed(str(state.get("mix")))
        except (ValueError, ZeroDivisionError):
            return self.phases  # the state will be found to belong to another mix
        return before if len(before[0].weights) == len(self.manifest.parts) else self.phases

    def needed_sizes(self, settings: OrderSettings, ranks: int, world_size: int) -> Int64s:
        return self.manifest.needed_sizes

    def bytes_at_once(self, settings: OrderSettings, here: Identity, ranks: int) -> int:
        sizes = np.split(self.cached_sizes(settings, ranks, here.world_size), self.manifest.first_shards[1:])
        parts = zip(self.manifest.parts, sizes, self._mixture.settings_of_each(settings), strict=True)
        return sum(
            bytes_at_once(dataclasses.replace(readers_of(part, here), sizes=own), settings_of, ranks=ranks)
            for part, own, settings_of in parts
        )

    def order(self, settings: OrderSettings, epoch: int) -> Order:
        return MixOrder(self._mixture, settings, epoch)

    @property
    def _mixture(self) -> Mixture:
        return Mixture(
            counts=tuple(part.counts for part in self.manifest.parts),
            windows=self.windows,
            records=tuple(part.records for part in self.manifest.parts),
            phases=self.phases,
            num_samples=self.num_samples,
            stratified=self.stratified,
        )

    @functools.cached_property
    def windows(self) -> tuple[int, ...]:
        """The samples that a lane of each data set shuffles together; the settings have the most of any."""
        return tuple(self.window or default_window(part.counts) for part in self.manifest.parts)


def check_ranks_agree(data_sets: Iterable[Manifest], settings: OrderSettings, here: Identity) -> None:
    """Raise `StateError` where this rank would read other samples than the ranks that began before it.

    Args:
        data_sets: those of which all ranks must have one version.
        settings: of the order.
        here: this rank. Where it is one of a group of some of the ranks, other groups may have other samples.
    """
    group = process_group()
    if group is None:
        return  # nobody to ask
    if settings.name == "shard" and settings.shuffle:
        check_same(
            "order of samples",
            f"version {settings.version}",
            why="compressed and staged shards are read in another order than plain ones; let all ranks read the same "
            "copy of the data set",
        )
    for data in data_sets:
        for where, version in data.versions.items():
            check_same(f"index.json of {where}", version)
        if here.world_size == group.get_world_size():
            check_same(
                f"choice of samples of {storage.shown(data.base)}",
                data.fingerprint,
                about=json.dumps(_without_numbers(data.made_by)),
                why="give all ranks the same shards and views, which the data set divides among them; a loader that "
                "one rank alone iterates needs num_replicas=1 and rank=0",
            )


def _without_numbers(value: Any) -> Any:
    """Return the provenance of a view without numbers, by which ranks compare it apart from the job's other views."""
    if isinstance(value, Mapping):
        return {name: _without_numbers(one) for name, one in value.items() if not isinstance(one, (int, float))}
    return [_without_numbers(one) for one in value] if isinstance(value, (list, tuple)) else value
