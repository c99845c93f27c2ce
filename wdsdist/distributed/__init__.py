"""Who this process is among the others, and what only one of them should do.

The one place in wdsdist that reads environment variables. Importing it does not import torch.
"""

from __future__ import annotations

from wdsdist._util.host import cpu_count, private_dir, private_under, user_cache_dir, user_config_dir
from wdsdist.distributed.agreement import check_same
from wdsdist.distributed.barrier import barrier
from wdsdist.distributed.identity import Identity, identity
from wdsdist.distributed.ownership import TRUST_ALL, is_own_file, is_owner, open_parent, read_own, why_not_own
from wdsdist.distributed.run_once import data_download

__all__ = [
    "Identity",
    "identity",
    "cpu_count",
    "user_cache_dir",
    "user_config_dir",
    "private_dir",
    "TRUST_ALL",
    "is_own_file",
    "is_owner",
    "open_parent",
    "read_own",
    "why_not_own",
    "private_under",
    "data_download",
    "barrier",
    "check_same",
]
