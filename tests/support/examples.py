"""How many examples a property is held to: the profile in conftest.py says it, and few tests say a part of it."""

from __future__ import annotations

from hypothesis import settings


def fewer(times: int = 2) -> settings:
    """Look at fewer examples than others do, by a factor, for a property whose every example takes long."""
    return settings(max_examples=settings().max_examples // times)
