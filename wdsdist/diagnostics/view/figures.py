"""Counts of columns: a histogram of numbers, the most frequent of strings and classes, each with an SQL filter."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.arrow import KINDS, to_numpy
from wdsdist.curation import columns
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.shards.manifest import Manifest

_BINS = 32
_BARS = 20
_MOST_COUNTED = 5_000_000
"""Values that are counted; of more, so many that are spread evenly, which bounds time and memory."""
_FEW = 20
"""Different integers up to which each has a bar."""
_LONGEST = 200
"""Characters of a string that are shown."""


def of_column(
    manifest: Manifest, name: str, chosen: Int64s | None, classes: tuple[str, ...] = (), *, most: int = _MOST_COUNTED
) -> dict[str, Any]:
    """Return counts of one column over the chosen samples, or all, as JSON has them.

    Numbers of more than a few values come as bins, others as the counts of values, the most frequent first. Each comes
    with the SQL expression that chooses its samples. If there are more samples than ``most``, so many are counted.

    Raises `ArgumentError` if there is no such column, and `IndexFormatError` if its file cannot be used.
    """
    column = columns.column(manifest, name)
    if chosen is not None:
        column = column.take(chosen)
    total = len(column)
    if total > most:
        column = column.take(evenly(total, most))
    kind = KINDS[str(column.type)]
    about = {"name": name, "kind": kind, "samples": len(column), "missing": column.null_count, "of": total}
    values = to_numpy(column.drop_null())
    if kind in ("int", "float"):
        values = values[np.isfinite(values)]
        if not len(values):
            return about | {"bars": [], "others": 0, "different": 0}
        about |= {
            "least": values.min().item(), "most": values.max().item(), "mean": float(values.mean(dtype=np.float64)),
            "median": float(np.median(values)),
        }  # fmt: skip
        is_class = name == "cls" and bool(classes)
        if kind == "float" or not (is_class or len(np.unique(values[:10_000])) <= _FEW):
            low, high, column = about["least"], about["most"], _quoted(name)
            bins = min(_BINS, int(high - low) + 1) if kind == "int" else _BINS
            counts, ends = np.histogram(values, bins=bins, range=(low, high) if high > low else None)
            ways = ["<"] * (len(counts) - 1) + ["<="]
            wheres = [
                f"{column} >= {start} AND {column} {way} {stop}"
                for start, stop, way in zip(ends.tolist(), ends[1:].tolist(), ways, strict=False)
            ]
            return about | {"counts": counts.tolist(), "edges": ends.tolist(), "wheres": wheres}
    different, counts = np.unique(values.astype(str) if kind == "string" else values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = np.sort(order) if len(order) <= _FEW and kind == "int" else order[:_BARS]
    bars = []
    for value, count in zip(different[shown].tolist(), counts[shown].tolist(), strict=True):
        label = str(value)[:_LONGEST]
        if name == "cls" and isinstance(value, int) and 0 <= value < len(classes):
            label = f"{value} {classes[value]}"
        bars.append([label, count, equals(name, value)])
    return about | {"bars": bars, "others": int(counts[order[_BARS:]].sum()), "different": len(different)}


def equals(name: str, value: Any) -> str:
    """Return the SQL expression that is true for the samples with a value in a column.

    >>> equals("cls.name", "it's"), equals("json.width", 64), equals("json.ok", False)
    ('"cls.name" = \\'it\\'\\'s\\'', '"json.width" = 64', '"json.ok" = false')
    """
    literal = "'{}'".format(value.replace("'", "''")) if isinstance(value, str) else str(value).lower()
    return f"{_quoted(name)} = {literal}"


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
