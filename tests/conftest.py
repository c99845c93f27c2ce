"""What every test shares: Hypothesis profiles, and a user cache of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache directory, new for each test: no test sees what another, or the user, has kept."""
    folder = tmp_path_factory.mktemp("user-cache")
    monkeypatch.setenv("WDSDIST_CACHE_DIR", str(folder))
    return folder
