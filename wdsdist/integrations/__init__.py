"""Helpers for frameworks that need one, a module for each; a framework is imported only by its own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HELPERS = ("engines", "transformers")


def __getattr__(name: str) -> Any:
    # Imported on first use, so that `import wdsdist` is enough to name them in full.
    if name not in _HELPERS:
        raise AttributeError(f"module 'wdsdist.integrations' has no attribute {name!r}")
    return import_module(f"wdsdist.integrations.{name}")


def __dir__() -> list[str]:
    return list(_HELPERS)
