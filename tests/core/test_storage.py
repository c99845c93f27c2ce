"""Remote locations: faults that pass are ridden out, those that stay are an error with the location and the cause."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from wdsdist import storage
from wdsdist.errors import ShardNotFoundError, StorageError
from wdsdist.storage import Deadline, deadline


@pytest.fixture
def stored() -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/store/a.tar", b"content")
    yield "memory://store/a.tar"
    memory.rm("/store", recursive=True)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors that the store answers with, one a request, before it does what it was asked."""
    monkeypatch.setattr(deadline, "_FIRST_PAUSE", 0.001)
    left: list[Exception] = []
    for name in ("cat_file", "open"):
        sound = getattr(MemoryFileSystem, name)

        def faulty(self: MemoryFileSystem, *args: object, _sound: object = sound, **more: object) -> object:
            if left:
                raise left.pop(0)
            return _sound(self, *args, **more)  # type: ignore[operator]

        monkeypatch.setattr(MemoryFileSystem, name, faulty)
    return left


def test_faults_that_pass_are_ridden_out(stored: str, faults: list[Exception], tmp_path: Path) -> None:
    faults += [ConnectionError("reset")] * 2
    assert storage.read(stored) == b"content"
    faults += [TimeoutError("stalled")] * 4
    storage.fetch(stored, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == b"content"


def test_faults_that_stay_are_an_error_with_location_attempts_and_cause(
    stored: str, faults: list[Exception], tmp_path: Path
) -> None:
    faults += [ConnectionError("reset by peer")] * 10_000
    message = r"memory://store/a\.tar cannot be read: ConnectionError: reset by peer \(after \d+ attempts in 0\.1 s\)"
    with pytest.raises(StorageError, match=message):
        storage.fetch(stored, tmp_path / "a.tar", deadline=Deadline(0.1))
    with pytest.raises(StorageError, match=message):
        storage.read(stored, deadline=Deadline(0.1))


def test_a_range_is_read_whole_or_not_at_all(stored: str, faults: list[Exception]) -> None:
    faults += [ConnectionError("reset")] * 2
    assert storage.read_range(stored, 2, 5) == b"nte"
    with pytest.raises(StorageError, match=r"memory://store/a\.tar cannot be read: 2 of 5 bytes came from 5 on"):
        storage.read_range(stored, 5, 10)
    with pytest.raises(FileNotFoundError):
        storage.read_range("memory://store/none.tar", 0, 5)


def test_what_does_not_exist_is_not_asked_for_again(stored: str, faults: list[Exception], tmp_path: Path) -> None:
    faults += [FileNotFoundError("gone")]
    with pytest.raises(ShardNotFoundError, match=r"memory://store/a\.tar does not exist"):
        storage.fetch(stored, tmp_path / "a.tar")
    assert not faults
    with pytest.raises(FileNotFoundError):
        storage.read("memory://store/none.tar")


def test_a_missing_back_end_is_named_with_the_extra_that_brings_it() -> None:
    with pytest.raises(StorageError, match=r'pip install "wdsdist\[gcs\]"'):
        storage.read("gs://bucket/index.json")


def test_credentials_and_signatures_stay_out_of_messages_and_tracebacks(
    faults: list[Exception], tmp_path: Path
) -> None:
    token = secrets.token_hex(8)
    location = f"memory://user:{token}@store/a.tar?signature={token}"
    for error in (PermissionError, FileNotFoundError, ConnectionError):
        faults[:] = [error(location)] * 10_000
        with pytest.raises(StorageError if error is not FileNotFoundError else ShardNotFoundError) as caught:
            storage.fetch(location, tmp_path / "a.tar", size=7, deadline=Deadline(0.1))
        assert token not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(OSError) as caught_of_read:
            storage.read(location, deadline=Deadline(0.1))
        assert token not in "".join(traceback.format_exception(caught_of_read.value))
