"""What the pages on frameworks show is run as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import ROOT, program, run


@pytest.mark.parametrize("name", ["accelerate", "lightning", "transformers"])
def test_the_blocks_of_a_page_run_one_after_another(name: str, checkout: Path) -> None:
    page = ROOT / "docs" / "frameworks" / f"{name}.md"
    run(program(page.read_text()), checkout, HF_HUB_OFFLINE="1")
