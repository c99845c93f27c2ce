"""wdsdist: exact, resumable sharding of WebDataset archives for distributed PyTorch training.

Public names resolve when they are first used, so ``import wdsdist`` and the command line never import torch
unless something asks for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdsdist import batching as batching
    from wdsdist import errors as errors
    from wdsdist import transforms as transforms
    from wdsdist.diagnostics.exports import export as export
    from wdsdist.diagnostics.verify import repair as repair
    from wdsdist.diagnostics.verify import verify as verify
    from wdsdist.distributed.barriers import barrier as barrier
    from wdsdist.distributed.run_once import data_download as data_download
    from wdsdist.distributed.run_once import dataDownload as dataDownload
    from wdsdist.errors import BadSample as BadSample
    from wdsdist.loader.dataset import StreamingDataset as StreamingDataset
    from wdsdist.loader.device_prefetch import to_device as to_device
    from wdsdist.loader.epoch_iterator import LoaderStats as LoaderStats
    from wdsdist.loader.loader import StreamingDataLoader as StreamingDataLoader
    from wdsdist.loader.mix import concat as concat
    from wdsdist.loader.mix import mix as mix
    from wdsdist.packing import pack as pack
    from wdsdist.samples.collate import Ragged as Ragged
    from wdsdist.samples.collate import unpadded as unpadded
    from wdsdist.samples.encoders import encode as encode
    from wdsdist.shards.build_index import index as index
    from wdsdist.shards.manifest import Manifest as Manifest
    from wdsdist.shards.open import open as open

__version__ = "0.1.0"

_MODULES = ("batching", "errors", "transforms")
_HOME = {
    "data_download": "wdsdist.distributed.run_once",
    "dataDownload": "wdsdist.distributed.run_once",
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
    "encode": "wdsdist.samples.encoders",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"wdsdist.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'wdsdist' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*_HOME, *_MODULES, "__version__"))


if not TYPE_CHECKING:  # type checkers take the names of the imports above
    __all__ = list(__dir__())
