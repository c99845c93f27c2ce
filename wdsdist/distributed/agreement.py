"""Check that a value is the same on all ranks, through the store of the process group, without a barrier."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter

from wdsdist.distributed.identity import process_group
from wdsdist.distributed.job_store import member_of
from wdsdist.distributed.membership import stamped
from wdsdist.errors import DataMismatchError

_compared: Counter[str] = Counter()
"""Comparisons of each name in this process: the first is compared with the other ranks' first, and so on."""


def check_same(name: str, value: str) -> None:
    """Raise `DataMismatchError` where this rank's value differs from that of the first rank to call this with ``name``.

    The first rank stores its value. No rank waits for another. Without a process group nothing is compared. The error
    names both ranks and values.

    >>> check_same("index.json of s3://bucket/train", "6f0c...")
    """
    dist = process_group()
    if dist is None or dist.get_world_size() == 1:
        return
    _compared[name] += 1
    key = f"same/{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}/{_compared[name]}"
    first = None
    with contextlib.suppress(RuntimeError):  # the store ended with its host: other calls report that
        member = member_of(dist)
        (written,) = member.read([key])
        if not (written and member.is_current(json.loads(written))):  # none, or of an earlier attempt
            mine = stamped(member.store, rank=member.rank, value=value)
            written = member.store.compare_set(key, (written or b"").decode(), mine)
        first = json.loads(written)
    if first is not None and first["value"] != value:
        raise DataMismatchError(
            f"rank {dist.get_rank()} reads another {name} than rank {first['rank']} ({value[:12]}, not "
            f"{first['value'][:12]}): it was replaced while the job started, or one node used a copy while the store "
            f"was away; start the job again"
        )
