"""Several data sets in one stream: `mix` by weight, `concat` one after another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fractions import Fraction
from numbers import Real
from typing import Any

from wdsdist import catalog, storage
from wdsdist.catalog import Shards
from wdsdist.checks import check_integer
from wdsdist.dataset import StreamingDataset
from wdsdist.errors import ArgumentError, ArgumentTypeError
from wdsdist.joined import JoinedManifest, join
from wdsdist.manifest import Manifest
from wdsdist.ordering import MixedOrdering

Share = float | tuple[Shards, float]

_MOST_UNEQUAL = 1_000_000
"""How many times as heavy as another a data set may be."""


def mix(
    shares: Mapping[Any, Share], *, stratified: bool = True, samples_per_epoch: int | None = None, **options: Any
) -> MixedDataset:
    """Mix data sets into one stream by weight; hand it to a `StreamingDataLoader` as any `StreamingDataset`.

    Each data set plays its own epochs, one after another, in orders of their own: a small one repeats, and gives each
    of its samples once before any comes again. It goes on where it stood when an epoch of the mix ends. An epoch of
    the mix has as many samples on every rank as ``len`` says, and resumes as that of one data set, on any world.

    Samples and batches say under ``"__dataset__"`` where they come from.

    Args:
        shares: the weight of each data set by its location, as in ``{"s3://bucket/web": 0.7, "/data/books": 0.3}``;
            or by a name of yours, with the location, as in ``{"web": ("s3://bucket/web", 0.7), ...}``. Weights need
            not sum to 1. A location is whatever `wdsdist.open` takes.
        stratified: give each batch of a rank its share of each data set: to within one sample of two data sets, two
            of three, four of any number, and exactly where all shares are whole numbers. That needs lanes that the
            world size divides, as those of a run that keeps its world size; other worlds share out the global batch
            alike, but not each rank's. With
            ``False`` the places of data sets are shuffled, among 1,024 samples of a lane, so that the shares of a
            batch vary as those of random draws do, and are right on average.
        samples_per_epoch: length of an epoch of the mix; by default the samples of all data sets together. What the
            loader drops at the end of an epoch to make batches whole is not made up for: make it a multiple of the
            global batch where each sample counts.
        options: arguments of `StreamingDataset`, for all data sets alike, but for ``order``, which is ``"shard"``.

    Raises:
        ArgumentError: a weight is not above 0, a data set has no samples, or two have the same name.

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
        raise ArgumentTypeError(f"shares is {shares!r}: it must map locations of data sets to their weights")
    sources = [
        (share if isinstance(share, tuple) and len(share) == 2 else (location, share), location)
        for location, share in shares.items()
    ]
    weights = [_weight(label, weight) for (_, weight), label in sources]
    if weights and max(weights) > _MOST_UNEQUAL * min(weights):
        raise ArgumentError(
            f"weights are {float(min(weights)):g} to {float(max(weights)):g}: the largest may be {_MOST_UNEQUAL:,} "
            f"times the smallest"
        )
    manifest = _joined([(shards, label) for (shards, _), label in sources], options)
    return MixedDataset(
        manifest, weights=weights, stratified=stratified, samples_per_epoch=samples_per_epoch, **options
    )


def concat(data_sets: Iterable[Shards] | Mapping[str, Shards], **options: Any) -> StreamingDataset:
    """Join data sets into one: an epoch has every sample of each of them once, shuffled together.

    Samples and batches say under ``"__dataset__"`` where they come from.

    Args:
        data_sets: their locations, each whatever `wdsdist.open` takes, or a mapping from names to locations.
        options: arguments of `StreamingDataset`, for all data sets alike.

    Raises:
        ArgumentError: there is no data set, or two have the same name.

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
    if isinstance(data_sets, (str, os.PathLike, Manifest)) or not isinstance(data_sets, Iterable):
        raise ArgumentTypeError(f"data_sets is {data_sets!r}: it must be a list of data sets")
    if isinstance(data_sets, Mapping):
        sources = [(shards, label) for label, shards in data_sets.items()]
    else:
        sources = [(shards, shards) for shards in data_sets]
    return StreamingDataset(_joined(sources, options), **options)


class MixedDataset(StreamingDataset):
    """Several data sets in one stream, by weight. Made by `mix`."""

    manifest: JoinedManifest

    def __init__(
        self,
        manifest: JoinedManifest,
        *,
        weights: list[Fraction],
        stratified: bool,
        samples_per_epoch: int | None,
        **options: Any,
    ) -> None:
        if options.get("order", "shard") != "shard":
            raise ArgumentError(f"order is {options['order']!r}: that of a mix can be 'shard' only")
        super().__init__(manifest, **options)
        for part, label in zip(manifest.parts, manifest.labels, strict=True):
            if not part.num_samples:
                raise ArgumentError(f"the data set {label!r} has no samples: leave it out of the mix")
        length = manifest.num_samples if samples_per_epoch is None else samples_per_epoch
        self.ordering = MixedOrdering(
            manifest=manifest,
            given=self.ordering.given,
            lanes=self.ordering.lanes,
            window=self.ordering.window,
            cache_limit=self.ordering.cache_limit,
            weights=tuple(weights),
            stratified=bool(stratified),
            samples_per_epoch=check_integer("samples_per_epoch", length, 1, 2**53),
        )


def _joined(sources: list[tuple[Shards, Any]], options: Mapping[str, Any]) -> JoinedManifest:
    """Open data sets, each given with its name or what it shall be named after."""
    opening = {name: options.get(name) for name in ("storage_options", "download_timeout")}
    parts = [catalog.open(shards, **opening) for shards, _ in sources]
    return join(parts, [_label(name) for _, name in sources])


def _label(name: Any) -> str:
    if isinstance(name, Manifest):
        return storage.shown(name.base)
    if isinstance(name, (str, os.PathLike)):
        return storage.shown(os.fspath(name))
    return str(name)


def _weight(name: Any, weight: Any) -> Fraction:
    """Return a weight as the fraction that was written: 0.1 is a tenth, not the binary number next to it."""
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise ArgumentTypeError(f"the weight of {_label(name)!r} is {weight!r}: it must be a number")
    if not 0 < float(weight) < float("inf"):
        raise ArgumentError(f"the weight of {_label(name)!r} is {weight!r}: it must be above 0 and finite")
    return Fraction(str(weight))
