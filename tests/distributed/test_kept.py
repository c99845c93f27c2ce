"""Arrays that one process of a node computes for all: once, whoever waits, and by each where nothing can be kept."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from wdsdist.distributed.run_once import Arrays, kept_arrays


@pytest.fixture(autouse=True)
def _own_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def made(number: int) -> Arrays:
    return {"counts": np.arange(number), "marks": np.zeros(number, np.bool_)}


def sizes(number: int, about: str = "batches") -> list[int]:
    return [*map(len, kept_arrays(about, lambda: made(number)).values())]


def kept(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("*/arrays/*.npz"))


def test_arrays_are_computed_once_while_others_wait_for_them() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slowly() -> Arrays:
        begun.set()
        assert may_end.wait(60)
        return made(3)

    with ThreadPoolExecutor() as pool:
        one = pool.submit(kept_arrays, "block 5", slowly)
        assert begun.wait(60)
        other = pool.submit(kept_arrays, "block 5", lambda: pytest.fail("they are computed already"))
        may_end.set()
        for name, array in made(3).items():
            assert one.result(60)[name].tolist() == other.result(60)[name].tolist() == array.tolist()


def test_damaged_arrays_are_computed_again_and_old_ones_are_removed(tmp_path: Path) -> None:
    sizes(1, "block 0")
    for damaged in (b"PK no archive", b""):
        kept(tmp_path)[0].write_bytes(damaged)
        assert sizes(2, "block 0") == [2, 2]
    for number in range(80):
        assert sizes(2, f"block {number}") == [2, 2]
    assert len(kept(tmp_path)) == 64


def test_an_error_is_raised_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        kept_arrays("block 0", lambda: made(1 // 0))
    assert kept(tmp_path) == []


def test_each_process_computes_if_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # as Lustre does that is mounted without them

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        assert [sizes(number) for number in (3, 4)] == [[3, 3], [4, 4]]
    for folder in tmp_path.iterdir():
        folder.chmod(0o777)  # others could plant arrays there
    assert [sizes(number) for number in (3, 4)] == [[3, 3], [4, 4]]
