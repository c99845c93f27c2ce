"""The command ``info``, which shows what a data set holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.options import command, json_option, of_shards, opened
from wdsdist.cli.output import described, say, say_json

_NAMED = 10
"""Most classes and fields that are named; more are counted."""


@command("wdsdist info shards", "wdsdist info s3://bucket/train --json")
@of_shards
@click.option("--all", "everything", is_flag=True, help="Read the indexes of all shards.")
@json_option
def info(shards: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Show what SHARDS hold: samples, fields, sizes, classes, columns.

    If there are many shards, only the indexes of some evenly spaced shards are read, and the output shows their number.
    Class counts come from the column cls, or in a small data set without this column from the members.
    """
    from wdsdist.diagnostics.summary import summary

    facts = summary(opened(*shards), everything=everything)
    if as_json:
        say_json(facts)
        return
    for name, lines in _lines(facts).items():
        for number, line in enumerate(lines):
            say(f"{'' if number else name + ':':<13}{line}")


def _lines(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lines of each name that is shown; those that do not apply are left out."""
    fields, shards, checked = facts["field_counts"], facts["shards"], facts["with_checksums"]
    sizes = {"sample": facts["sizes"]["sample"], **facts["sizes"]["fields"]} if facts["sizes"]["sample"] else {}
    generations = [
        f"{each['generation']:,}: {counted(each['samples'], 'sample')} in {counted(each['shards'], 'shard')}"
        for each in facts["generations"]
    ]
    lines = {
        "location": [facts["location"]],
        "samples": [f"{facts['samples']:,}"],
        "shards": [f"{shards:,}"],
        "bytes": [f"{human(facts['bytes'])} ({facts['bytes']:,})"],
        "tars": [f"{human(facts['tar_bytes'])}, decompressed" if facts["tar_bytes"] != facts["bytes"] else ""],
        "mean sample": [human(facts["mean_sample_bytes"])],
        "fields": [
            _listed(f"{name} {fields[name]:,}" if name in fields else name for name in facts["fields"]) or "none"
        ],
        "missing": [_listed(f"{name} in {counted(count, 'sample')}" for name, count in facts["missing"].items())],
        "sizes": _first([f"{name} {_range(spread)}" for name, spread in sizes.items()]),
        "looked at": [_looked_at(facts)],
        "keys": [facts.get("keys", "")],
        "checksums": [
            "of each member"
            if checked == shards
            else f"of {checked:,} of {shards:,} shards: members of the others are checked by their tar headers"
        ],
        "classes": [_classes(facts)],
        "generations": [", ".join(generations) if len(generations) > 1 else ""],
        "columns": [_column(name, facts["column_figures"][name]) for name in facts["columns"]],
        "view": [described(step) for step in facts["view"]],
        "problems": facts["problems"],
    }
    return {name: shown for name, entries in lines.items() if (shown := [line for line in entries if line])}


def _listed(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return ", ".join(_first(list(names)))


def _first(names: list[str]) -> list[str]:
    return names if len(names) <= _NAMED else [*names[:_NAMED], f"and {len(names) - _NAMED:,} more"]


def _range(spread: Mapping[str, Any], show: Callable[[Any], str] = human) -> str:
    """Return the range of some sizes or numbers, and their median.

    >>> _range({"min": 10, "median": 2048, "max": 4096}), _range({"min": 8, "median": 8, "max": 8})
    ('10 B to 4.0 KiB, median 2.0 KiB', '8 B')
    """
    least, median, most = (show(spread[name]) for name in ("min", "median", "max"))
    return least if spread["min"] == spread["max"] else f"{least} to {most}, median {median}"


def _looked_at(facts: Mapping[str, Any]) -> str:
    looked = facts["looked_at"]
    if looked["samples"] == facts["samples"]:
        return ""
    part = f"{counted(looked['samples'], 'sample')} in {looked['shards']:,} of {counted(facts['shards'], 'shard')}"
    return f"{part}, for the counts and sizes of fields: --all reads every index"


def _classes(facts: Mapping[str, Any]) -> str:
    names, counts = facts["classes"], facts["class_counts"]
    if counts is None:
        advice = "; add the column cls to count them" if "cls" in facts["fields"] else ""
        return f"{len(names):,}: {_listed(names)}{advice}" if names else f"not recorded{advice}"
    string = f"{max(len(names or ()), len(counts)):,}"
    if len(counts) > _NAMED:
        string += f", of {min(counts.values()):,} to {counted(max(counts.values()), 'sample')}"
        counts = dict(sorted(counts.items(), key=lambda item: -item[1]))
    return f"{string}: {_listed(f'{name} ({count:,})' for name, count in counts.items())}"


def _column(name: str, figures: Mapping[str, Any]) -> str:
    """Return a column with its range or its most frequent values.

    >>> _column("jpg.width", {"kind": "int", "missing": 2, "min": 64, "median": 500, "max": 4000})
    'jpg.width: int, 64 to 4,000, median 500; missing in 2 samples'
    """
    if not figures:
        return f"{name}: not read"
    line = f"{name}: {figures['kind']}"
    if "median" in figures:
        line += f", {_range(figures, lambda number: format(number, ',' if isinstance(number, int) else ',.6g'))}"
    elif figures.get("most_frequent"):
        shown = [f"{value[:40]} ({count:,})" for value, count in figures["most_frequent"][:3]]
        more = figures["different"] - len(shown)
        line += f", {', '.join(shown)}{f' and {more:,} more' if more > 0 else ''}"
    return line + (f"; missing in {counted(figures['missing'], 'sample')}" if figures["missing"] else "")
