"""Counts of columns for a page: a histogram of numbers, the most frequent of texts and classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.curation import arrays, columns, query
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.shards.manifest import Manifest

_BINS = 32
_BARS = 20
_MOST_COUNTED = 5_000_000
"""Values that are counted; of more, so many that are spread evenly, which bounds time and memory."""
_FEW = 20
"""Different integers up to which each has a bar of its own."""


def chosen_by(manifest: Manifest, where: str) -> Int64s:
    """Return the numbers of the samples for which an SQL expression over columns is true: int64 [samples].

    Of a mixture too, of which no view can be made.
    """
    return np.flatnonzero(query.is_true(manifest, where))


def of_column(
    manifest: Manifest, name: str, chosen: Int64s | None, classes: tuple[str, ...] = (), *, most: int = _MOST_COUNTED
) -> dict[str, Any]:
    """Return counts of one column over the chosen samples, or all, as JSON has them.

    Numbers of more than a few values come as bins, others as the counts of values, the most frequent first. Of more
    samples than ``most``, so many are counted.

    Raises `ArgumentError` where there is no such column, and `IndexFormatError` where its file cannot be used.
    """
    column = columns.column(manifest, name)
    if chosen is not None:
        column = column.take(chosen)
    total = len(column)
    if total > most:
        column = column.take(evenly(total, most))
    kind = arrays.KINDS[str(column.type)]
    about = {"name": name, "kind": kind, "samples": len(column), "missing": column.null_count, "of": total}
    values = arrays.to_numpy(column.drop_null())
    if kind in ("text", "bool"):
        return about | _bars(np.array([str(one) for one in values.tolist()], object))
    values = values[np.isfinite(values)]
    if not len(values):
        return about | {"bars": [], "others": 0}
    facts = about | {
        "least": float(values.min()), "most": float(values.max()), "mean": float(values.mean(dtype=np.float64)),
        "median": float(np.median(values)),
    }  # fmt: skip
    if kind == "int":
        different = np.unique(values[:10_000])
        if len(different) <= _FEW or (name == "cls" and classes):
            labels = np.array([_label(one, classes) for one in values.tolist()] if name == "cls" else [], object)
            return facts | _bars(labels if len(labels) else values)
    return facts | _bins(values)


def _label(number: int, classes: tuple[str, ...]) -> str:
    return f"{number} {classes[number]}" if 0 <= number < len(classes) else str(number)


def _bars(values: npt.NDArray[Any]) -> dict[str, Any]:
    different, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = np.sort(order) if len(order) <= _FEW and values.dtype != object else order[:_BARS]
    bars = [[str(different[one])[:200], int(counts[one])] for one in shown]
    return {"bars": bars, "others": int(counts[order[_BARS:]].sum()), "different": len(different)}


def _bins(values: npt.NDArray[Any]) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    bins = min(_BINS, int(high - low) + 1) if values.dtype.kind in "iu" else _BINS
    counts, edges = np.histogram(values, bins=bins, range=(low, high) if high > low else None)
    return {"counts": counts.tolist(), "edges": edges.tolist()}
