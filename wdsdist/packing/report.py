"""The report of samples that were left out: a line of JSON for each, beside the shards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable

from wdsdist.packing.destination import Place
from wdsdist.packing.sources.source import LeftOut

FILE_NAME = "pack-report.jsonl"


def save(place: Place, left_out: Iterable[tuple[str | None, LeftOut]], *, added: bool) -> None:
    """Write the report beside the shards, or remove that of an earlier run where nothing was left out.

    Samples come with the shard that they were meant for; ``None`` where they were left out before there were any. They
    may be ``added`` to those in a report that is there.
    """
    lines = [
        json.dumps({"key": one.key, "shard": shard, "reason": one.reason}).encode() + b"\n" for shard, one in left_out
    ]
    if added:
        with contextlib.suppress(FileNotFoundError):
            again = set(lines)  # a run that was killed may have added them
            lines[:0] = [line for line in place.read(FILE_NAME).splitlines(keepends=True) if line not in again]
    if lines:
        with place.create(FILE_NAME) as stream:
            stream.writelines(lines)
    else:
        place.remove(FILE_NAME)
