"""Who waits goes before who fetches ahead, in all processes that share a cache."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.support import folders
from wdsdist.cache.urgency import Urgency


class Connection:
    """Stands for one of a download."""


@pytest.fixture
def urgency(tmp_path: Path) -> Urgency:
    return Urgency(tmp_path / "cache" / ".waiting")


def test_what_is_fetched_ahead_pauses_while_another_process_waits(urgency: Urgency) -> None:
    leader, other = Connection(), Connection()
    with urgency.waiting():
        pass
    with urgency.line("a") as line:
        assert not line.must_pause(other)
        with urgency.waiting(), urgency.waiting():
            assert [line.must_pause(one) for one in (leader, other, leader)] == [False, True, False]
            del leader
            assert not line.must_pause(other)
        assert not line.must_pause(other)


def test_a_shard_that_a_batch_waits_for_goes_before_those_that_are_fetched_ahead(urgency: Urgency) -> None:
    leader, other = Connection(), Connection()
    with urgency.waiting({"a", "b"}), urgency.line("a") as awaited, urgency.line("c") as ahead:
        assert not ahead.must_pause(other)  # nothing that is waited for is fetched
        with urgency.waiting():
            assert not awaited.must_pause(other)
        assert [ahead.must_pause(one) for one in (leader, other)] == [False, True]
        awaited.leave()  # while it is verified, the line is free
        assert not ahead.must_pause(other)


def test_a_process_that_died_waiting_holds_nobody_up(urgency: Urgency) -> None:
    reading, writing = os.pipe()

    def wait_for_ever() -> None:
        with urgency.waiting():
            os.write(writing, b".")
            threading.Event().wait()

    process = folders.forked(wait_for_ever)
    os.read(reading, 1)
    leader, other = Connection(), Connection()
    with urgency.line("a") as line:
        assert not line.must_pause(leader)
        assert line.must_pause(other)
        os.kill(process, 9)
        folders.status(process)
        assert not line.must_pause(other)


def test_a_child_does_not_pause_for_a_connection_of_its_parent(urgency: Urgency) -> None:
    leader, other = Connection(), Connection()
    assert [urgency.leads(one) for one in (leader, other)] == [True, False]
    child = folders.forked(lambda: os._exit(17 if urgency.leads(other) else 1))
    assert folders.status(child) == 17
    assert urgency.leads(leader)
