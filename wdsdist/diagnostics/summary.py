"""`summary`: the contents of a data set in figures, from its manifest, the indexes of its shards and its columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.curation import arrays, column_file, fields
from wdsdist.curation.columns import column as column_of
from wdsdist.curation.columns import sample_bytes
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.diagnostics.view import figures
from wdsdist.errors import WdsdistError
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.shard_indexes import shard_indexes

if TYPE_CHECKING:
    from wdsdist.shards.index import ShardIndex
    from wdsdist.shards.manifest import Manifest

_KEPT = 1_000_000
"""Values of which a median is computed; of more, so many that are spread evenly."""
_TEXTS = 200_000
"""Texts of a column that are counted; of more, so many that are spread evenly."""
_CLASSES = 10_000
"""Classes up to which each is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a large data set a summary looks at."""

    shards: int = 256
    """Local shards whose indexes are read; of more, so many that are spread evenly."""
    far_shards: int = 64
    """The same of remote data."""
    samples: int = 1_000_000
    """Samples in these: of larger shards fewer are looked at."""
    members: int = 10_000
    """Members ``cls`` that are read to count classes where no column has them."""


class _Spread:
    """Least, median and most of numbers that come in parts."""

    def __init__(self, expected: int) -> None:
        self._stride = max(1, expected // _KEPT)
        self._kept: list[npt.NDArray[Any]] = []
        self._ends: list[Any] = []
        self.count = self.total = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Take in values of one shard."""
        if len(values):
            self.count += len(values)
            self.total += values.sum().item()
            self._ends += [values.min(), values.max()]
            self._kept.append(values[:: self._stride].copy())

    def facts(self) -> dict[str, float]:
        """Return the figures as JSON has them; none without values."""
        if not self.count:
            return {}
        median = float(np.median(np.concatenate(self._kept)))
        least, most = min(self._ends).item(), max(self._ends).item()
        return {"min": least, "median": int(median) if median.is_integer() else median, "max": most}


@dataclass(slots=True)
class _Members:
    """What the indexes of the shards that were looked at say."""

    shards: int
    samples: Int64s
    """int64 [shards looked at]: samples of each."""
    sizes: _Spread
    """Bytes of samples."""
    fields: dict[str, _Spread] = field(default_factory=dict)
    """Bytes of members, by their extension in lower case."""
    classes: list[Any] = field(default_factory=list)
    """Values of ``cls`` members of each shard, as far as they were read."""


def summary(manifest: Manifest, *, everything: bool = False, limits: Limits = Limits()) -> dict[str, Any]:
    """Return the contents of a data set or view, as JSON has them.

    Args:
        manifest: the data set.
        everything: read the indexes of all shards. By default figures on members are of some shards where there are
            many, as ``"looked_at"`` says.
        limits: how many these are.

    Raises what `wdsdist.open` raises for a shard, where the manifest does not say which fields there are; else what
    cannot be read is listed under ``"problems"``.
    """
    extra, problems = manifest.extra, list[str]()
    first, *others = (column_file.names(part) for part in manifest.data_sets)
    kept = [name for name in first if all(name in other for other in others)]
    has_classes = "cls" in kept
    try:
        found = _look(manifest, problems, limits, everything=everything, has_classes=has_classes)
    except WdsdistError as error:
        if "fields" not in extra or "payload_bytes" not in extra:
            raise
        problems.append(f"members were not looked at: {error}")
        found = _Members(0, np.zeros(0, np.int64), _Spread(0))
    samples, sizes = int(found.samples.sum()), found.sizes
    is_whole = samples == manifest.num_samples
    payload = extra.get("payload_bytes", sizes.total if is_whole else None)
    mean = payload / max(manifest.num_samples, 1) if payload is not None else sizes.total / max(samples, 1)
    counts, counted = _class_counts(manifest, found.classes, problems, has_column=has_classes)
    return {
        "location": storage.shown(manifest.base),
        "samples": manifest.num_samples,
        "shards": len(manifest.counts),
        "bytes": manifest.num_bytes,
        "tar_bytes": manifest.num_tar_bytes,
        "payload_bytes": payload,
        "mean_sample_bytes": round(mean, 1),
        "fields": sorted({*extra.get("fields", ()), *found.fields}),
        "looked_at": {"shards": found.shards, "samples": samples},
        "field_counts": {name: one.count for name, one in found.fields.items()},
        "missing": {name: gone for name, one in found.fields.items() if (gone := samples - one.count) > 0},
        "sizes": {"sample": sizes.facts(), "fields": {name: one.facts() for name, one in found.fields.items()}},
        "with_checksums": extra.get("with_checksums", 0),
        "classes": extra.get("classes"),
        "class_counts": counts,
        "classes_counted_in": counted,
        **({"keys": keys} if (keys := _keys(manifest)) else {}),
        "source": extra.get("source"),
        "shuffle_seed": extra.get("shuffle_seed"),
        "generations": [
            {"generation": number, "shards": shards, "samples": int(manifest.counts[:shards].sum())}
            for number, shards in enumerate(manifest.generations, 1)
        ],
        "columns": (columns := [*kept, *(PARTS if manifest.has_parts else ())]),
        "column_figures": {name: _figures(manifest, name, problems) for name in columns},
        "view": list(manifest.made_by),
        "problems": problems,
    }


