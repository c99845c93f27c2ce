"""Fetch no byte of a shard twice: a whole fetch takes what its sparse copy has, and a part what a whole fetch has."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.cache.extents import ExtentMap, coalesced, identity, without
from wdsdist.cache.locks import LockableFile, PlantedError
from wdsdist.cache.request import ShardRequest
from wdsdist.storage import link_speed

_AGAIN = 0.05
"""Share of a range that may come twice in any case, to spare requests: small extents between what is missing."""


def take_extents(request: ShardRequest, wanted: range) -> list[range]:
    """Write what a sparse copy has of a range of its shard into the part file; return what is left to fetch."""
    paths, everything = request.paths, np.array([[wanted.start, wanted.stop]])
    with contextlib.suppress(FileNotFoundError, PlantedError), contextlib.ExitStack() as stack:
        sparse = stack.enter_context(contextlib.closing(LockableFile(paths.sparse)))
        extents = stack.enter_context(contextlib.closing(ExtentMap(paths.extents)))
        is_there = sparse.lock(alone=False) and sparse.is_at(paths.sparse)
        if is_there and extents.is_of(identity(request.listed_size, request.listed.sha256)):
            # As much may come twice as comes in the time of one more request.
            excess = max(_AGAIN, link_speed(request.location).bytes_in_delay / len(wanted))
            left = coalesced(without(everything, extents.extents()), excess=excess)
            copy(sparse.fileno(), paths.part, without(everything, left))
            return [range(*one) for one in left.tolist()]
    return [wanted]


def copy(source: int, target: Path, ranges: Int64s) -> None:
    """Copy ranges of an open file to the same places of another one."""
    with target.open("r+b", buffering=0) as file:
        for start, stop in ranges.tolist():
            file.seek(start)
            while start < stop and (sent := os.sendfile(file.fileno(), source, start, stop - start)):
                start += sent
