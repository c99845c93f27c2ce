"""Remote locations: faults that pass are ridden out, those that stay are an error with the location and the cause."""

from __future__ import annotations

import pickle
import secrets
import subprocess
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from wdsdist.storage.deadline import Attempts
from wdsdist.storage.failures import FinalError, PassingError, mapped

from tests.support.programs import command
from wdsdist import storage
from wdsdist.errors import ShardNotFoundError, StorageError
from wdsdist.storage import Connections, Deadline, RequestPolicy, use_policy


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


def test_what_a_blocked_back_end_gives_too_late_is_not_written(
    stored: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copying, "_PART", 4)
    sound = MemoryFileSystem.cat_file
    asked: list[threading.Thread] = []  # for the first part
    again, release = threading.Event(), threading.Event()

    def blocking(self: MemoryFileSystem, path: str, start: int, end: int) -> bytes:
        if start == 0:
            asked.append(threading.current_thread())
            if len(asked) == 1:
                release.wait()
                return b"evil"
            again.set()
        else:  # the fetch goes on until the late answer has come
            again.wait()
            asked[1].join()
            release.set()
            asked[0].join()
        content: bytes = sound(self, path, start, end)
        return content

    monkeypatch.setattr(MemoryFileSystem, "cat_file", blocking)
    assert storage.fetch(stored, tmp_path / "a.tar", size=7, deadline=Deadline(2)).retries
    assert (tmp_path / "a.tar").read_bytes() == b"content"


def test_a_blocked_back_end_keeps_no_process_from_ending() -> None:
    subprocess.run(command("blocked_back_end"), check=True, timeout=20)


def test_a_file_whose_fetch_fails_keeps_its_room(stored: str, faults: list[Exception], tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"x" * 7)
    faults += [PermissionError("no")]
    with pytest.raises(StorageError):
        storage.fetch(stored, path, size=7)
    assert path.stat().st_size == 7


class AnswerError(Exception):
    """As a back end words what a server said."""

    def __init__(self, status: int) -> None:
        self.status = status


class BotoError(Exception):
    def __init__(self, status: int) -> None:
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": "7"}}}


@pytest.mark.parametrize("kind", [AnswerError, BotoError])
@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (404, FileNotFoundError),
        (401, FinalError),
        (403, FinalError),
        (400, FinalError),
        (416, FinalError),
        (501, FinalError),
        (408, PassingError),
        (429, PassingError),
        (500, PassingError),
        (503, PassingError),
    ],
)
def test_a_status_tells_whether_to_try_again(
    kind: type[Exception], status: int, meaning: type[Exception]
) -> None:  # fmt: skip
    translated = OSError("what a client makes of it")
    translated.__cause__ = kind(status)  # type: ignore[call-arg]
    for error in (kind(status), translated):
        with pytest.raises(meaning) as caught, mapped("s3://bucket/a.tar"):
            raise error
        if meaning is PassingError and kind is BotoError:
            assert caught.value.retry_after == 7  # type: ignore[attr-defined]


class NoCredentialsError(Exception):
    """Named as botocore's."""


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (FileNotFoundError("x"), FileNotFoundError),
        (PermissionError("x"), FinalError),
        (TypeError("an option that there is not"), FinalError),
        (NoCredentialsError("x"), FinalError),
        (TimeoutError("x"), PassingError),
        (ConnectionResetError("x"), PassingError),
        (OSError("x"), PassingError),
    ],
)
def test_without_a_status_the_kind_of_error_tells(error: Exception, meaning: type[Exception]) -> None:
    with pytest.raises(meaning), mapped("s3://bucket/a.tar"):
        raise error


def test_a_place_that_cannot_be_written_is_named(stored: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"memory://store/a\.tar cannot be kept in .*none/a\.tar: No such file"):
        storage.fetch(stored, tmp_path / "none" / "a.tar")
    with pytest.raises(StorageError, match=r"cannot be kept in /dev/full: No space left on device"):
        storage.fetch(stored, Path("/dev/full"))


def test_several_files_are_fetched_at_once_and_what_is_given_up_writes_no_more(
    stored: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = threading.Barrier(2)
    sound = MemoryFileSystem.cat_file

    def together(self: MemoryFileSystem, *args: object, **more: object) -> bytes:
        both.wait(10)
        content: bytes = sound(self, *args, **more)
        return content

    monkeypatch.setattr(MemoryFileSystem, "cat_file", together)
    paths = [tmp_path / name for name in ("a", "b", "c")]
    with storage.begin_fetch(stored, paths[0]) as one, storage.begin_fetch(stored, paths[1]) as other:
        assert one.result().bytes == other.result().bytes == 7
    assert [path.read_bytes() for path in paths[:2]] == [b"content"] * 2
    with storage.begin_fetch(stored, paths[2]):
        pass
    both.abort()
    assert not paths[2].exists() or not paths[2].stat().st_size


def test_connections_travel_with_their_limit_and_a_wait_for_one_ends_with_the_deadline(
    stored: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert pickle.loads(pickle.dumps(Connections(3))).limit == 3
    begun, left = threading.Event(), threading.Event()
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *_: begun.set() or left.wait())
    monkeypatch.setattr(transfer, "GRACE", 0.2)
    connections = Connections(1)
    with storage.begin_fetch(stored, tmp_path / "a", size=7, connections=connections):
        assert begun.wait(10)
        with pytest.raises(StorageError, match=r"memory://store/a\.tar cannot be read in time \(0 retries\)"):
            storage.fetch(stored, tmp_path / "b", size=7, connections=connections, deadline=Deadline(0.1))
    left.set()


@pytest.mark.parametrize(("tries", "longest"), [(1, 0.2), (2, 0.4), (4, 1.6), (50, 10)])
def test_pauses_grow_up_to_a_limit(tries: int, longest: float) -> None:
    drawn = []
    for _ in range(200):
        attempts = Attempts(None, patience=300)
        for _ in range(tries):
            pause = attempts.failed(PassingError("x"))
        drawn.append(pause)
    assert max(drawn) <= longest
    assert min(drawn) < longest / 4 < 3 * longest / 4 < max(drawn), "full jitter"
