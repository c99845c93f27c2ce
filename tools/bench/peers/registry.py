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
    "folder": "folder_peer",
    "bare": "bare",
}


def system(key: str) -> System:
    """Return a system by its short name."""
    return importlib.import_module(f"peers.{SYSTEMS[key]}")  # type: ignore[return-value]
