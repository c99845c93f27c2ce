"""``wdsdist view`` and ``wdsdist show`` as people run them."""

from __future__ import annotations

import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support import forked


def test_the_url_that_is_printed_has_the_token_until_it_is_interrupted(shards: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    command = ("-m", "wdsdist", "view", shards, "--token")
    process = forked.start(*command, stdout=str(pipe), stderr=os.devnull)
    with pipe.open() as stream:
        url = stream.readline().split()[0]
        port, token = url.rpartition(":")[2].split("/")[:2]
        assert len(token) >= 24
        local = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{local}/{token}/api/samples?count=1") as answer:
            assert b'"cat/000"' in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{local}/api/data")
        os.kill(process.pid or 0, signal.SIGINT)
        process.join(110)
    assert process.exitcode == 0


def test_a_port_that_is_taken_is_an_error_that_says_so(wdsdist: Run, shards: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = wdsdist("view", shards, "--port", port)
    assert done.returncode == 2
    message = f"cannot listen on 127.0.0.1, port {port}: Address already in use; port 0 takes a free one"
    assert done.stderr == f"wdsdist: error: {message}\n"


def test_samples_are_listed_without_control_characters(wdsdist: Run, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("red \x1b[31m text\nand a line")
    assert wdsdist("pack", tmp_path / "files", tmp_path / "shards").returncode == 0
    done = wdsdist("show", tmp_path / "shards")
    assert done.stdout.splitlines() == ["0\ta\tshard-000000.tar", "\ttxt\t25 B\tred \\x1b[31m text and a line"]


def test_samples_to_list_are_chosen_by_an_expression_or_a_seed(wdsdist: Run, shards: Path) -> None:
    chosen = wdsdist("show", shards, "--where", '"txt.bytes" > 0', "-n", 1)
    assert chosen.stdout.startswith("0\tcat/000")
    first, again, other = (wdsdist("show", shards, "-n", 3, "--random", seed).stdout for seed in (3, 3, 4))
    assert first == again != other
