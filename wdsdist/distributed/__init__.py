"""Rank and world size of this process, functions that run once per node, and barriers.

Importing it imports neither torch nor what only some jobs use: names resolve when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wdsdist.distributed.identity import Identity, identity

if TYPE_CHECKING:
    from wdsdist.distributed.agreement import check_same
    from wdsdist.distributed.barriers import barrier
    from wdsdist.distributed.run_once import data_download

__all__ = ["Identity", "barrier", "check_same", "data_download", "identity"]

_HOME = {"check_same": "agreement", "barrier": "barriers", "data_download": "run_once"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"wdsdist.distributed.{_HOME[name]}"), name)