def _look(manifest: Manifest, problems: list[str], limits: Limits, *, everything: bool, has_classes: bool) -> _Members:
    """Read indexes, and where there are no columns of classes, some of the members that name them."""
    numbers = np.flatnonzero(manifest.counts) if everything else _chosen(manifest, limits)
    total = int(manifest.counts[numbers].sum())
    found = _Members(len(numbers), manifest.counts[numbers], _Spread(total))
    budget = limits.members if total <= limits.members else max(1, limits.members // len(numbers))
    for number, index in shard_indexes(manifest, numbers.tolist()):
        part, place = manifest.part(number)
        if part.picks is not None:
            index = index.of_samples(part.picks.of_shard(place))
        found.sizes.add(sample_bytes(index))
        for name, sizes in _sizes(index):
            found.fields.setdefault(name, _Spread(total)).add(sizes)
        if not has_classes and len(found.classes) < limits.members and not manifest.is_copied[number]:
            try:
                found.classes.append(_cls(part, place, budget))
            except WdsdistError as error:
                problems.append(f"classes were not counted in all shards: {error}")
                has_classes = True  # as it would be with the next shards
    found.fields = dict(sorted(found.fields.items()))
    return found


def _chosen(manifest: Manifest, limits: Limits) -> Int64s:
    """Return the numbers of the shards that are looked at: all, or some that are spread evenly."""
    filled = np.flatnonzero(manifest.counts)
    is_far = len(filled) and storage.is_remote(manifest.location(int(filled[0])))
    stored = int(manifest.whole.counts[filled].sum())
    in_samples = limits.samples * max(1, len(filled)) // max(1, stored)
    most = min(limits.far_shards if is_far else limits.shards, len(filled), max(1, in_samples))
    return filled[evenly(len(filled), most)]


def _sizes(index: ShardIndex) -> list[tuple[str, Int64s]]:
    """Return the sizes of a shard's members by their extension in lower case."""
    names, ids = np.unique([one.lower() for one in index.extensions] or [""], return_inverse=True)
    ids = ids[index.extension_ids]
    order = np.argsort(ids, kind="stable")
    ends = np.searchsorted(ids[order], np.arange(1, len(names)))
    parts = zip(names.tolist(), np.split(index.sizes[order], ends), strict=True)
    return [(name, sizes) for name, sizes in parts if len(sizes)]


def _cls(part: Manifest, number: int, budget: int) -> Any:
    """Return the values of some of a shard's ``cls`` members."""
    samples = np.arange(part.counts[number]) if part.picks is None else part.picks.of_shard(number).astype(np.int64)
    if budget < len(samples):
        samples = samples[evenly(len(samples), budget)]
    return fields.read(part, number, [fields.Field("field", "cls")], samples)["cls"].values


def _class_counts(
    manifest: Manifest, read: list[Any], problems: list[str], *, has_column: bool
) -> tuple[dict[str, int] | None, int | None]:
    """Return the samples of each class by its name or number, and the samples that were counted; ``None`` for both
    where that is not known, and the first for more classes than anybody reads."""
    known = [one for one in read if one.null_count < len(one)]
    column = arrays.concatenated(known) if known else None
    if has_column:
        try:
            column = column_of(manifest, "cls")
        except WdsdistError as error:
            problems.append(str(error))
    if column is None or str(column.type) not in ("int64", "large_string"):
        return None, None
    labels = arrays.to_numpy(column.drop_null())
    labels = labels if str(column.type) == "int64" else labels.astype(str)
    values, counts = np.unique(labels, return_counts=True)
    if len(values) > _CLASSES:
        return None, len(labels)
    classes = manifest.extra.get("classes") or ()
    found: dict[str, int] = {}
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        name = classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)
        found[name] = found.get(name, 0) + count
    return found, len(labels)


def _figures(manifest: Manifest, name: str, problems: list[str]) -> dict[str, Any]:
    """Return figures of one column: of numbers the range and median, of others the most frequent values."""
    try:
        column = column_of(manifest, name)
        kind = arrays.KINDS[str(column.type)]
        about = {"kind": kind, "missing": column.null_count}
        if kind in ("int", "float"):
            spread = _Spread(len(column))
            values = arrays.to_numpy(column.drop_null())
            spread.add(values[np.isfinite(values)])
            return about | spread.facts()
        bars = figures.of_column(manifest, name, evenly(len(column), _TEXTS) if len(column) > _TEXTS else None)
        return about | {"most_frequent": bars["bars"], "different": bars["different"], "counted_in": bars["samples"]}
    except WdsdistError as error:
        problems.append(str(error))
        return {}


def _keys(manifest: Manifest) -> str | None:
    """Return where keys end in names, unless that is the first dot."""
    if manifest.key_rule != "first-dot":
        return f"by {manifest.key_rule}"
    rule = manifest.extra.get("source_key_rule")
    return f"by {rule} in the source, with dots as %2E" if rule else None
