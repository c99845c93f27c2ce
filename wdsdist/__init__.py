"""wdsdist: exact, resumable sharding of WebDataset archives for distributed PyTorch training.

Public names resolve when they are first used, so ``import wdsdist`` and the command line never import torch
unless something asks for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdsdist.catalog import open
    from wdsdist.columns import Ragged
    from wdsdist.dataset import StreamingDataset
    from wdsdist.devices import to_device
    from wdsdist.exports import export
    from wdsdist.indexing import index
    from wdsdist.loader import StreamingDataLoader
    from wdsdist.manifest import Manifest
    from wdsdist.node import barrier, data_download
    from wdsdist.packing import pack
    from wdsdist.repairing import repair
    from wdsdist.together import concat, mix
    from wdsdist.verification import verify

    dataDownload = data_download

__version__ = "0.1.0"

_HOME = {
    "data_download": "wdsdist.node",
    "barrier": "wdsdist.node",
    "pack": "wdsdist.packing",
    "index": "wdsdist.indexing",
    "open": "wdsdist.catalog",
    "export": "wdsdist.exports",
    "verify": "wdsdist.verification",
    "repair": "wdsdist.repairing",
    "Manifest": "wdsdist.manifest",
    "Ragged": "wdsdist.columns",
    "StreamingDataset": "wdsdist.dataset",
    "StreamingDataLoader": "wdsdist.loader",
    "mix": "wdsdist.together",
    "concat": "wdsdist.together",
    "to_device": "wdsdist.devices",
}

__all__ = [
    "data_download",
    "dataDownload",
    "barrier",
    "pack",
    "index",
    "open",
    "export",
    "verify",
    "repair",
    "Manifest",
    "Ragged",
    "StreamingDataset",
    "StreamingDataLoader",
    "mix",
    "concat",
    "to_device",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # `dataDownload` is the spelling some platforms use for the same function.
    home = _HOME.get("data_download" if name == "dataDownload" else name)
    if home is None:
        raise AttributeError(f"module 'wdsdist' has no attribute {name!r}")
    value = getattr(import_module(home), "data_download" if name == "dataDownload" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
