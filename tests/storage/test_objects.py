"""Remote locations: faults that pass are retried, those that stay are an error with the location and the cause."""

from __future__ import annotations

import contextlib
import email.utils
import gc
import http.client
import secrets
import socket
import ssl
import subprocess
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path

import pytest

from tests.support.programs import command
from wdsdist import storage
from wdsdist.errors import NotFoundError, StorageError
from wdsdist.storage import Connections, Deadline, RequestPolicy, use_policy
from wdsdist.storage.clients import persist
from wdsdist.storage.direct import StatusError
from tests.support.memory_store import Fault, MemoryStore
from wdsdist.storage.retry import Attempts, AwayError, FinalError, PassingError, mapped


@pytest.fixture(params=[False, True], ids=["asynchronous", "blocking"])
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    files = {"a.tar": b"content"}
    with (
        use_policy(RequestPolicy(first_pause=0.001)),
        MemoryStore(files, name="store", is_blocking=request.param) as made,
    ):
        yield made


A_TAR = "faulty://store/a.tar"


def test_faults_that_pass_are_ridden_out(store: MemoryStore, tmp_path: Path) -> None:
    store.plant(Fault("a.tar", "error", times=2))
    assert storage.read(A_TAR) == b"content"
    store.plant(Fault("a.tar", "error", times=4, error=TimeoutError("stalled")))
    assert storage.fetch(A_TAR, tmp_path / "a.tar").retries == 4
    assert (tmp_path / "a.tar").read_bytes() == b"content"


def test_faults_that_stay_are_an_error_with_location_attempts_and_cause(store: MemoryStore, tmp_path: Path) -> None:
    store.plant(Fault("*", "error", error=ConnectionError("reset by peer")))
    message = r"faulty://store/a\.tar cannot be read: ConnectionError: reset by peer \(after \d+ attempts in 1 s\)"
    with use_policy(RequestPolicy(first_pause=0.4)):  # so long that the time is over in a pause, not in an attempt
        with pytest.raises(StorageError, match=message):
            storage.fetch(A_TAR, tmp_path / "a.tar", deadline=Deadline(1))
        with pytest.raises(StorageError, match=message):
            storage.read(A_TAR, deadline=Deadline(1))


def test_a_range_is_read_whole_or_not_at_all(store: MemoryStore) -> None:
    store.plant(Fault("*", "error", times=2))
    assert storage.read_range(A_TAR, 2, 5) == b"nte"
    with pytest.raises(StorageError, match=r"faulty://store/a\.tar cannot be read: 2 of 5 bytes came from 5 on"):
        storage.read_range(A_TAR, 5, 10)


def test_what_does_not_exist_is_not_asked_for_again(store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"faulty://store/none\.tar does not exist"):
        storage.fetch(f"{store.url}/none.tar", tmp_path / "a.tar", size=7)
    with pytest.raises(FileNotFoundError):
        storage.read(f"{store.url}/none.tar")
    assert store.paths() == ["none.tar"] * 2


def test_a_missing_back_end_is_named_with_the_extra_that_brings_it() -> None:
    with pytest.raises(StorageError, match=r'pip install "wdsdist\[gcs\]"'):
        storage.read("gs://bucket/index.json")


