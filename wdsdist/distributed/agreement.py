"""Check that all ranks of a job read the same data, through the store of the process group, without a barrier."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter

from wdsdist.distributed.identity import process_group
from wdsdist.distributed.job_store import current_job
from wdsdist.errors import StateError

_calls: Counter[str] = Counter()
"""Calls for each name in this process: the first is compared with the other ranks' first, and so on."""

_REPLACED = "it was replaced while the job started; start the job again"


def check_same(name: str, value: str, *, why: str = _REPLACED, about: str = "") -> None:
    """Raise `StateError` if this rank's value differs from the value of the first rank to call this with ``name``.

    No rank waits for another. Without a process group nothing is compared.

    Args:
        name: what the value is, for the message.
        value: a digest or a version.
        why: the cause and the remedy, which end the message.
        about: distinguishes calls with the same name.

    >>> check_same("index.json of s3://bucket/train", "6f0c...")
    """
    call = f"{name} {about}"
    _calls[call] += 1
    if process_group() is None:
        return
    key = f"same/{hashlib.sha256(f'{call} {_calls[call]}'.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
    first = None
    with contextlib.suppress(RuntimeError):  # the store ended with its host: other calls report it
        job = current_job()
        first = job and job.write_first(key, rank=job.rank, value=value)
    if job and first and first["value"] != value:
        raise StateError(
            f"rank {job.rank} reads another {name} than rank {first['rank']} ({value[:12]}, not "
            f"{first['value'][:12]}): {why}"
        )
