"""The consumer that waits for a request warns about it; requests that are fetched ahead, and that flow, are quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.heard import heard
from tests.support.memory_store import Fault, MemoryStore
from tests.support.policies import use_policy
from wdsdist import storage
from wdsdist.storage import engine, waiting
from wdsdist.storage.engine import Task
from wdsdist.storage.store import Sink
from wdsdist.storage.waiting import LongWait

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


def send(_received: int, take: Sink, _timeout: float) -> None:
    """Send 1 MiB again and again, for half a second."""
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        take(0, memoryview(bytes(1 << 20)))


def pause(*_: object) -> None:
    time.sleep(0.5)


QUIET: dict[str, tuple[Task, dict[str, Any]]] = {
    "fetched ahead": (pause, {"is_ahead": True}), "flows": (send, {}), "upload": (pause, {"verb": "written"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUIET)
def test_what_is_fetched_ahead_and_what_goes_well_is_not_warned_about(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(waiting, "_quiet_until", 0.0)  # a test before may have warned a moment ago
    task, options = QUIET[kind]
    with use_policy(first_warning=0.2, next_warning=0.2), heard(lambda _: None) as lines:
        engine.Download("store://a", [task], lambda *_: None, None, 1, **options).result()
    assert lines == []


def test_threads_that_wait_together_log_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_quiet_until", 0.0)  # a test before may have warned a moment ago
    with use_policy(first_warning=0, next_warning=10), heard(lambda _: None) as lines:
        for wait in (LongWait(), LongWait()):
            assert wait.is_due()
            assert not wait.is_due()
            wait.warn("https://me:secret@host/a.tar", "another thread or process fetches it")
    assert lines == ["still waiting for https://host/a.tar (0 s, another thread or process fetches it)"]
