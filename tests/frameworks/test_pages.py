"""What the pages on frameworks show is run as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import ROOT, run


@pytest.mark.parametrize("name", ["accelerate", "lightning", "transformers"])
def test_the_blocks_of_a_page_run_one_after_another(name: str, checkout: Path) -> None:
    run(ROOT / "docs" / "frameworks" / f"{name}.md", checkout, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
