"""wdsdist: exact, resumable sharding of WebDataset archives for distributed PyTorch training.

Public names resolve when they are first used, so ``import wdsdist`` and the command line never import torch
unless something asks for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdsdist import batching, errors, transforms
    from wdsdist.diagnostics.exports import export
    from wdsdist.diagnostics.verify import repair, verify
    from wdsdist.distributed.barriers import barrier
    from wdsdist.distributed.run_once import data_download
    from wdsdist.errors import BadSample
    from wdsdist.loader.dataset import StreamingDataset
    from wdsdist.loader.device_prefetch import to_device
    from wdsdist.loader.epoch_iterator import LoaderStats
    from wdsdist.loader.loader import StreamingDataLoader
    from wdsdist.loader.mix import concat, mix
    from wdsdist.packing import pack
    from wdsdist.packing.encoders import encode
    from wdsdist.samples.collate import Ragged, unpadded
    from wdsdist.shards.build_index import index
    from wdsdist.shards.manifest import Manifest
    from wdsdist.shards.open import open

    dataDownload = data_download

__version__ = "0.1.0"

_HOME = {
    "data_download": "wdsdist.distributed.run_once",
    "barrier": "wdsdist.distributed.barriers",
    "pack": "wdsdist.packing",
    "index": "wdsdist.shards.build_index",
    "open": "wdsdist.shards.open",
    "export": "wdsdist.diagnostics.exports",
    "verify": "wdsdist.diagnostics.verify",
    "repair": "wdsdist.diagnostics.verify",
    "Manifest": "wdsdist.shards.manifest",
    "Ragged": "wdsdist.samples.collate",
    "BadSample": "wdsdist.errors",
    "StreamingDataset": "wdsdist.loader.dataset",
    "StreamingDataLoader": "wdsdist.loader.loader",
    "mix": "wdsdist.loader.mix",
    "concat": "wdsdist.loader.mix",
    "to_device": "wdsdist.loader.device_prefetch",
    "unpadded": "wdsdist.samples.collate",
    "LoaderStats": "wdsdist.loader.epoch_iterator",
    "encode": "wdsdist.packing.encoders",
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
    "BadSample",
    "StreamingDataset",
    "StreamingDataLoader",
    "mix",
    "concat",
    "to_device",
    "unpadded",
    "LoaderStats",
    "encode",
    "batching",
    "errors",
    "transforms",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in ("batching", "errors", "integrations", "transforms"):
        return import_module(f"wdsdist.{name}")
    # `dataDownload` is the spelling some platforms use for the same function.
    home = _HOME.get("data_download" if name == "dataDownload" else name)
    if home is None:
        raise AttributeError(f"module 'wdsdist' has no attribute {name!r}")
    value = getattr(import_module(home), "data_download" if name == "dataDownload" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
