"""`summary`: the contents of a data set in figures, from its manifest, the indexes of its shards and its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.curation import arrays, column_file
from wdsdist.curation.columns import CLASS, ColumnReader, sample_bytes
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.diagnostics.view import figures
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.shard_indexes import shard_indexes

if TYPE_CHECKING:
    from wdsdist.shards.index import ShardIndex
    from wdsdist.shards.manifest import Manifest

_KEPT = 1_000_000
"""Values from which a median is computed, spread evenly over all."""
_CLASSES = 10_000
"""Classes up to which each is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a large data set a summary looks at."""

    shards: int = 256
    """Local shards whose indexes are read, spread evenly over all."""
    far_shards: int = 64
    """The same for remote data."""
    samples: int = 1_000_000
    """Samples in these shards: if shards are large, fewer are read."""
    members: int = 20_000
    """Samples up to which classes are counted by their members, if no file has the column ``cls``."""


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


def summary(manifest: Manifest, *, everything: bool = False, limits: Limits = Limits()) -> dict[str, Any]:
    """Return the contents of a data set or view, as JSON has them.

    Args:
        manifest: the data set.
        everything: read the indexes of all shards. By default, if there are many, the figures on members come from some
            shards, as ``"looked_at"`` says.
        limits: how many these are.

    Raises what `wdsdist.open` raises for a shard, if the manifest does not say which fields there are; any other
    problem is listed under ``"problems"``.
    """
    extra, problems = manifest.extra, list[str]()
    first, *others = (column_file.names(part) for part in manifest.data_sets)
    columns = [name for name in first if all(name in other for other in others)]
    columns += PARTS if manifest.has_parts else ()
    chosen = np.flatnonzero(manifest.counts) if everything else _chosen(manifest, limits)
    samples = int(manifest.counts[chosen].sum())
    sizes, fields = _Spread(samples), dict[str, _Spread]()
    try:
        for number, index in shard_indexes(manifest, chosen.tolist()):
            part, own = manifest.part(number)
            index = index if part.picks is None else index.of_samples(part.picks.of_shard(own))
            sizes.add(sample_bytes(index))
            for name, values in _sizes(index):
                fields.setdefault(name, _Spread(samples)).add(values)
    except WdsdistError as error:
        if "fields" not in extra or "payload_bytes" not in extra:
            raise
        problems.append(f"members were not looked at: {error}")
        chosen, samples, sizes, fields = chosen[:0], 0, _Spread(0), {}
    payload = extra.get("payload_bytes", sizes.total if samples == manifest.num_samples else None)
    mean = payload / max(manifest.num_samples, 1) if payload is not None else sizes.total / max(samples, 1)
    fields = dict(sorted(fields.items()))
    return {
        "location": storage.shown(manifest.base),
        "samples": manifest.num_samples,
        "shards": len(manifest.counts),
        "bytes": manifest.num_bytes,
        "tar_bytes": manifest.num_tar_bytes,
        "payload_bytes": payload,
        "mean_sample_bytes": round(mean, 1),
        "fields": sorted({*extra.get("fields", ()), *fields}),
        "looked_at": {"shards": len(chosen), "samples": samples},
        "field_counts": {name: field.count for name, field in fields.items()},
        "missing": {name: gone for name, field in fields.items() if (gone := samples - field.count) > 0},
        "sizes": {"sample": sizes.facts(), "fields": {name: field.facts() for name, field in fields.items()}},
        "with_checksums": extra.get("with_checksums", 0),
        "classes": extra.get("classes"),
        "class_counts": _class_counts(manifest, limits, problems),
        **({"keys": keys} if (keys := _keys(manifest)) else {}),
        "source": extra.get("source"),
        "shuffle_seed": extra.get("shuffle_seed"),
        "generations": [
            {"generation": number, "shards": shards, "samples": int(manifest.counts[:shards].sum())}
            for number, shards in enumerate(manifest.generations, 1)
        ],
        "columns": columns,
        "column_figures": {name: _figures(manifest, name, problems) for name in columns},
        "view": list(manifest.made_by),
        "problems": problems,
    }


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


def _class_counts(manifest: Manifest, limits: Limits, problems: list[str]) -> dict[str, int] | None:
    """Return the samples of each class by its name or number; ``None`` if they are not known, or too many.

    They come from the column ``cls``, which is read from the members of small data sets that have no file of it.
    """
    try:
        readers = [ColumnReader(part, CLASS) for part in manifest.data_sets if part.num_samples]
        is_kept = all(reader.stored is not None for reader in readers)
        if not readers or not (is_kept or (manifest.num_samples <= limits.members and not manifest.is_copied.any())):
            return None
        values = arrays.concatenated(
            [reader.read(np.flatnonzero(reader.manifest.counts).tolist()) for reader in readers]
        )
    except ArgumentError:  # samples have no cls, or its file lacks the newest shards, as the figures of columns say
        return None
    except WdsdistError as error:
        problems.append(f"classes were not counted: {error}")
        return None
    if arrays.KINDS[str(values.type)] not in ("int", "text") or values.null_count == len(values):
        return None
    labels = arrays.to_numpy(values.drop_null())
    different, counts = np.unique(labels if labels.dtype.kind == "i" else labels.astype(str), return_counts=True)
    if len(different) > _CLASSES:
        return None
    classes = manifest.extra.get("classes") or ()
    found: dict[str, int] = {}
    for value, count in zip(different.tolist(), counts.tolist(), strict=True):
        name = classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)
        found[name] = found.get(name, 0) + count
    return found


def _figures(manifest: Manifest, name: str, problems: list[str]) -> dict[str, Any]:
    """Return figures of one column: of numbers the range and median, of others the most frequent values."""
    try:
        figure = figures.of_column(manifest, name, None)
    except WdsdistError as error:
        problems.append(str(error))
        return {}
    about = {"kind": figure["kind"], "missing": figure["missing"]}
    if "median" in figure:
        return about | {"min": figure["least"], "median": figure["median"], "max": figure["most"]}
    most_frequent = [[value, count] for value, count, _ in figure["bars"]]
    return about | {"most_frequent": most_frequent, "different": figure["different"]}


def _keys(manifest: Manifest) -> str | None:
    """Return where keys end in names, unless that is the first dot."""
    if manifest.key_rule != "first-dot":
        return f"by {manifest.key_rule}"
    rule = manifest.extra.get("source_key_rule")
    return f"by {rule} in the source, with dots as %2E" if rule else None
