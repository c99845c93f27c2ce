"""Warnings that come once in each process."""

from __future__ import annotations

import logging

_log = logging.getLogger("wdsdist")

_said: dict[str, object] = {}


def warn(message: str) -> None:
    """Log a warning, unless this process has: also where several of its threads come upon the same side by side."""
    mine = object()
    if _said.setdefault(message, mine) is mine:  # one step, which a `functools.cache` does not take
        _log.warning("%s", message)
