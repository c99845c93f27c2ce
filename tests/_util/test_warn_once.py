"""Warnings that come once in each process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.heard import heard
from wdsdist._util.warn_once import warn


def test_threads_that_come_upon_the_same_side_by_side_warn_once(tmp_path: Path) -> None:
    message = f"{tmp_path} is like this"
    with ThreadPoolExecutor(1) as pool, heard(lambda _: pool.submit(warn, message).result(10)) as lines:
        warn(message)
        warn(message)
    assert lines == [message]
