"""Read quarantine files as the entries that were written."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from wdsdist.shards.quarantine import BadEntry


def read(path: Path) -> list[BadEntry]:
    """Return the entries of a quarantine file, each once; lines that are cut off are skipped."""
    entries = dict[tuple[str, str, str], BadEntry]()
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            entry = BadEntry(**json.loads(line))
            entries.setdefault((entry.fingerprint, entry.shard, entry.key), entry)
    return list(entries.values())
