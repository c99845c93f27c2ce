"""Fixtures for tests of all packages: limits that a test makes small, and steps that must not be taken again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wdsdist.shards import scan_local
from wdsdist.storage import compression


@pytest.fixture
def limit_expansion(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many bytes anything compressed may expand to, or to how many times its size where that is more."""

    def limit(always: int, times: int = 200) -> None:
        monkeypatch.setattr(compression, "_ALWAYS", always)
        monkeypatch.setattr(compression, "_EXPANSION", times)

    return limit


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on reading a whole tar for its index is an error."""

    def scan(path: Path) -> None:
        raise AssertionError(f"{path} was scanned")

    return lambda: monkeypatch.setattr(scan_local, "scan_shard", scan)
