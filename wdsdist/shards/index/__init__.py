"""The index of one shard: where each member of each sample lies in its tar, as arrays that load by mmap."""

from wdsdist.shards.index.building import ShardIndexBuilder, from_members
from wdsdist.shards.index.files import SUFFIX, beside, dumps, load, loads
from wdsdist.shards.index.values import ShardIndex, Stored

__all__ = ["SUFFIX", "ShardIndex", "ShardIndexBuilder", "Stored", "beside", "dumps", "from_members", "load", "loads"]
