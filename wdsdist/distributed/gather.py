"""Values of all ranks, through the store of the process group: no collective is involved, and no rank fails another."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter

from wdsdist.distributed.identity import process_group
from wdsdist.distributed.job_store import member_of
from wdsdist.distributed.membership import stamped

_PAUSE = 0.05
"""Seconds between looks for what other ranks have written."""

_gathered: Counter[str] = Counter()
"""Calls for each name in this process: the first is answered by the other ranks' first, and so on."""


def gather(name: str, value: str, seconds: float) -> list[str | None]:
    """Return the value of each rank, which all call this with the same name; ``None`` of one that did not in time.

    Without a process group there is this process alone.
    """
    _gathered[name] += 1
    dist = process_group()
    if dist is None or dist.get_world_size() == 1:
        return [value]
    found: list[str | None] = [None] * dist.get_world_size()
    found[dist.get_rank()] = value
    until = time.monotonic() + seconds
    with contextlib.suppress(RuntimeError):  # the store ended with its host
        member = member_of(dist)
        keys = [f"gather/{name}/{rank}" for rank in range(member.world_size)]
        member.store.set(keys[member.rank], stamped(member.store, number=_gathered[name], value=value))
        while True:
            missing = [rank for rank, one in enumerate(found) if one is None]
            for rank, written in zip(missing, member.read([keys[rank] for rank in missing]), strict=True):
                note = json.loads(written) if written else None
                # A rank that is ahead has replaced what it said by something newer.
                if note and member.is_current(note) and note["number"] >= _gathered[name]:
                    found[rank] = note["value"]
            if None not in found or time.monotonic() >= until:
                return found
            time.sleep(_PAUSE)
    return found
