"""The command line, in this process: what a process of its own shows besides, tests/cli/test_errors.py has."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import forked
from wdsdist.cli import _wdsdist

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def wdsdist() -> Run:
    """Runs a command without a terminal, and returns its status and output."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        words = list(map(str, args))
        result = CliRunner().invoke(_wdsdist, words, prog_name="wdsdist")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def process() -> Run:
    """Runs ``python -m wdsdist`` in a process of its own, with what it logs."""
    return lambda *args: forked.run("-m", "wdsdist", *args)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two class folders of three samples each: an image and, for half of them, a note."""
    for number in range(6):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03}.jpg").write_bytes(bytes([number]) * (1000 + number))
        if number < 3:
            (folder / f"{number:03}.txt").write_text(f"note {number}")
    return tmp_path / "photos"


@pytest.fixture
def shards(photos: Path, tmp_path: Path) -> Path:
    """The photos and their classes in three shards, in the order of their names."""
    from wdsdist.packing import pack

    pack(photos, tmp_path / "shards", shard_samples=2, shuffle_seed=None, class_folders=True)
    return tmp_path / "shards"
