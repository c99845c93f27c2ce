"""Turn what people download into WebDataset shards: in parallel, atomically, and resumably."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wdsdist.packing.options import Images as Images

if TYPE_CHECKING:
    from wdsdist.packing.run import pack as pack
    from wdsdist.packing.run import pack_splits as pack_splits
    from wdsdist.packing.run import recognise as recognise

__all__ = ["Images", "pack", "pack_splits", "recognise"]


def __getattr__(name: str) -> Any:
    """Import the packing code when it is first used: the command line needs the options alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.run"), name)
