"""Several data sets in one stream: `mix` by weight, `concat` one after another."""

from __future__ import annotations

import functools
import hashlib
import logging
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import zip_longest
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from wdsdist import storage
from wdsdist._util.validation import check_column, check_flag, check_integer
from wdsdist.distributed import Identity
from wdsdist.distributed.kept import kept_count
from wdsdist.errors import ArgumentError
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.order_config import OrderConfig
from wdsdist.samples.bad_samples import STRICT, BadSamplePolicy
from wdsdist.samples.fields import Fields
from wdsdist.samples.sample_spec import Decoder, SampleSpec
from wdsdist.sampling.mix_order import MixOrder, Mixture
from wdsdist.sampling.order import Order, OrderSettings, default_window
from wdsdist.shards import open as catalog
from wdsdist.shards.manifest import Manifest, join
from wdsdist.shards.spellings import Shards

Source = Shards | StreamingDataset
"""A data set, by its location or as one whose samples are made in a way of its own."""

Share = float | tuple[Source, float]

_log = logging.getLogger("wdsdist")

Dataset = TypeVar("Dataset", bound=StreamingDataset)

_MOST_UNEQUAL = 1_000_000
"""The most times that a data set may be as heavy as another."""


def mix(
    shares: Mapping[Any, Share | Source],
    *,
    weights: Mapping[Any, Any] | None = None,
    by: str | None = None,
    stratified: bool = True,
    samples_per_epoch: int | None = None,
    **options: Any,
) -> MixedDataset:
    """Mix data sets into one stream by weight; hand it to a `StreamingDataLoader` as any `StreamingDataset`.

    Each data set plays its own epochs, one after another, in orders of their own: a small one repeats, and gives each
    of its samples once before any comes again. The next epoch of the mix continues where a data set stood. An epoch of
    the mix has as many samples on every rank as ``len`` says, and resumes as that of one data set, on any world.

    Samples and batches have the name of their data set under ``"__dataset__"``.

    Args:
        shares: the weight of each data set by its location, as in ``{"s3://bucket/web": 0.7, "/data/books": 0.3}``;
            or by a name of yours, with the location, as in ``{"web": ("s3://bucket/web", 0.7), ...}``. Weights need
            not sum to 1. A location is whatever `wdsdist.open` takes; or, if data sets differ in how samples are
            made, a `StreamingDataset` with ``fields``, ``decode`` and ``transform`` of its own.
        weights: the weights by the names of the data sets; ``shares`` then maps names to locations only.
        by: a column of lengths, such as ``"input_ids.tokens"``, if weights are shares of the tokens; by default they
            are shares of the samples. A data set of documents twice as long then gives half as many. It takes a pass
            over the lengths of all samples, once on a node.
        stratified: give each batch of a rank its share of each data set: to within one sample of two data sets, two
            of three, four of any number, and exactly if all shares are whole numbers. That needs a lane for each
            rank, as a run that keeps its world size has; with several lanes it may be a few samples more. Worlds that
            do not divide the lanes share out the global batch alike, but not each rank's. With ``False`` the data sets
            are shuffled among 1,024 samples of a lane, so that the shares of a batch vary as random draws do, and are
            right on average.
        samples_per_epoch: length of an epoch of the mix; by default the samples of all data sets together. The samples
            that the loader drops at the end of an epoch do not come later: make it a multiple of the global batch if
            each sample counts.
        options: arguments of `StreamingDataset`, for all data sets alike, but for ``order``, which is ``"shard"``.

    Raises:
        ArgumentError: a weight is not above 0, a data set has no samples, two have the same name, or one is a
            `StreamingDataset` with an order of its own, such as a seed, or ``options`` say how its samples are made; or
            ``by`` is not a column of lengths in each.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wdsdist import StreamingDataLoader, pack
    >>> root = Path(tempfile.mkdtemp())
    >>> for name, samples in (("web", 12), ("books", 4)):
    ...     _ = pack(({"txt": f"{name} {number}"} for number in range(samples)), root / name)
    >>> dataset = mix({"web": (root / "web", 0.5), "books": (root / "books", 0.5)}, decode=True)
    >>> loader = StreamingDataLoader(dataset, batch_size=4, num_workers=0)
    >>> len(loader), [batch["__dataset__"].count("books") for batch in loader]
    (4, [2, 2, 2, 2])
    """
    if not isinstance(shares, Mapping):
        raise ArgumentError(f"shares is {shares!r}: it must map locations of data sets to their weights")
    if weights is None:
        paired = {
            name: share if isinstance(share, tuple) and len(share) == 2 else (name, share)
            for name, share in shares.items()
        }
        sources = [(source, label) for label, (source, _) in paired.items()]
        fractions = _fractions({label: weight for label, (_, weight) in paired.items()}, list(paired))
    else:
        sources = [(_without_weight(source, label), label) for label, source in shares.items()]
        fractions = _fractions(weights, list(shares))

    def mixed(manifest: Manifest) -> MixedDataset:
        return MixedDataset(
            manifest, weights=fractions, stratified=stratified, samples_per_epoch=samples_per_epoch, **options
        )

    dataset = _joined(sources, options, mixed)
    if by is not None:
        dataset.weigh_by(check_column("by", by))
    return dataset


