"""What can be packed, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdsdist.errors import SourceError, SourceNotFoundError
from wdsdist.sources import find


def test_what_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="nowhere does not exist: what can be packed is a folder of files"):
        find(tmp_path / "nowhere" / "nowhere")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.TGZ"])
def test_a_tar_is_for_the_index_command(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(SourceError, match="is a tar file already: run `wdsdist index"):
        find(tmp_path / name)


def test_other_files_are_refused_with_what_can_be_packed(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").write_text("a,b\n")
    with pytest.raises(
        SourceError, match=r"table\.xlsx is of no kind that can be packed: that is a folder of files, or"
    ):
        find(tmp_path / "table.xlsx")


def test_urls_are_refused_without_their_secrets() -> None:
    with pytest.raises(SourceError, match=r"^https://host/data is a URL: download it"):
        find("https://user:secret@host/data?token=secret")
