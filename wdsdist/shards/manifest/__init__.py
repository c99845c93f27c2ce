"""The manifest of a data set: its shards with sample counts, sizes and digests, and ``index.json`` on disk."""

from wdsdist.shards.manifest.allowed_locations import check_location as check_location
from wdsdist.shards.manifest.index_json import FILE_NAME as FILE_NAME
from wdsdist.shards.manifest.index_json import PACK_RECORD as PACK_RECORD
from wdsdist.shards.manifest.index_json import dumps as dumps
from wdsdist.shards.manifest.index_json import load as load
from wdsdist.shards.manifest.listing import THIN as THIN
from wdsdist.shards.manifest.listing import Shard as Shard
from wdsdist.shards.manifest.listing import Source as Source
from wdsdist.shards.manifest.manifest import Manifest as Manifest
from wdsdist.shards.manifest.manifest import join as join