def concat(data_sets: Iterable[Source] | Mapping[str, Source], **options: Any) -> StreamingDataset:
    """Join data sets into one: an epoch has every sample of each of them once, shuffled together.

    Samples and batches say under ``"__dataset__"`` where they come from.

    Args:
        data_sets: their locations, each whatever `wdsdist.open` takes, or a mapping from names to locations. Where
            data sets differ in how samples are made, `StreamingDataset` objects as in `mix`.
        options: arguments of `StreamingDataset`, for all data sets alike.

    Raises:
        ArgumentError: there is no data set, two have the same name, or one is a `StreamingDataset` as `mix` refuses.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wdsdist import pack
    >>> root = Path(tempfile.mkdtemp())
    >>> for name, samples in (("web", 12), ("books", 4)):
    ...     _ = pack(({"txt": f"{name} {number}"} for number in range(samples)), root / name)
    >>> dataset = concat([root / "web", root / "books"], decode=True)
    >>> dataset.num_samples, len({sample["txt"] for sample in dataset})
    (16, 16)
    """
    if isinstance(data_sets, (str, os.PathLike, Manifest, StreamingDataset)) or not isinstance(data_sets, Iterable):
        raise ArgumentError(f"data_sets is {data_sets!r}: it must be a list of data sets")
    if isinstance(data_sets, Mapping):
        sources = [(shards, label) for label, shards in data_sets.items()]
    else:
        sources = [(shards, shards) for shards in data_sets]
    return _joined(sources, options, lambda manifest: StreamingDataset(manifest, **options))


@dataclass(frozen=True, kw_only=True)
class MixedOrderConfig(OrderConfig):
    """The order of several data sets in one stream."""

    manifest: Manifest
    weights: tuple[Fraction, ...]
    """Shares of an epoch, which sum to 1."""
    stratified: bool

    @property
    def mean_sample_bytes(self) -> int:
        sizes = [part.mean_sample_bytes for part in self.manifest.parts]
        return int(sum(map(operator.mul, self.weights, sizes)))

    @functools.cached_property
    def fingerprint(self) -> str:
        parts = zip(self.manifest.parts, self.windows, strict=True)
        lines = "\n".join(f"{part.fingerprint} {window}" for part, window in parts)
        return hashlib.sha256(lines.encode()).hexdigest()[:32]

    @property
    def notes(self) -> dict[str, str]:
        return {"mix": " ".join(map(str, self.weights)), "stratified": str(self.stratified)}

    def bytes_at_once(self, settings: OrderSettings, here: Identity, ranks: int) -> int:
        parts = zip(self.manifest.parts, self._mixture.settings_of_each(settings), strict=True)
        configs = (OrderConfig(manifest=part, given=own) for part, own in parts)
        return sum(config.bytes_at_once(config.given, here, ranks) for config in configs)

    def _order(self, settings: OrderSettings, epoch: int) -> Order:
        return MixOrder(self._mixture, settings, epoch)

    @property
    def _mixture(self) -> Mixture:
        return Mixture(
            counts=tuple(part.counts for part in self.manifest.parts),
            windows=self.windows,
            weights=self.weights,
            num_samples=self.num_samples,
            stratified=self.stratified,
        )

    @functools.cached_property
    def windows(self) -> tuple[int, ...]:
        """The samples that a lane of each data set shuffles together; the settings have the largest."""
        return tuple(self.window or default_window(part.counts) for part in self.manifest.parts)


