"""What a folder holds, as one reading of it says."""

from __future__ import annotations

import os
from pathlib import Path

from wdsdist.packing.sources.candidate import FolderEntries


def test_an_entry_is_found_by_its_whole_name(tmp_path: Path) -> None:
    for name in ("index.json.bak", "my-index.json", "0001.jpg"):
        (tmp_path / name).touch()
    assert not FolderEntries.of(os.fsencode(tmp_path)).holds("index.json")
    (tmp_path / "index.json").touch()
    found = FolderEntries.of(os.fsencode(tmp_path))
    assert found.holds("index.json")
    assert all(map(found.holds, found.texts()))
    assert not found.holds("")
