"""Rank and world size of this process, functions that run once per node, and barriers.

Importing it does not import torch.
"""

from __future__ import annotations

from wdsdist.distributed.agreement import check_same
from wdsdist.distributed.barrier import barrier
from wdsdist.distributed.identity import Identity, identity
from wdsdist.distributed.run_once import data_download

__all__ = ["Identity", "barrier", "check_same", "data_download", "identity"]
