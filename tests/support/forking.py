"""How the ranks of these tests start their workers."""

from __future__ import annotations

import multiprocessing


def fork_workers() -> None:
    """Start workers as processes do by default; those of a fork server would import torch once for each of them."""
    multiprocessing.set_start_method("fork", force=True)
