"""The shard index: the offsets and sizes of the members of each sample in a tar, as arrays that load by mmap."""

from wdsdist.shards.index.building import ShardIndexBuilder, from_members
from wdsdist.shards.index.files import SUFFIX, beside, dumps, load, loads
from wdsdist.shards.index.values import ShardIndex, Stored

__all__ = ["SUFFIX", "ShardIndex", "ShardIndexBuilder", "Stored", "beside", "dumps", "from_members", "load", "loads"]