class MixedDataset(StreamingDataset):
    """Several data sets in one stream, by weight. Made by `mix`."""

    manifest: Manifest
    order_config: MixedOrderConfig

    def __init__(
        self,
        manifest: Manifest,
        *,
        weights: tuple[Fraction, ...],
        stratified: bool,
        samples_per_epoch: int | None,
        **options: Any,
    ) -> None:
        if options.get("order", "shard") != "shard":
            raise ArgumentError(f"order is {options['order']!r}: a mix can have 'shard' only", argument="order")
        super().__init__(manifest, **options)
        for part, label in zip(manifest.parts, manifest.labels, strict=True):
            if not part.num_samples:
                raise ArgumentError(f"the data set {label!r} has no samples: leave it out of the mix")
        length = self.manifest.num_samples if samples_per_epoch is None else samples_per_epoch
        config = MixedOrderConfig(
            manifest=self.manifest,  # which may be staged
            given=self.order_config.given,
            lanes=self.order_config.lanes,
            window=self.order_config.window,
            weights=weights,
            stratified=check_flag("stratified", stratified),
            samples_per_epoch=check_integer("samples_per_epoch", length, 1, 2**53),
        )
        self.order_config = replace(config, given=replace(config.given, window=max(config.windows)))

    def weigh_by(self, column: str) -> None:
        """Take the weights as shares of the sum of a column of lengths, in place of shares of the samples."""
        itemsizes = self.sample_reader.itemsizes
        means = [_mean_length(part, column, itemsizes) for part in self.manifest.parts]
        for mean, label in zip(means, self.manifest.labels, strict=True):
            if not mean:
                raise ArgumentError(f"the data set {label!r} has no {column}: leave it out, or weigh by samples")
        weights = _shares(map(operator.truediv, self.order_config.weights, means))
        self.order_config = replace(self.order_config, weights=weights)


def _mean_length(part: Manifest, column: str, itemsizes: dict[str, int]) -> Fraction:
    """Return the mean of a column of lengths, to a thousandth; it is kept for later runs."""
    from wdsdist.batching.lengths import lengths_of

    lengths = lengths_of(part, column, itemsizes)

    def total() -> int:
        return sum(int(lengths.of_shard(shard).sum()) for shard in np.flatnonzero(part.counts).tolist())

    kept = kept_count(f"sum of {column} {itemsizes} {part.fingerprint} {lengths.values.digest}", total)
    return Fraction(kept, part.num_samples).limit_denominator(1000)


def _joined(
    sources: list[tuple[Source, Any]], options: Mapping[str, Any], make: Callable[[Manifest], Dataset]
) -> Dataset:
    """Open data sets, each given with its name or what it shall be named after, and make one of them.

    Where any is a `StreamingDataset`, samples are made as each says.
    """
    labels = [_label(name) for _, name in sources]
    known = ("storage_options", "download_timeout", "allow_elsewhere")
    opening = {name: options[name] for name in known if name in options}
    parts: list[Manifest] = []
    specs: list[Mapping[int, SampleSpec]] = []
    for (source, _), label in zip(sources, labels, strict=True):
        if isinstance(source, StreamingDataset):
            _check_part(source, label, options)
            parts.append(source.manifest)
            specs.append(source.sample_reader.specs)
        else:
            parts.append(catalog.open(source, **opening))
            specs.append({0: SampleSpec(Fields(None), Decoder(None))})
    policy = BadSamplePolicy.of(options.get("on_error", "raise"), options.get("quarantine"))
    manifest = join(parts, labels)
    _warn_of_classes(parts, labels)
    dataset = make(manifest)
    if any(isinstance(source, StreamingDataset) for source, _ in sources):
        firsts = zip(manifest.first_shards.tolist(), specs, strict=True)
        dataset.sample_reader = dataset.sample_reader.with_specs(
            {
                first + shard: replace(spec, policy=policy) if policy.replaces else spec
                for first, own in firsts
                for shard, spec in own.items()
            }
        )
    return dataset


def _warn_of_classes(parts: list[Manifest], labels: list[str]) -> None:
    """Warn where two data sets number their classes differently, so that one ``cls`` means two things."""
    pairs = zip(labels, parts, strict=True)
    listed = [(label, part.extra["classes"]) for label, part in pairs if "classes" in part.extra]
    for label, classes in listed[1:]:
        first, known = listed[0]
        numbered = enumerate(zip_longest(known, classes, fillvalue="no class"))
        odd = next(((number, *names) for number, names in numbered if names[0] != names[1]), None)
        if odd is not None:
            _log.warning(
                "%s and %s have different classes: cls %d is %r in the one, %r in the other. If they belong "
                "together, pack the second with --classes-from the first", first, label, *odd,
            )  # fmt: skip
            return


