"""Several data sets in one stream: `mix` by weight, `concat` one after another."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real
from typing import Any

from wdsdist import storage
from wdsdist.errors import ArgumentError
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.samples.bad_samples import STRICT, BadSamplePolicy
from wdsdist.samples.fields import Fields
from wdsdist.samples.sample_spec import Decoder, SampleSpec
from wdsdist.sampling.mix_order import Deal, MixOrder
from wdsdist.sampling.order import Order, OrderConfig, OrderSettings, default_window
from wdsdist.sampling.permutation import mix_key
from wdsdist.shards import open as catalog
from wdsdist.shards.manifest import Manifest, join
from wdsdist.shards.open import Shards

Source = Shards | StreamingDataset
"""A data set, by its location or as one whose samples are made in a way of its own."""

_MOST_UNEQUAL = 1_000_000
"""The most times that a data set may be as heavy as another."""

_ORDERING = ("name", "seed", "shuffle", "shuffle_window", "num_canonical_replicas", "samples_per_epoch")
_FOR_ALL = ("replica", "drop_last", "mark_padding", "error_budget", "batch_size", "cache")
"""Attributes of an `OrderConfig` and of a `StreamingDataset` that all data sets in one stream have in common."""


def mix(
    shares: Mapping[Any, float | tuple[Source, float]],
    *,
    samples_per_epoch: int | None = None,
    **options: Any,
) -> StreamingDataset:
    """Mix data sets by weight into one stream; pass it to a `StreamingDataLoader` like any `StreamingDataset`.

    Each data set runs through its own epochs, each in its own order: a small data set repeats, and gives every sample
    once before any repeats. The next epoch of the mix continues where each data set stopped. Length and resume are
    exact on any world size, as for one data set.

    Each batch of a rank has its share of each data set: to within one sample for two data sets, two for three, four for
    any number, and exactly if all shares are whole numbers. This needs a lane for each rank, as in a run that keeps its
    world size.

    ``"__dataset__"`` of a sample or batch names the data set.

    Args:
        shares: the weight of each data set by its location, as in ``{"s3://bucket/web": 0.7, "/data/books": 0.3}``; or
            by a name of your choice, with the location, as in ``{"web": ("s3://bucket/web", 0.7), ...}``. Weights need
            not sum to 1. A location is anything that `wdsdist.open` takes. If data sets need different ``fields``,
            ``decode`` or ``transform``, pass a `StreamingDataset` with these arguments as location.
        samples_per_epoch: number of samples of an epoch of the mix, over all ranks; by default the sum of all data
            sets. Samples that the loader drops at the end of an epoch do not come later.
        options: arguments of `StreamingDataset` for all data sets, except ``order``, which is ``"shard"``.

    Raises:
        ArgumentError: a weight is not above 0, a data set has no samples, two have the same name or other numbers of
            classes, or one is a `StreamingDataset` with its own order, or its own decoding while ``options`` set one.

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
        raise ArgumentError(f"shares is {shares!r}: it must map locations to their weights", argument="shares")
    paired = {
        name: share if isinstance(share, tuple) and len(share) == 2 else (name, share) for name, share in shares.items()
    }
    sources = [(source, label) for label, (source, _) in paired.items()]
    fractions = _fractions({label: weight for label, (_, weight) in paired.items()})
    if options.get("order", "shard") != "shard":
        raise ArgumentError(f"order is {options['order']!r}: a mix can have 'shard' only", argument="order")
    dataset = _joined(sources, options)
    for part, label in zip(dataset.manifest.parts, dataset.manifest.labels, strict=True):
        if not part.num_samples:
            raise ArgumentError(f"the data set {label!r} has no samples: leave it out of the mix")
    settings = dict(vars(dataset.order_config))
    settings["samples_per_epoch"] = dataset.num_samples if samples_per_epoch is None else samples_per_epoch
    dataset.order_config = MixedOrderConfig(**settings, weights=fractions)
    return dataset


