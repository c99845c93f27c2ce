"""Fixtures for tests of all packages: limits that a test makes small, and steps that must not be taken again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

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
    """Call it, and from then on reading a whole tar for its index, whose digest is in it, is an error."""
    sha256 = hashlib.sha256

    def of_no_map(*data: object) -> object:
        assert not data or isinstance(data[0], bytes), "a mapped tar is hashed"
        return sha256(*data)

    return lambda: monkeypatch.setattr(hashlib, "sha256", of_no_map)


@pytest.fixture
def no_hash(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on hashing a file, which is done piece by piece, is an error."""
    sha256 = hashlib.sha256

    def at_once(*data: object) -> object:
        assert data, "a file is hashed"
        return sha256(*data)

    return lambda: monkeypatch.setattr(hashlib, "sha256", at_once)
