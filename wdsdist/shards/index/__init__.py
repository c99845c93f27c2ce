"""The shard index: the offsets and sizes of the members of each sample in a tar, as arrays that load by mmap."""

from wdsdist.shards.index import checksums
from wdsdist.shards.index.files import SUFFIX, beside, dumps, load, loads
from wdsdist.shards.index.values import (
    STRICT,
    ShardIndex,
    ShardIndexBuilder,
    Stored,
    Tolerance,
    from_members,
    tolerance_of,
)

__all__ = [
    "STRICT",
    "SUFFIX",
    "ShardIndex",
    "ShardIndexBuilder",
    "Stored",
    "Tolerance",
    "beside",
    "checksums",
    "dumps",
    "from_members",
    "load",
    "loads",
    "tolerance_of",
]
