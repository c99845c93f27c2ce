"""Warnings of wdsdist, heard as they are logged: a test goes on when a line comes, and not after some time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def heard(then: Callable[[str], object]) -> Iterator[list[str]]:
    """Give the list of the warnings of this process, and call a function with each, until the block ends."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            then(lines[-1])

    log, handler = logging.getLogger("wdsdist"), Handler(logging.WARNING)
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
