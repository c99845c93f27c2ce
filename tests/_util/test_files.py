"""Atomic writes: what a killed process leaves goes with the next write, and what is being written stays."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.support.watched import watched
from wdsdist._util.files import atomic_write


def test_what_a_killed_process_has_left_is_removed_by_the_next_that_writes_there(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        with atomic_write(tmp_path / "view") as stream:
            stream.write(b"half")
            os._exit(1)  # as one that is killed
    os.waitpid(child, 0)
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    # As it would be called on another mount, whose locks this one may not see.
    elsewhere = tmp_path / left[0].name.replace(f"_{tmp_path.stat().st_dev:x}_", "_0_")
    shutil.copy(left[0], elsewhere)
    with atomic_write(tmp_path / "another"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"another", elsewhere.name}


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    began, begin = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.read(began, 1)
            with atomic_write(tmp_path / "another"):
                status = 0
        finally:
            os._exit(status)
    with atomic_write(tmp_path / "view") as stream:
        os.write(begin, b"x")
        assert os.waitpid(child, 0)[1] == 0
        stream.write(b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "view"]


def test_a_file_is_locked_until_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.replace

    def locked(self: Path, target: Path) -> Path:
        with self.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", locked)
    with atomic_write(tmp_path / "view"):
        pass
    assert (tmp_path / "view").exists()


def test_a_file_has_the_mode_that_the_umask_leaves_also_where_there_is_no_proc(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "warm"):  # the boot id is read once
            pass
        with watched() as seen, atomic_write(tmp_path / "view"):
            pass
    finally:
        os.umask(mask)
    assert (tmp_path / "view").stat().st_mode & 0o777 == 0o640
    assert not any(path.is_relative_to("/proc") for path in seen.read)