def test_credentials_and_signatures_stay_out_of_messages_and_tracebacks(store: MemoryStore, tmp_path: Path) -> None:
    token = secrets.token_hex(8)
    location = f"faulty://user:{token}@store/a.tar?signature={token}"
    for error in (PermissionError, FileNotFoundError, ConnectionError):
        store.heal()
        store.plant(Fault("*", "error", error=error(location)))
        for call in (
            lambda: storage.fetch(location, tmp_path / "a.tar", size=7, deadline=Deadline(0.1)),
            lambda: storage.read(location, deadline=Deadline(0.1)),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert str(caught.value).startswith("faulty://store/a.tar ")
            assert token not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(("size", "parts"), [(10, [10]), (11, [5, 6]), (25, [8, 8, 9]), (30, [10, 10, 10])])
def test_the_parts_of_a_download_are_of_like_size(tmp_path: Path, size: int, parts: list[int]) -> None:
    with MemoryStore({"a.tar": bytes(range(size))}) as store, use_policy(RequestPolicy(part_bytes=10)):
        storage.fetch(f"{store.url}/a.tar", tmp_path / "a.tar", size=size)
        assert sorted((one.stop or size) - (one.start or 0) for one in store.requests) == parts
    assert (tmp_path / "a.tar").read_bytes() == bytes(range(size))


def test_what_a_blocked_back_end_gives_too_late_is_not_written(tmp_path: Path) -> None:
    late = Fault("a.tar", "stall", times=1)  # the first request; the second, which repeats it, is answered
    other_part = Fault("a.tar", "stall", after=1)
    before = set(threading.enumerate())
    store = MemoryStore({"a.tar": b"content"}, is_blocking=True)
    store.plant(late, other_part)
    with (
        store,
        use_policy(RequestPolicy(first_pause=0.001, stall=0.5, part_bytes=4)),
        storage.begin_fetch(f"{store.url}/a.tar", tmp_path / "a.tar", size=7, connections=Connections(1)) as fetching,
    ):
        assert late.reached.wait(10)
        (thread,) = [one for one in threading.enumerate() if one not in before and one.name == "wdsdist-storage"]
        assert other_part.reached.wait(10)
        store.files["a.tar"] = b"evil!!!"
        late.release()
        thread.join()
        store.files["a.tar"] = b"content"
        other_part.release()
        assert fetching.result().retries
    assert (tmp_path / "a.tar").read_bytes() == b"content"


def test_a_blocked_back_end_keeps_no_process_from_ending() -> None:
    subprocess.run(command("blocked_back_end"), check=True, timeout=100)


def test_a_file_whose_fetch_fails_keeps_its_room(store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"x" * 7)
    store.plant(Fault("*", "error", error=PermissionError("no")))
    with pytest.raises(StorageError):
        storage.fetch(A_TAR, path, size=7)
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


class ParamValidationError(Exception):
    """The same."""


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (FileNotFoundError("x"), FileNotFoundError),
        (PermissionError("x"), FinalError),
        (TypeError("an option that there is not"), FinalError),
        (NoCredentialsError("x"), FinalError),
        (ParamValidationError("Invalid bucket name"), FinalError),
        (TimeoutError("x"), PassingError),
        (ConnectionResetError("x"), PassingError),
        (OSError("x"), PassingError),
    ],
)
def test_without_a_status_the_kind_of_error_tells(error: Exception, meaning: type[Exception]) -> None:
    with pytest.raises(meaning), mapped("s3://bucket/a.tar"):
        raise error


def test_what_a_server_says_at_length_is_cut() -> None:
    with pytest.raises(PassingError) as caught, mapped("https://host/a.tar"):
        raise http.client.BadStatusLine("x" * 65_536)
    assert "BadStatusLine: xxx" in str(caught.value)
    assert len(str(caught.value)) < 2_200


class WrappingError(Exception):
    """An exception that wraps another one as botocore's do, in `kwargs`."""

    def __init__(self, error: Exception) -> None:
        self.kwargs = {"error": error}


def test_a_certificate_that_is_not_trusted_is_an_error_at_once_whoever_reports_it() -> None:
    caused, untrusted = ConnectionError("as a client has it"), ssl.SSLCertVerificationError("self-signed certificate")
    caused.__cause__ = untrusted
    for error in (caused, WrappingError(untrusted)):
        with pytest.raises(FinalError), mapped("s3://bucket/a.tar"):
            raise error


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (socket.EAI_NONAME, r"no such host: check the URL\) \(after \d+ attempts? in 0\.0001 s\)"),
        (socket.EAI_AGAIN, r"\(after \d+ attempts? in 0\.001 s\)"),
    ],
)
@pytest.mark.parametrize("kind", [lambda error: error, WrappingError], ids=["bare", "wrapped"])
def test_a_host_that_does_not_exist_is_asked_for_a_tenth_of_the_time(
    kind: Callable[[Exception], Exception], code: int, message: str
) -> None:
    def resolve() -> None:
        raise kind(socket.gaierror(code, "from the resolver"))

    with use_policy(RequestPolicy(patience=0.001)), pytest.raises(AwayError, match=message):
        persist("https://host/a.tar", resolve)


def test_a_host_that_has_answered_before_is_asked_for_all_of_the_time() -> None:
    def resolve() -> None:
        raise socket.gaierror(socket.EAI_NONAME, "from the resolver")

    persist("https://host-that-answers/a.tar", lambda: None)
    with (
        use_policy(RequestPolicy(patience=0.001)),
        pytest.raises(AwayError, match=r"from the resolver \(after \d+ attempts? in 0\.001 s\)"),
    ):
        persist("https://host-that-answers/b.tar", resolve)


@pytest.mark.parametrize(
    "location", ["s3://key:secret@bucket/a.tar", "s3a://key:se/cret@bucket/a.tar", "gs://token@bucket/a.tar"]
)
def test_credentials_in_the_url_of_a_bucket_are_an_error_at_once_that_does_not_show_them(location: str) -> None:
    with pytest.raises(StorageError, match="name the bucket alone, and pass them as storage_options") as caught:
        storage.read(location)
    assert "cret" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_named(store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"faulty://store/a\.tar cannot be kept in .*none/a\.tar: No such file"):
        storage.fetch(A_TAR, tmp_path / "none" / "a.tar")
    with pytest.raises(StorageError, match=r"cannot be kept in /dev/full: No space left on device"):
        storage.fetch(A_TAR, Path("/dev/full"))


