"""Requests that keep somebody waiting are warned about; those that are fetched ahead, and those that flow, are not."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.heard import heard
from tests.support.memory_store import Fault, MemoryStore
from wdsdist import storage
from wdsdist.storage import waits

SOON = storage.RequestPolicy(first_warning=0.02, next_warning=0.02)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore({"a.tar": b"content"}) as store:
        yield store


def test_a_store_that_does_not_answer_is_warned_about_again_and_again_until_it_does(
    store: MemoryStore,
) -> None:
    store.plant(Fault("a.tar", "stall"))
    with storage.use_policy(SOON), heard(lambda _: store.heal() if len(lines) == 3 else None) as lines:
        assert storage.read(f"{store.url}/a.tar") == b"content"
    assert len(lines) >= 3
    assert all(line.startswith(f"still waiting for {store.url}/a.tar (") for line in lines)


def test_a_warning_tells_the_attempt_and_the_last_error(store: MemoryStore) -> None:
    store.plant(Fault("a.tar", "error", times=2, error=ConnectionResetError("it was reset")), Fault("a.tar", "stall"))
    with storage.use_policy(SOON), heard(lambda line: store.heal() if "attempt 3" in line else None) as lines:
        storage.read(f"{store.url}/a.tar")
    assert "attempt 3, last error: ConnectionResetError: it was reset)" in lines[-1]


def test_a_download_tells_its_bytes_so_far(store: MemoryStore, tmp_path: Path) -> None:
    store.files["a.tar"] = bytes(3 << 20)
    store.plant(Fault("a.tar", "stall", after=2))
    policy = storage.RequestPolicy(first_warning=0.02, next_warning=0.02, part_bytes=1 << 20)
    with storage.use_policy(policy), heard(lambda line: store.heal() if "2.0 MiB of" in line else None) as lines:
        storage.fetch(f"{store.url}/a.tar", tmp_path / "a.tar", size=3 << 20)
    assert "attempt 1, 2.0 MiB of 3.0 MiB)" in lines[-1]


def test_bytes_of_a_part_that_failed_do_not_count(store: MemoryStore, tmp_path: Path) -> None:
    store.plant(Fault("a.tar", "wrong-length", times=2))
    seen: list[waits.Request] = []
    with storage.begin_fetch(f"{store.url}/a.tar", tmp_path / "a.tar", size=7) as running:
        seen += waits.requests()
        running.result()
    assert [(one.bytes, one.attempt) for one in seen] == [(7, 3)]


def test_what_is_fetched_ahead_keeps_nobody_waiting_until_somebody_asks_for_it() -> None:
    inside, leave = threading.Event(), threading.Event()

    def prefetch() -> None:
        waits.fetch_ahead()
        with waits.under_way(waits.Request("store://ahead")), waits.under_way(waits.Request("store://b")):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=prefetch, daemon=True)
    thread.start()
    inside.wait()
    assert [one.waited_for for one in waits.requests()] == [None, None]
    with waits.under_way(waits.Request("store://b", attempt=0)):  # of the thread that fetches it
        assert [one.location for one in waits.requests()] == ["store://b", "store://ahead"]
        assert [one.location for one in waits.awaited()] == ["store://b"]
    assert waits.awaited() == []
    leave.set()
    thread.join()
    assert waits.requests() == []


def test_a_warning_names_what_another_thread_was_fetching_ahead_when_it_was_asked_for() -> None:
    inside, heard_of = threading.Event(), threading.Event()

    def prefetch() -> None:
        waits.fetch_ahead()
        with waits.under_way(waits.Request("store://a", bytes=0, attempt=2)):
            inside.set()
            heard_of.wait()

    thread = threading.Thread(target=prefetch, daemon=True)
    thread.start()
    inside.wait()
    asked = waits.Request("store://a", attempt=0)
    with storage.use_policy(SOON), heard(lambda _: heard_of.set()) as lines, waits.under_way(asked):
        heard_of.wait()
    thread.join()
    assert lines[0].startswith("still waiting for store://a (")
    assert "attempt 2" in lines[0]


def test_a_download_that_flows_is_not_warned_about() -> None:
    request = waits.Request("store://a", bytes=0)
    assert not request.flows()
    request.bytes = 5 << 20
    assert request.flows()
    assert not request.flows()


def test_an_upload_is_warned_about_once_an_attempt_has_failed() -> None:
    request = waits.Request("store://a", "written")
    assert request.flows()
    request.failed(OSError("store://a cannot be written: 503"), 1)
    assert not request.flows()
    assert "attempt 2, last error: 503" in str(request)


def test_a_wait_is_due_once_in_each_interval() -> None:
    with storage.use_policy(storage.RequestPolicy(first_warning=0, next_warning=math.inf)):
        wait = waits.LongWait()
        assert [wait.is_due(), wait.is_due()] == [True, False]


def test_no_thread_is_left_when_a_request_returns(store: MemoryStore) -> None:
    def watches() -> bool:
        return any(thread.name == "wdsdist-waits" for thread in threading.enumerate())

    with waits.under_way(waits.Request("store://a")):
        assert watches()
    assert not watches()


def test_many_requests_are_counted() -> None:
    requests = [waits.Request(f"store://{number}") for number in range(5)]
    assert waits.describe(requests).endswith("store://2 (0 s, attempt 1), and 2 more")


def test_a_forked_process_waits_for_nothing_of_its_parent() -> None:
    with waits.under_way(waits.Request("store://a")):
        child = os.fork()
        if not child:
            os._exit(len(waits.requests()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(waits.requests()) == 1