def concat(data_sets: Iterable[Source] | Mapping[str, Source], **options: Any) -> StreamingDataset:
    """Join data sets into one: an epoch has every sample of each once, shuffled together.

    ``"__dataset__"`` of a sample or batch names the data set.

    Args:
        data_sets: their locations, each anything that `wdsdist.open` takes, or a mapping from names to locations. A
            location may be a `StreamingDataset`, as in `mix`.
        options: arguments of `StreamingDataset` for all data sets.

    Raises:
        ArgumentError: there is no data set, or `mix` would refuse one, as for its name or the numbers of its classes.

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
        raise ArgumentError(f"data_sets is {data_sets!r}: it must be a list of data sets", argument="data_sets")
    named = data_sets.items() if isinstance(data_sets, Mapping) else ((shards, shards) for shards in data_sets)
    return _joined([(shards, label) for label, shards in named], options)


@dataclass(frozen=True, kw_only=True)
class MixedOrderConfig(OrderConfig):
    """The order of several data sets in one stream."""

    weights: tuple[Fraction, ...]
    """Shares of an epoch, which sum to 1."""

    @property
    def mean_sample_bytes(self) -> int:
        parts = zip(self.weights, self.manifest.parts, strict=True)
        return int(sum(weight * part.mean_sample_bytes for weight, part in parts))

    @functools.cached_property
    def fingerprint(self) -> str:
        parts = zip(self.manifest.parts, self.windows, strict=True)
        lines = "\n".join(f"{part.fingerprint} {window}" for part, window in parts)
        return hashlib.sha256(lines.encode()).hexdigest()[:32]

    @property
    def notes(self) -> dict[str, str]:
        return {"mix": " ".join(map(str, self.weights))}

    def bytes_at_once(self, settings: OrderSettings, num_replicas: int, ranks: int) -> int:
        parts = zip(self.manifest.parts, self._settings_of_each(settings), strict=True)
        return sum(OrderConfig(manifest=part).bytes_at_once(own, num_replicas, ranks) for part, own in parts)

    def _order(self, settings: OrderSettings, epoch: int) -> Order:
        deal = Deal(
            self.weights, num_samples=self.num_samples, lanes=settings.num_canonical_replicas, seed=settings.seed,
            epoch=epoch,
        )  # fmt: skip
        return MixOrder(deal, [part.counts for part in self.manifest.parts], self._settings_of_each(settings))

    def _settings_of_each(self, settings: OrderSettings) -> list[OrderSettings]:
        """Return the settings of the own order of each data set, with windows of its own."""
        return [
            replace(settings, seed=mix_key(settings.seed, number), window=min(window, settings.window))
            for number, window in enumerate(self.windows)
        ]

    @functools.cached_property
    def windows(self) -> tuple[int, ...]:
        """The samples that a lane of each data set shuffles together; the settings have the largest."""
        return tuple(self.shuffle_window or default_window(part.counts) for part in self.manifest.parts)

    @property
    def default_window(self) -> int:
        return max(self.windows)


def _joined(sources: list[tuple[Source, Any]], options: dict[str, Any]) -> StreamingDataset:
    """Open the named data sets of a mix or concatenation as one data set.

    A source that is a `StreamingDataset` says how its samples are made.
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
    dataset = StreamingDataset(manifest, **options)
    if any(isinstance(source, StreamingDataset) for source, _ in sources):
        firsts = zip(itertools.accumulate((len(part.counts) for part in parts), initial=0), specs, strict=False)
        joined = {
            first + shard: replace(spec, policy=policy) if policy.replaces else spec
            for first, own in firsts
            for shard, spec in own.items()
        }
        dataset.sample_reader = replace(dataset.sample_reader, specs=joined)
    _check_classes(dataset)
    return dataset


def _check_classes(dataset: StreamingDataset) -> None:
    """Raise `ArgumentError` if data sets number classes differently, and one function decodes the labels of both."""
    first, known = 0, dict[Any, tuple[str, str]]()
    for data in dataset.manifest.data_sets:
        spec = [spec for start, spec in dataset.sample_reader.specs.items() if start <= first][-1]
        first, label = first + len(data.counts), data.sources[0].label
        if not spec.fields.are_all and "cls" not in spec.fields.names:
            continue
        for number, name in enumerate(data.extra.get("classes", ())):
            other, its_name = known.setdefault((spec.decoder.functions.get("cls"), number), (label, name))
            if name != its_name:
                raise ArgumentError(
                    f"class {number} is {its_name!r} in {other!r} and {name!r} in {label!r}: join a StreamingDataset "
                    f'of each, whose decode={{"cls": ...}} numbers the classes alike, or leave cls out of fields='
                )


def _check_part(dataset: StreamingDataset, label: str, options: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` if a data set has an order of its own, or ``options`` say how its samples are made."""
    if isinstance(dataset.order_config, MixedOrderConfig):
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
    usual = StreamingDataset(dataset.manifest)
    different = [name for name in _ORDERING if getattr(dataset.order_config, name) != getattr(usual.order_config, name)]
    different += [name for name in _FOR_ALL if getattr(dataset, name) != getattr(usual, name)]
    if different:
        raise ArgumentError(
            f"the data set {label!r} is a StreamingDataset with {', '.join(different)} of its own, but data sets in "
            f"one stream have all but fields, decode, transform, storage_options, on_error and quarantine in common: "
            f"give it to mix() or concat() instead"
        )


def _label(name: Any) -> str:
    manifest = name.manifest if isinstance(name, StreamingDataset) else name
    location = manifest.base if isinstance(manifest, Manifest) else name
    return storage.shown(os.fspath(location)) if isinstance(location, (str, os.PathLike)) else str(location)


def _fractions(weights: Mapping[Any, Any]) -> tuple[Fraction, ...]:
    """Return the share of each data set, after checks of their weights."""
    chosen = []
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < float(weight) < float("inf"):
            raise ArgumentError(
                f"the weight of {_label(name)!r} is {weight!r}: it must be a number above 0, as in "
                f"{{{_label(name)!r}: (location, 0.7)}}"
            )
        chosen.append(Fraction(str(weight)))  # as it was written: 0.1 is a tenth, not the binary number next to it
    if chosen and max(chosen) > _MOST_UNEQUAL * min(chosen):
        raise ArgumentError(
            f"weights are {float(min(chosen)):g} to {float(max(chosen)):g}: the largest may be {_MOST_UNEQUAL:,} times "
            f"the smallest"
        )
    return tuple(weight / sum(chosen) for weight in chosen)
