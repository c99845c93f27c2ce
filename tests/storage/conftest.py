"""What several tests of stores do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wdsdist.storage import engine


def read_ranges(
    location: str, ranges: list[tuple[int, int | None]], sink: Callable[[int, memoryview], None], *options: Any,
    **more: Any,
) -> engine.Transfer:  # fmt: skip
    """Fetch ranges, and wait for them."""
    with engine.begin_ranges(location, ranges, sink, *options, **more) as download:
        return download.result()
