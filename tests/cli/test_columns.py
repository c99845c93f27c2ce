"""The command ``columns`` as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wdsdist as library
from tests.cli.conftest import Run
from tests.support.tars import plain_tar


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    members = [(f"{n:03}.json", json.dumps({"width": 100 * n}).encode() if n < 4 else b"{") for n in range(5)]
    (folder / "0.tar").write_bytes(plain_tar([*members, ("005.txt", b"no json")]))
    library.index(folder, workers=1)
    return folder


def test_columns_are_added(wdsdist: Run, shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "meta.csv").write_text("id,score\n001,0.5\n002,0.9\n002,0.1\nzzz,1\n")
    arguments = ("--field", "json.width", "--join", tmp_path / "meta.csv", "--on", "key=id")
    run = wdsdist("columns", shards, *arguments)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines == [
        "json.width: int, 4 values, 2 missing",
        "score: float, 2 values, 4 missing",
        f"columns: in {shards / 'columns'}",
    ]
    report = f"joined {tmp_path / 'meta.csv'} by key: of 4 rows, 2 give values; of 6 samples, 4 have no row"
    assert report in caplog.text
    assert "json.width: the members of 1 sample cannot be read, and have no value, such as 0.tar: 004: " in caplog.text


def test_quiet_says_only_what_is_wrong(wdsdist: Run, shards: Path) -> None:
    run = wdsdist("columns", shards, "--field", "txt", "-q")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
