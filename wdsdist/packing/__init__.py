"""Turn what people download into WebDataset shards: in parallel, atomically, and resumably."""

from wdsdist.packing.parallel import PackProgress
from wdsdist.packing.run import pack
from wdsdist.packing.sources import splits_of

__all__ = ["PackProgress", "pack", "splits_of"]
