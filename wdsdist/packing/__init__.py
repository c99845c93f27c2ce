"""Turn what people download into WebDataset shards: in parallel, atomically, and resumably."""

from wdsdist.packing.run import PackProgress, pack

__all__ = ["PackProgress", "pack"]
