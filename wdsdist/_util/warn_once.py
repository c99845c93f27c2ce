"""Warnings that are logged once in each process."""

from __future__ import annotations

import logging

_log = logging.getLogger("wdsdist")

_logged: dict[str, object] = {}


def warn(message: str) -> None:
    """Log a warning once in this process, also if several threads meet the same problem at once."""
    mine = object()
    if _logged.setdefault(message, mine) is mine:  # one atomic step, unlike `functools.cache`
        _log.warning("%s", message)
