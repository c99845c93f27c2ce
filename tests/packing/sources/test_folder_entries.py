"""What a folder holds, as one reading of it says."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import cast

import pytest

from wdsdist.packing.sources.listing import FolderEntries, _kind


def test_an_entry_is_found_by_its_whole_name(tmp_path: Path) -> None:
    for name in ("index.json.bak", "my-index.json", "0001.jpg"):
        (tmp_path / name).touch()
    assert not FolderEntries.of(os.fsencode(tmp_path)).holds("index.json")
    (tmp_path / "index.json").touch()
    found = FolderEntries.of(os.fsencode(tmp_path))
    assert found.holds("index.json")
    assert all(map(found.holds, found.texts()))
    assert not found.holds("")


def test_an_entry_of_which_the_system_cannot_tell_the_type_is_not_taken_for_a_device() -> None:
    class Entry:
        name = b"1.jpg"

        def is_file(self) -> bool:
            raise OSError(errno.EIO, "Input/output error")

        def is_symlink(self) -> bool:
            return False

    with pytest.raises(OSError, match="Input/output error"):
        _kind(cast("os.DirEntry[bytes]", Entry()))
