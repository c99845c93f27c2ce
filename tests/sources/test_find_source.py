"""What can be packed, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdsdist.errors import SourceError, SourceNotFoundError
from wdsdist.sources import find


def test_what_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="nowhere does not exist: what can be packed is a folder of files"):
        find(tmp_path / "nowhere" / "nowhere")


def test_other_files_are_refused_with_what_can_be_packed(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").write_text("a,b\n")
    with pytest.raises(
        SourceError, match=r"table\.xlsx is of no kind that can be packed: that is a folder of files, or"
    ):
        find(tmp_path / "table.xlsx")
