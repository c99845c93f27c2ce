"""The manifest of a data set: its shards with sample counts, sizes and digests, and ``index.json`` on disk."""

from wdsdist.shards.manifest.allowed_locations import check_location, trust
from wdsdist.shards.manifest.index_json import APPEND_RECORD, FILE_NAME, PACK_RECORD, dumps, load, save
from wdsdist.shards.manifest.manifest import THIN, Manifest, Shard, index_name

__all__ = [
    "APPEND_RECORD",
    "FILE_NAME",
    "PACK_RECORD",
    "THIN",
    "Manifest",
    "Shard",
    "check_location",
    "dumps",
    "index_name",
    "load",
    "save",
    "trust",
]
