"""The manifest of a data set: which shards it has, with their sample counts, sizes and digests."""

from wdsdist.shards.manifest.files import FILE_NAME, PACK_RECORD, dumps, load, save
from wdsdist.shards.manifest.named import record
from wdsdist.shards.manifest.trust import check_location
from wdsdist.shards.manifest.values import Manifest, Shard

__all__ = ["FILE_NAME", "PACK_RECORD", "Manifest", "Shard", "check_location", "dumps", "load", "record", "save"]
