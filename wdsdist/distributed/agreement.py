"""Values that must be the same on all ranks, compared through the store of the process group without any waiting."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter

from wdsdist.distributed.failures import member_of, process_group
from wdsdist.distributed.membership import stamped
from wdsdist.errors import DataMismatchError

_compared: Counter[str] = Counter()
"""How often this process has compared a value of each name: the first with the first of others, and so on."""


def check_same(name: str, value: str) -> None:
    """Check that a value is that of the first rank that came here with one of this name; the first one leaves its own.

    Nobody waits: ranks that never come are not missed. Without a process group there is nothing to compare with.

    Raises `DataMismatchError` with both ranks and values where they differ.

    >>> check_same("index.json of s3://bucket/train", "6f0c...")
    """
    dist = process_group()
    if dist is None or dist.get_world_size() == 1:
        return
    _compared[name] += 1
    key = f"same/{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}/{_compared[name]}"
    first = None
    with contextlib.suppress(RuntimeError):  # a store that its host has taken along: others tell of that
        member = member_of(dist)
        (written,) = member.read([key])
        if not (written and member.is_current(json.loads(written))):  # nothing, or by an earlier attempt at the job
            mine = stamped(member.store, rank=member.rank, value=value)
            written = member.store.compare_set(key, (written or b"").decode(), mine)
        first = json.loads(written)
    if first is not None and first["value"] != value:
        raise DataMismatchError(
            f"rank {dist.get_rank()} reads another {name} than rank {first['rank']} ({value[:12]}, not "
            f"{first['value'][:12]}): it was replaced while the job started, or one node used a copy while the store "
            f"was away; start the job again"
        )
