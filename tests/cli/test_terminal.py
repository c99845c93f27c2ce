"""On a terminal, progress is a bar; a line of a log it is elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wdsdist.cli import progress


def on_a_terminal(*args: object, term: str = "xterm") -> tuple[int, str]:
    """Run a command with standard error on a pseudo-terminal; return its status and what the terminal got."""
    master, terminal = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "wdsdist", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={**environment, "TERM": term, "COLUMNS": "160"},
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65_536)
        except OSError:  # how Linux tells that the last process has closed the terminal
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    return process.wait(), shown.decode()


@pytest.mark.parametrize("workers", [1, 2])
def test_packing_draws_a_bar_that_fills(photos: Path, tmp_path: Path, workers: int) -> None:
    status, shown = on_a_terminal("pack", photos, tmp_path / "dest", "--shard-samples", 1, "--workers", workers)
    assert status == 0
    assert "\x1b[" in shown  # it moves
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"packing .*━", plain)
    for done in range(1, 7):
        assert f"{done} of 6 samples, {done} of 6 shards" in plain
    assert "100%" in plain.splitlines()[-1]


def test_a_simple_terminal_gets_lines(photos: Path, tmp_path: Path) -> None:
    status, shown = on_a_terminal("pack", photos, tmp_path / "dest", term="dumb")
    assert (status, "\x1b" in shown) == (0, False)
    assert "packing: 100%, 6 of 6 samples, 1 of 1 shards" in shown


def test_an_error_is_all_that_stays_on_the_terminal(tmp_path: Path) -> None:
    status, shown = on_a_terminal("pack", tmp_path / "nowhere", tmp_path / "dest")
    assert status == 2
    # What comes after the last "erase this line" is what is left to be seen.
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.rpartition("\x1b[2K")[2]).strip()
    assert left.startswith(f"wdsdist: error: {tmp_path / 'nowhere'} does not exist")


def test_a_job_that_was_done_already_leaves_nothing_on_the_terminal(shards: Path, photos: Path) -> None:
    status, shown = on_a_terminal("pack", photos, shards, "--shard-samples", 2, "--no-shuffle")
    assert status == 0
    assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.rpartition("\x1b[2K")[2]).strip() == ""


class TestLines:
    def test_they_come_only_now_and_then_and_at_the_end(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        now = [100.0]
        monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
        with progress.meter("packing") as shown:
            for second in range(1, 13):
                now[0] = 100.0 + second
                shown.update(second * 2**20, 12 * 2**20, f"{second} of 12 shards")
        assert capsys.readouterr().err.splitlines() == [
            "packing: 41%, 5 of 12 shards, 1.0 MiB/s, 7 s left",
            "packing: 83%, 10 of 12 shards, 1.0 MiB/s, 2 s left",
            "packing: 100%, 12 of 12 shards, 1.0 MiB/s",
        ]

    def test_what_an_earlier_run_did_is_no_speed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        now = [100.0]
        monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
        with progress.meter("packing") as shown:
            shown.update(50 * 2**20, 100 * 2**20, "kept")
            now[0] = 110.0
            shown.update(60 * 2**20, 100 * 2**20, "going on")
        assert capsys.readouterr().err == "packing: 60%, going on, 1.0 MiB/s, 40 s left\n"
