"""How a loader makes batches of samples of different lengths: the values of its argument ``batches``."""

from wdsdist.batching.values import Buckets, LengthGroups, PackedRows, TokenBudget

__all__ = ["Buckets", "LengthGroups", "PackedRows", "TokenBudget"]