def _check_part(dataset: StreamingDataset, label: str, options: Mapping[str, Any]) -> None:
    """Check that a data set says how its samples are made, alone does so, and says nothing of their order.

    How to handle bad samples may be said by it, or for all.
    """
    if isinstance(dataset, MixedDataset):
        raise ArgumentError(f"{label!r} is a mix itself: name its data sets, with weights, in place of it")
    own = ["fields", "decode", "transform"]
    if any(spec.policy != STRICT for spec in dataset.sample_reader.specs.values()):
        own += ["on_error", "quarantine"]
    for name in own:
        if options.get(name) is not None:
            raise ArgumentError(
                f"{name} is given for all data sets, but {label!r} is a StreamingDataset, which has its own: give it "
                f"to each data set, as in StreamingDataset(location, {name}=...)"
            )
    usual = _about_order(StreamingDataset(dataset.manifest))
    for name, value in _about_order(dataset).items():
        if value != usual[name]:
            raise ArgumentError(
                f"the data set {label!r} is a StreamingDataset with {name} of its own, but data sets in one stream "
                f"have all but fields, decode, transform, storage_options, on_error and quarantine in "
                f"common: give it to mix() or concat() instead"
            )


def _about_order(dataset: StreamingDataset) -> dict[str, Any]:
    """Return the arguments of a data set that concern its order rather than single samples, by name."""
    ordering, cache = dataset.order_config, dataset.cache
    return {
        "rank or num_replicas": dataset._replica,
        "shuffle": ordering.given.shuffle,
        "seed": ordering.given.seed,
        "drop_last": dataset.drop_last,
        "mark_padding": dataset.mark_padding,
        "samples_per_epoch": ordering.samples_per_epoch,
        "error_budget": dataset.error_budget,
        "order": ordering.given.name,
        "shuffle_window": ordering.window,
        "num_canonical_replicas": ordering.lanes,
        "batch_size": dataset.batch_size,
        "cache_dir": cache.folder,
        "cache_limit": cache.limit,
        "download_timeout": cache.timeout,
    }


def _label(name: Any) -> str:
    if isinstance(name, StreamingDataset):
        name = name.manifest
    if isinstance(name, Manifest):
        return storage.shown(name.base)
    if isinstance(name, (str, os.PathLike)):
        return storage.shown(os.fspath(name))
    return str(name)


def _without_weight(source: Any, label: Any) -> Source:
    """Return the location of a data set whose weight is given elsewhere."""
    if isinstance(source, Real) or (isinstance(source, tuple) and len(source) == 2):
        raise ArgumentError(f"the weight of {_label(label)!r} is given twice, in shares and in weights: name it in one")
    location: Source = source
    return location


def _fractions(weights: Any, names: list[Any]) -> tuple[Fraction, ...]:
    """Return the share of each data set, after checks of their weights."""
    if not isinstance(weights, Mapping):
        raise ArgumentError(f"weights is {weights!r}: it must map names of data sets to weights", argument="weights")
    odd = [*(name for name in weights if name not in names), *(name for name in names if name not in weights)]
    if odd:
        raise ArgumentError(
            f"weights are of {', '.join(map(_label, weights))}, and the data sets of the mix are "
            f"{', '.join(map(_label, names))}: give each a weight, such as {_label(odd[0])!r}",
            argument="weights",
        )
    chosen = [_weight(name, weights[name]) for name in names]
    if chosen and max(chosen) > _MOST_UNEQUAL * min(chosen):
        raise ArgumentError(
            f"weights are {float(min(chosen)):g} to {float(max(chosen)):g}: the largest may be {_MOST_UNEQUAL:,} times "
            f"the smallest"
        )
    return _shares(chosen)


def _shares(weights: Iterable[Fraction]) -> tuple[Fraction, ...]:
    listed = tuple(weights)
    return tuple(weight / sum(listed) for weight in listed)


def _weight(name: Any, weight: Any) -> Fraction:
    """Return a weight as the fraction that was written: 0.1 is a tenth, not the binary number next to it."""
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise ArgumentError(
            f"the weight of {_label(name)!r} is {weight!r}: it must be a number, as in "
            f"{{{_label(name)!r}: (location, 0.7)}}"
        )
    if not 0 < float(weight) < float("inf"):
        raise ArgumentError(f"the weight of {_label(name)!r} is {weight!r}: it must be above 0 and finite")
    return Fraction(str(weight))
