"""The picture of the house in the documentation."""

from __future__ import annotations

import runpy
from pathlib import Path

from tests.house.test_floors import FLOORS

ROOT = Path(__file__).parents[2]


def test_the_picture_shows_the_packages_as_they_are() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "docs" / "house.py"))
    assert tool["drawing"](FLOORS) == (ROOT / "docs" / "house.svg").read_text(encoding="utf-8"), "run `make house`"
