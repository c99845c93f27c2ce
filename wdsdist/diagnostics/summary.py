"""`summary`: the contents of a data set in figures, from its manifest, the indexes of its shards and its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.arrow import KINDS, concatenated
from wdsdist.curation import column_file, columns
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.diagnostics.view import figures
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.shard_indexes import shard_indexes
from wdsdist.shards.source import picks_of
from wdsdist.shards.tar import FIRST_DOT

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_SHARDS, _FAR_SHARDS = 256, 64
"""Shards whose indexes are read, spread evenly over all; the second for remote data."""
_SAMPLES = 1_000_000
"""Samples in these shards: if shards are large, fewer are read."""
_MEMBERS = 20_000
"""Samples up to which classes are counted by their members, if no file has the column ``cls``."""
_CLASSES = 10_000
"""Classes up to which each is counted."""


def summary(manifest: Manifest, *, everything: bool = False) -> dict[str, Any]:
    """Return the contents of a data set or view, as JSON has them.

    If there are many shards, the figures on members come from some of them, as ``"looked_at"`` says, unless the indexes
    of all are to be read (``everything``).

    Raises what `wdsdist.open` raises for a shard, if the manifest does not say which fields there are; any other
    problem is listed under ``"problems"``.
    """
    extra, problems = manifest.extra, list[str]()
    first, *others = (column_file.names(part) for part in manifest.data_sets)
    names = [name for name in first if all(name in other for other in others)]
    names += PARTS if manifest.has_parts else ()
    chosen = np.flatnonzero(manifest.counts)
    if len(chosen) and not everything:
        most = _FAR_SHARDS if storage.is_remote(manifest.location(int(chosen[0]))) else _SHARDS
        in_samples = _SAMPLES * len(chosen) // int(manifest.whole.counts[chosen].sum())
        chosen = chosen[evenly(len(chosen), min(most, max(1, in_samples)))]
    looked_at = {"shards": len(chosen), "samples": int(manifest.counts[chosen].sum())}
    sample_sizes, field_sizes = list[Int64s](), dict[str, list[Int64s]]()
    try:
        for number, index in shard_indexes(manifest, chosen.tolist()):
            picks = picks_of(manifest, number)
            index = index if picks is None else index.of_samples(picks)
            sample_sizes.append(columns.sample_bytes(index))
            lowered = np.array([extension.lower() for extension in index.extensions])
            for name in set(lowered.tolist()):
                values = index.sizes[(lowered == name)[index.extension_ids]]
                field_sizes.setdefault(name, []).append(values)
    except WdsdistError as error:
        if "fields" not in extra or "payload_bytes" not in extra:
            raise
        problems.append(f"members were not looked at: {error}")
        looked_at, sample_sizes, field_sizes = {"shards": 0, "samples": 0}, [], {}
    sizes = np.concatenate([*sample_sizes, np.zeros(0, np.int64)])
    fields = {name: np.concatenate(values) for name, values in sorted(field_sizes.items())}
    fields = {name: values for name, values in fields.items() if len(values)}
    payload = extra.get("payload_bytes", int(sizes.sum()) if len(sizes) == manifest.num_samples else None)
    mean = payload / max(manifest.num_samples, 1) if payload is not None else sizes.sum() / max(len(sizes), 1)
    rule = extra.get("source_key_rule")  # where keys end in names, unless that is the first dot
    keys = f"by {rule} in the source, with dots as %2E" if rule else ""
    keys = keys if manifest.key_rule == FIRST_DOT else f"by {manifest.key_rule}"
    return {
        "location": storage.shown(manifest.base),
        "samples": manifest.num_samples,
        "shards": len(manifest.counts),
        "bytes": manifest.num_bytes,
        "tar_bytes": manifest.num_tar_bytes,
        "payload_bytes": payload,
        "mean_sample_bytes": round(float(mean), 1),
        "fields": sorted({*extra.get("fields", ()), *fields}),
        "looked_at": looked_at,
        "field_counts": {name: len(values) for name, values in fields.items()},
        "missing": {name: len(sizes) - len(values) for name, values in fields.items() if len(values) < len(sizes)},
        "sizes": {"sample": _spread(sizes), "fields": {name: _spread(values) for name, values in fields.items()}},
        "with_checksums": extra.get("with_checksums", 0),
        "classes": extra.get("classes"),
        # The figures come first: they read the classes of new shards into the column cls, which is counted then.
        "column_figures": {name: _figures(manifest, name, problems) for name in names},
        "class_counts": _class_counts(manifest, problems),
        **({"keys": keys} if keys else {}),
        "source": extra.get("source"),
        "shuffle_seed": extra.get("shuffle_seed"),
        "generations": [
            {"generation": number, "shards": shards, "samples": int(manifest.counts[:shards].sum())}
            for number, shards in enumerate(manifest.generations, 1)
        ],
        "columns": names,
        "view": list(manifest.made_by),
        "problems": problems,
    }


def _spread(sizes: npt.NDArray[Any]) -> dict[str, float]:
    """Return the least, median and most of some sizes; nothing if there are no sizes."""
    if not len(sizes):
        return {}
    median = float(np.median(sizes))
    middle = int(median) if median.is_integer() else median
    return {"min": sizes.min().item(), "median": middle, "max": sizes.max().item()}


def _class_counts(manifest: Manifest, problems: list[str]) -> dict[str, int] | None:
    """Return the samples of each class by its name or number; ``None`` if they are not known, or too many.

    They come from the column ``cls``, which is read from the members of small data sets that have no file of it.
    """
    try:
        readers = [columns.ColumnReader(part, columns.CLASS) for part in manifest.data_sets if part.num_samples]
        is_small = manifest.num_samples <= _MEMBERS and not manifest.is_copied.any()
        if not readers or not (is_small or all(reader.stored is not None for reader in readers)):
            return None
        values = concatenated([reader.read(np.flatnonzero(reader.manifest.counts).tolist()) for reader in readers])
    except ArgumentError:  # samples have no cls, or its file lacks the newest shards, as the figures of columns say
        return None
    except WdsdistError as error:
        problems.append(f"classes were not counted: {error}")
        return None
    if KINDS[str(values.type)] not in ("int", "string") or values.null_count == len(values):
        return None
    rows = values.drop_null().value_counts().to_pylist()
    if len(rows) > _CLASSES:
        return None
    classes = manifest.extra.get("classes") or ()
    counts: dict[str, int] = {}
    for value, count in sorted((row["values"], row["counts"]) for row in rows):
        name = classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)
        counts[name] = counts.get(name, 0) + count
    return counts


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
