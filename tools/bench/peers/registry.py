"""The systems by the names that the command line knows."""

from __future__ import annotations

import importlib

from peers.system import System

SYSTEMS = {
    "wdsdist": "ours",
    "webdataset": "webdataset_peer",
    "mosaicml": "mosaicml_peer",
    "litdata": "litdata_peer",
    "hf": "hf_peer",
    "grain": "grain_peer",
    "spdl": "spdl_peer",
    "folder": "folder_peer",
    "bare": "bare",
}

UNPACKED = {"folder", "spdl", "bare"}
"""Those that read the files as they are."""
THREADED = {"spdl"}
"""Those without worker processes."""
OWN_IMAGES = {"wdsdist", "grain", "spdl", "bare"}
"""Those that decode and crop images by other means than Pillow and torchvision."""


def system(key: str) -> System:
    """Return a system by its short name."""
    return importlib.import_module(f"peers.{SYSTEMS[key]}")  # type: ignore[return-value]
