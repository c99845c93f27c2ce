"""On a terminal, progress is a bar, a line of a log elsewhere; and nothing that a data set says can steer it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path

import pytest

import wdsdist
from tests.support import forked
from tests.support.programs import command
from wdsdist.cli.options import _Echo
from wdsdist.cli.output import meter
from wdsdist.shards.progress import ShardsProgress


def on_a_terminal(
    *args: object, term: str = "xterm", output: bool = False, program: Sequence[str] = ("-m", "wdsdist")
) -> tuple[int, str]:
    """Run a command with standard error on a pseudo-terminal; return its status and what the terminal got.

    With ``output``, standard output is on it too.
    """
    master, terminal = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    name = os.ttyname(terminal)
    process = forked.start(
        *program, *args, stdout=name if output else os.devnull, stderr=name,
        env={**environment, "TERM": term, "COLUMNS": "160"},
    )  # fmt: skip
    shown = b""
    while master in wait([master, process.sentinel]):
        shown += os.read(master, 65_536)
    process.join()
    os.close(terminal)
    os.close(master)
    assert process.exitcode is not None
    return process.exitcode, shown.decode("utf-8", "surrogateescape")


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
    assert "packing: 100%, 6 of 6 samples, 1 of 1 shard" in shown


def test_an_error_is_all_that_stays_on_the_terminal(tmp_path: Path) -> None:
    status, shown = on_a_terminal("pack", tmp_path / "nowhere", tmp_path / "dest")
    assert status == 2
    # What comes after the last "erase this line" is what is left to be seen.
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.rpartition("\x1b[2K")[2]).strip()
    assert left.startswith(f"wdsdist: error: {tmp_path / 'nowhere'} does not exist")


def test_a_job_that_was_done_already_leaves_nothing_on_the_terminal(shards: Path, photos: Path) -> None:
    status, shown = on_a_terminal("pack", photos, shards, "--shard-samples", 2, "--no-shuffle", "--class-folders")
    assert status == 0
    assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.rpartition("\x1b[2K")[2]).strip() == ""


class TestLines:
    def test_they_come_only_now_and_then_and_at_the_end(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        now = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        with meter("packing") as shown:
            for second in range(1, 13):
                now[0] = 100.0 + second
                shown(ShardsProgress(second, 12, second * 2**20, 12 * 2**20, 3 * second))
        assert capsys.readouterr().err.splitlines() == [
            "packing: 41%, 15 samples, 5 of 12 shards, 3 samples/s, 1.0 MiB/s, 7 s left",
            "packing: 83%, 30 samples, 10 of 12 shards, 3 samples/s, 1.0 MiB/s, 2 s left",
            "packing: 100%, 36 samples, 12 of 12 shards, 3 samples/s, 1.0 MiB/s",
        ]

    def test_what_an_earlier_run_did_is_no_speed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        now = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        with meter("packing") as shown:
            shown(ShardsProgress(5, 10, 50 * 2**20, 100 * 2**20, 50, 100))
            now[0] = 110.0
            shown(ShardsProgress(6, 10, 60 * 2**20, 100 * 2**20, 60, 100, left_out=1))
        line = "60%, 60 of 100 samples, 6 of 10 shards, 1 left out, 1 samples/s, 1.0 MiB/s, 40 s left"
        assert capsys.readouterr().err == f"packing: {line}\n"

    def test_shards_of_unknown_size_take_no_line_each(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: 100.0)
        with meter("indexing") as shown:
            for number in range(3):
                shown(ShardsProgress(number + 1, 3, number * 2**20, number * 2**20, 4 * number))
        assert capsys.readouterr().err == "indexing: 100%, 8 samples, 3 of 3 shards\n"


# Sets the title of a window and its size, rings, colours text in two ways, turns its direction, and begins a line.
HOSTILE = "\x1b]0;owned\x07\x1b[8;66;66t[red]\x9b31m\u202egpj\u2028\x85\x7f\t\r\nwdsdist: verified"
ONE_LINE = HOSTILE.replace("\n", "")  # readers of WebDataset see no sample in a name with a line break
SHOWN = r"\x1b]0;owned\x07\x1b[8;66;66t[red]\x9b31m\u202egpj\u2028\x85\x7f\t"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A data set whose every name, note and text tries to steer the terminal, but for the tar's, which may not."""
    folder = tmp_path / f"data{HOSTILE}"
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name in (f"0{ONE_LINE}.txt", f"1{ONE_LINE}.txt", f"1{ONE_LINE}.x{ONE_LINE}"):
            content = f"first\tline\r\n{ONE_LINE}\n".encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    wdsdist.index(folder)
    index = json.loads((folder / "index.json").read_text())
    index["wdsdist"] |= {"classes": [f"cat{HOSTILE}", f"dog{HOSTILE}"], "skipped": {HOSTILE: 3}}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def shown_by(*commands: tuple[object, ...]) -> list[tuple[str, int]]:
    """Run commands with all output on a terminal; return what each shows there, and its status."""
    words = json.dumps([list(map(str, command)) for command in commands])
    status, shown = on_a_terminal(words, program=command("several_commands")[1:], output=True)
    assert status == 0, shown
    found = re.findall(r"(.*?)<(\d+)>\r\n", shown, re.DOTALL)
    assert len(found) == len(commands), shown
    return [(harmless(text), int(status)) for text, status in found]


