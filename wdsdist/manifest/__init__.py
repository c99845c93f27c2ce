"""The manifest of a data set: which shards it has, with their sample counts, sizes and digests."""

from wdsdist.manifest.files import FILE_NAME, dumps, load, save
from wdsdist.manifest.values import Manifest, Shard

__all__ = ["FILE_NAME", "Manifest", "Shard", "dumps", "load", "save"]
