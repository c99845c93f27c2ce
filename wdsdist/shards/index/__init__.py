"""The shard index: the offsets and sizes of the members of each sample in a tar, as arrays that load by mmap."""

from wdsdist.shards.index.files import SUFFIX as SUFFIX
from wdsdist.shards.index.files import beside as beside
from wdsdist.shards.index.files import dumps as dumps
from wdsdist.shards.index.files import index_name as index_name
from wdsdist.shards.index.files import load as load
from wdsdist.shards.index.files import places as places
from wdsdist.shards.index.values import ShardIndex as ShardIndex
from wdsdist.shards.index.values import Stored as Stored
