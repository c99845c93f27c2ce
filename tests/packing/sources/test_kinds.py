"""What can be packed, and what is said of the rest."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from pathlib import Path

import pytest

from wdsdist.errors import NotFoundError, SourceError
from wdsdist.packing.sources import KINDS, find
from wdsdist.packing.sources.source import Candidate, Options


def test_what_does_not_exist_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere does not exist: what can be packed is a folder of files"):
        find(tmp_path / "nowhere" / "nowhere")


def test_other_files_are_refused_with_what_can_be_packed(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").write_text("a,b\n")
    with pytest.raises(
        SourceError,
        match=r"table\.xlsx is of no kind that can be packed: that is a folder of files; .*WebDataset shards",
    ):
        find(tmp_path / "table.xlsx")


def test_a_folder_is_recognised_without_a_list_of_all_its_names(tmp_path: Path) -> None:
    for number in range(5000):
        (tmp_path / f"{number}.jpg").touch()
    for _ in range(2):  # what is imported the first time does not count
        candidate = Candidate(tmp_path)
        tracemalloc.start()
        try:
            assert all(kind.find(candidate, Options()) is None for kind in KINDS if kind.name != "folder")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 120_000  # the names alone take three times that as Python objects


@pytest.mark.parametrize("name", ["a.jpg", "a.parquet"])
def test_a_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "b.jpg").write_bytes(b"x")
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(os.fsdecode(path)), scandir(path))[1])
    with contextlib.suppress(SourceError):  # of what is no IDX
        find(tmp_path)
    assert [path.rstrip("/") for path in listed] == [str(tmp_path)]
