"""What a loader and its workers tell each other through shared memory."""

from __future__ import annotations

import errno
import multiprocessing.heap
import os
from typing import Any

import pytest

from wdsdist.errors import StateError
from wdsdist.loader.worker_state import SharedValue


def test_a_value_that_is_too_large_is_refused_and_the_one_before_stays() -> None:
    shared = SharedValue()
    shared.write({"epoch": 3})
    with pytest.raises(StateError, match=r"takes 9,\d{3} bytes, and at most 8,192 reach them"):
        shared.write({"epoch": "4" * 9000})
    assert shared.read() == {"epoch": 3}


class Memory:
    """Shared memory whose reads and writes a test takes apart."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getitem__(self, place: slice) -> bytes:
        return bytes(self.held[place])

    def __setitem__(self, place: slice, content: bytes) -> None:
        self.held[place] = content


def test_while_a_value_is_written_the_one_before_is_read() -> None:
    found = []

    class Watched(Memory):
        def __setitem__(self, place: slice, content: bytes) -> None:
            middle = place.start + len(content) // 2
            self.held[place.start : middle] = content[: middle - place.start]
            found.append(shared.read())
            self.held[middle : place.stop] = content[middle - place.start :]
            found.append(shared.read())

    shared = SharedValue()
    shared.write("an epoch")
    shared._pickles = Watched(shared._pickles)
    shared.write(["another epoch", 2**40])
    assert found == ["an epoch", "an epoch"]
    assert shared.read() == ["another epoch", 2**40]


def test_a_value_that_is_written_twice_while_it_is_read_is_read_anew() -> None:
    waiting = [["the first"], ["the second"]]

    class Watched(Memory):
        def __getitem__(self, place: slice) -> bytes:
            before = self.held[place]
            for value in waiting[:]:
                waiting.remove(value)
                shared.write(value)
            half = len(before) // 512
            return before[:half] + self.held[place.start + half : place.stop]

    shared = SharedValue("a text")
    shared._pickles = Watched(shared._pickles)
    assert shared.read() == ["the second"]


def test_a_value_is_shared_with_what_is_forked_also_where_there_is_no_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(size: int) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/dev/shm")

    monkeypatch.setattr(multiprocessing.heap, "BufferWrapper", missing)
    shared = SharedValue([3, 4, 5])
    child = os.fork()
    if not child:
        shared._owner = os.getpid()  # as a worker
        shared.write([3, 6, 7])
        os._exit(0)
    os.waitpid(child, 0)
    assert shared.read() == [3, 6, 7]