def test_several_files_are_fetched_at_once_and_what_is_given_up_writes_no_more(
    store: MemoryStore, tmp_path: Path
) -> None:
    stalls = [Fault("a.tar", "stall", times=1) for _ in range(2)]
    store.plant(*stalls)
    paths = [tmp_path / name for name in ("a", "b", "c")]
    with storage.begin_fetch(A_TAR, paths[0], size=7) as one, storage.begin_fetch(A_TAR, paths[1], size=7) as other:
        assert all(stall.reached.wait(10) for stall in stalls), "the second is asked for while the first is on its way"
        for stall in stalls:
            stall.release()
        assert one.result().bytes == other.result().bytes == 7
    assert [path.read_bytes() for path in paths[:2]] == [b"content"] * 2
    never = Fault("a.tar", "stall")
    store.plant(never)
    with storage.begin_fetch(A_TAR, paths[2], size=7):
        assert never.reached.wait(10)
    never.release()
    assert not paths[2].stat().st_size


def test_a_wait_for_a_connection_ends_with_the_deadline(store: MemoryStore, tmp_path: Path) -> None:
    stall = Fault("a.tar", "stall")
    store.plant(stall)
    connections = Connections(1)
    with storage.begin_fetch(A_TAR, tmp_path / "a", size=7, connections=connections):
        assert stall.reached.wait(10)
        with pytest.raises(StorageError, match=r"faulty://store/a\.tar cannot be read in time \(0 retries\)"):
            storage.fetch(A_TAR, tmp_path / "b", size=7, connections=connections, deadline=Deadline(0.1))


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


def meaning(error: Exception) -> PassingError:
    with pytest.raises(PassingError) as caught, mapped(A_TAR):
        raise error
    return caught.value


def test_an_attempt_that_timed_out_leaves_the_cause_to_what_was_said_before() -> None:
    early = TimeoutError("no answer in 0.5 s")
    late = meaning(TimeoutError("no answer in 0.1 s"))
    late.retry_after = 1000.0  # longer than the time that is left
    for before, cause in [
        ([early, OSError("first"), ConnectionResetError("reset")], "reset .after 4 attempts"),
        ([ConnectionResetError("reset"), early], "reset .after 3 attempts"),
        ([early], "no answer in 0.1 s .after 2 attempts"),
    ]:
        attempts = Attempts(Deadline(300), patience=300)
        for error in before:
            attempts.failed(meaning(error))
        with pytest.raises(storage.AwayError, match=rf"a\.tar cannot be read: \w+: {cause} in 300 s"):
            attempts.failed(late)


@pytest.mark.parametrize(
    ("location", "advice"),
    [("s3://bucket/a.tar", "and the name: who may not list a bucket gets this for what does not exist too"),
     ("https://host/a.tar?signature=x", "check the credentials, or sign the URL anew: it may have expired"),
     ("https://host/a.tar", r"access is refused: check the credentials\)")],
)  # fmt: skip
def test_what_access_is_refused_to_is_named_with_what_to_check(location: str, advice: str) -> None:
    def refuse() -> None:
        raise PermissionError("Forbidden")

    with pytest.raises(StorageError, match=advice):
        persist(location, refuse)


def test_a_date_until_which_a_store_asks_to_wait_is_heeded() -> None:
    busy = StatusError(503, "busy", Message(), "")
    busy.headers["Retry-After"] = email.utils.formatdate(time.time() + 3600, usegmt=True)

    def refuse() -> None:
        raise busy

    with pytest.raises(AwayError, match=r"503 busy \(after 1 attempt in 30 s\)"):
        persist("https://host/a.tar", refuse)


def test_a_proxy_that_refuses_is_an_error_at_once_and_one_that_fails_is_asked_again() -> None:
    for status, kind in ((407, FinalError), (503, PassingError)):
        with pytest.raises(kind, match=str(status)), mapped("https://host/a.tar"):
            raise OSError(f"Tunnel connection failed: {status} on purpose")


@pytest.mark.parametrize(("status", "advice"), [(403, "check HTTPS_PROXY, or name the host in NO_PROXY"), (404, "404")])
def test_what_a_proxy_says_is_said_of_no_file_and_no_credentials(status: int, advice: str) -> None:
    with pytest.raises(FinalError, match=advice), mapped("https://host/a.tar"):
        raise OSError(f"Tunnel connection failed: {status} on purpose")


def test_a_place_to_write_that_does_not_exist_is_an_error_of_storage(store: MemoryStore) -> None:
    store.plant(Fault("*", "not-found", verb="write"))
    with pytest.raises(StorageError, match=r"b\.tar cannot be written: its bucket or folder does not exist"):
        storage.write("faulty://store/b.tar", b"content")


def test_what_asked_for_a_missing_file_is_freed_at_once() -> None:
    def ask() -> weakref.ref[object]:
        held = threading.Event()  # as a source whose temporary folder goes with it
        with contextlib.suppress(FileNotFoundError):
            storage.read("memory://nowhere/index.json")
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert ask()() is None
    finally:
        gc.enable()