def harmless(shown: str) -> str:
    """Return what a terminal got without what draws bars and ends lines, where nothing else steers it."""
    text = re.sub(r"\x1b\[(?:\?25[hl]|[0-9]*[AGK]|[0-9;]*m)", "", shown).replace("\r\n", "\n").replace("\r", "\n")
    assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\udc80-\udc9f]", text) == []
    assert not [line for line in text.split("\n") if line.startswith("wdsdist: verified")]
    return text


class TestHostileNames:
    def test_a_data_set_cannot_steer_the_terminal(self, hostile: Path) -> None:
        data = wdsdist.open(hostile).add_columns(fields=["txt"])
        data.select(sample=1).save(hostile / "views" / f"one{HOSTILE}")
        named = [
            ("info", hostile),
            ("show", hostile),
            ("ls", hostile, "--samples"),
            ("cat", hostile, "0"),
            ("cat", hostile, "1", "txt"),
            ("index", hostile),
        ]
        for text, status in shown_by(*named):
            assert status == 0
            assert SHOWN.removesuffix(r"\t") in text
        for _, status in shown_by(("verify", hostile), ("plan", hostile)):
            assert status == 0

    def test_nor_can_the_errors_of_a_damaged_one(self, hostile: Path) -> None:
        for text, status in shown_by(("cat", hostile, "0", "jpg"), ("cat", hostile, HOSTILE)):
            assert (status, SHOWN in text) == (2, True)
        next(hostile.glob("*.tar")).write_bytes(b"?" * 2048)
        damaged = [
            ("ls", hostile, "--samples"),
            ("cat", hostile, "0"),
            ("index", hostile),
            ("verify", hostile),
            ("verify", hostile, "--repair"),
        ]
        for text, status in shown_by(*damaged):
            assert (status in (1, 2), SHOWN in text) == (True, True)

    def test_nor_can_the_errors_about_one_that_is_not_there(self, tmp_path: Path) -> None:
        nowhere = tmp_path / f"nowhere{HOSTILE}"
        commands = [(name, nowhere) for name in ("info", "ls", "verify", "plan", "index", "bench")]
        for text, status in shown_by(*commands, ("cat", nowhere, "0"), ("pack", nowhere, tmp_path / "dest")):
            assert (status, SHOWN in text) == (2, True)

    def test_nor_can_what_is_packed(self, tmp_path: Path) -> None:
        source = tmp_path / f"from{HOSTILE}"
        for folder in ("cat", "dog"):
            (source / f"{folder}{ONE_LINE}").mkdir(parents=True)
            for number in range(2):
                (source / f"{folder}{ONE_LINE}" / f"{number}{ONE_LINE}.txt").write_text("text")
        (source / f"left out{HOSTILE}.txt").write_text("text")
        table = tmp_path / "rows.jsonl"
        table.write_text(json.dumps({f"name{HOSTILE}": "a", f"text{HOSTILE}": "b"}) + "\n")
        runs = shown_by(
            ("pack", source, tmp_path / f"a{HOSTILE}"),
            ("pack", source, tmp_path / f"a{HOSTILE}", "--on-error", "skip"),
            ("pack", table, tmp_path / "b"),
            ("pack", table, tmp_path / "c", "--column", f"name{HOSTILE}=txt", "--column", f"text{HOSTILE}="),
        )
        for text, _ in runs:
            assert SHOWN in text

    def test_nor_can_file_names_that_the_shell_made_arguments_of(self) -> None:
        arguments = [(f"--{HOSTILE}",), (HOSTILE,), ("cat", "a", "b", "c", HOSTILE), ("ls", f"--{HOSTILE}")]
        for text, status in shown_by(*arguments):
            assert (status, SHOWN in text) == (2, True)

    def test_a_member_that_is_no_text_is_kept_from_the_terminal(self, shards: Path) -> None:
        status, shown = on_a_terminal("cat", shards, "0", "jpg", output=True)
        assert status == 2
        assert "member 'jpg' of sample 'cat/000' is not text, but 1,000 bytes: send them to a file with >" in shown

    def test_text_is_shown_as_it_is(self, hostile: Path) -> None:
        status, shown = on_a_terminal("cat", hostile, "0", "txt", output=True)
        assert (status, shown.split("\r\n")[0]) == (0, "first\tline")

    def test_to_a_pipe_a_member_goes_byte_by_byte(self, hostile: Path) -> None:
        command = [sys.executable, "-m", "wdsdist", "cat", str(hostile), "0", "txt"]
        run = subprocess.run(command, capture_output=True, check=True)
        assert run.stdout == f"first\tline\r\n{ONE_LINE}\n".encode()

    def test_the_note_of_a_bar_is_not_obeyed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "300")
        with meter(HOSTILE) as shown:
            shown(ShardsProgress(1, 2, 1, 2, 1))
        assert SHOWN in harmless(capsys.readouterr().err)

    def test_what_is_logged_is_shown_in_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        import logging

        record = logging.LogRecord("wdsdist", logging.INFO, "", 0, "waiting for %s", (HOSTILE,), None)
        _Echo().emit(record)
        assert capsys.readouterr().err == rf"wdsdist: waiting for {SHOWN}\r\nwdsdist: verified" + "\n"
