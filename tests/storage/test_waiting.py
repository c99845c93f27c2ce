"""The consumer that waits for a request warns about it; requests that are fetched ahead, and that flow, are quiet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.heard import heard
from tests.support.memory_store import Fault, MemoryStore
from tests.support.policies import use_policy
from wdsdist import storage
from wdsdist.storage import engine, waiting
from wdsdist.storage.waiting import Request, under_way

SOON = {"first_warning": 0.02, "next_warning": 0.02}


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore({"a.tar": b"content"}) as store:
        yield store


def test_a_store_that_does_not_answer_is_warned_about_again_and_again_until_it_does(store: MemoryStore) -> None:
    store.plant(Fault("a.tar", "stall"))
    with use_policy(**SOON), heard(lambda _: store.heal() if len(lines) == 3 else None) as lines:
        assert storage.read(f"{store.url}/a.tar") == b"content"
    assert len(lines) >= 3
    assert all(line.startswith(f"still waiting for {store.url}/a.tar (") for line in lines)


def test_a_warning_says_the_attempt_and_the_last_error(store: MemoryStore) -> None:
    store.plant(Fault("a.tar", "error", times=2, error=ConnectionResetError("it was reset")), Fault("a.tar", "stall"))
    with use_policy(**SOON), heard(lambda line: store.heal() if "attempt 3" in line else None) as lines:
        storage.read(f"{store.url}/a.tar")
    assert "attempt 3, last error: ConnectionResetError: it was reset)" in lines[-1]


def test_a_download_says_its_bytes_so_far(store: MemoryStore, tmp_path: Path) -> None:
    store.files["a.tar"] = bytes(3 << 20)
    store.plant(Fault("a.tar", "stall", after=2))
    with (
        use_policy(**SOON, part_bytes=1 << 20),
        heard(lambda line: store.heal() if "2.0 MiB of" in line else None) as lines,
    ):
        engine.fetch(f"{store.url}/a.tar", tmp_path / "a.tar", size=3 << 20)
    assert "attempt 1, 2.0 MiB of 3.0 MiB)" in lines[-1]


def test_what_is_fetched_ahead_is_quiet_until_somebody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_quiet_until", 0.0)  # a test before may have warned a moment ago
    with use_policy(first_warning=0, next_warning=0), heard(lambda _: None) as lines:
        ahead, consumer = Request("store://b", attempt=2, is_ahead=True), Request("store://b", attempt=0, note="waits")
        with under_way(Request("store://a", is_ahead=True)), under_way(ahead):
            ahead.look()
            assert lines == []
            consumer.look()
        consumer.look()
    assert lines == ["still waiting for store://b (0 s, attempt 2)", "still waiting for store://b (0 s, waits)"]


def test_a_request_that_flows_is_not_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_quiet_until", 0.0)  # a test before may have warned a moment ago
    with use_policy(first_warning=0, next_warning=0), heard(lambda _: None) as lines:
        download, upload = Request("store://a", bytes=0), Request("store://b", "written")
        download.bytes = 5 << 20
        for request in (download, upload):
            with under_way(request):
                request.look()
        assert lines == []
        upload.failed(OSError("store://b cannot be written: 503"), 1)
        for request in (download, upload):
            with under_way(request):
                request.look()
    assert len(lines) == 2
    assert "attempt 2, last error: 503" in lines[1]


def test_a_forked_process_waits_for_nothing_of_its_parent() -> None:
    with under_way(Request("store://a")):
        child = os.fork()
        if not child:
            os._exit(len(waiting._requests))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert waiting._requests
