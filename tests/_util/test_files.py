"""Atomic writes: leftovers of killed processes go after a day, and files appear whole."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.watched import watched
from wdsdist._util import files
from wdsdist._util.files import atomic_write


def test_a_later_write_removes_leftovers_of_a_killed_process_after_a_day(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        with atomic_write(tmp_path / "view") as stream:
            stream.write(b"half")
            os._exit(1)  # as if killed
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    with atomic_write(tmp_path / "another"):
        pass
    assert left.exists()
    mine = tmp_path / ".tmp-thesis.docx"
    mine.write_text("a file of the user")
    for path in (left, mine):
        os.utime(path, (time.time() - 25 * 3600,) * 2)
    files._remove_left.cache_clear()
    with atomic_write(tmp_path / "another"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"another", mine.name}


def test_an_error_leaves_the_file_as_it_was_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "view").write_bytes(b"before")

    def write_half() -> None:
        with atomic_write(tmp_path / "view") as stream:
            stream.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


def test_a_file_has_the_mode_that_the_umask_leaves_without_proc(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        with watched() as seen, atomic_write(tmp_path / "view"):
            pass
    finally:
        os.umask(mask)
    assert (tmp_path / "view").stat().st_mode & 0o777 == 0o640
    assert not any(path.is_relative_to("/proc") for path in seen.read)
