"""A small data set to check and repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdsdist.packing import pack


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of four samples."""
    (tmp_path / "source").mkdir()
    for number in range(12):
        (tmp_path / "source" / f"{number:03}.bin").write_bytes(bytes([number]) * 900)
        (tmp_path / "source" / f"{number:03}.txt").write_text(f"sample {number}")
    pack(tmp_path / "source", tmp_path / "shards", shard_samples=4)
    return tmp_path / "shards"
