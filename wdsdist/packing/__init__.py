"""Turn what people download into WebDataset shards: in parallel, atomically, and resumably."""

from wdsdist.packing.options import Images
from wdsdist.packing.parallel import PackProgress
from wdsdist.packing.run import pack, pack_splits, recognise

__all__ = ["Images", "PackProgress", "pack", "pack_splits", "recognise"]
