"""Failures: what each error of a back end means, how often it is tried again, and what the message says."""

from __future__ import annotations

import email.utils
import http.client
import random
import socket
import ssl
import time
from email.message import Message

import pytest

from tests.support.policies import use_policy
from wdsdist import storage
from wdsdist.errors import NotFoundError, StorageError
from wdsdist.storage.failures import Attempts, Failure, Kind, failure_of
from wdsdist.storage.http import StatusError
from wdsdist.storage.waiting import Deadline

A_TAR = "s3://bucket/a.tar"


class AnswerError(Exception):
    """As a back end words what a server said."""

    def __init__(self, status: int) -> None:
        self.status = status


class BotoError(Exception):
    def __init__(self, status: int) -> None:
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": "7"}}}


class WrappingError(Exception):
    """An exception that wraps another one as botocore's do, in `kwargs`."""

    def __init__(self, error: Exception) -> None:
        self.kwargs = {"error": error}


class NoCredentialsError(Exception):
    """Named as botocore's."""


class ParamValidationError(Exception):
    """The same."""


STATUSES: dict[int, Kind] = {
    404: "absent", 401: "denied", 403: "denied", 400: "invalid", 416: "invalid", 501: "invalid", 408: "busy",
    429: "busy", 500: "busy", 503: "busy",
}  # fmt: skip


@pytest.mark.parametrize("back_end", [AnswerError, BotoError])
@pytest.mark.parametrize("status", STATUSES)
def test_a_status_decides_the_kind(back_end: type[Exception], status: int) -> None:
    translated = OSError("what a client makes of it")
    translated.__cause__ = back_end(status)
    for error in (back_end(status), translated):
        failure = failure_of(error, A_TAR)
        assert failure.kind == STATUSES[status]
        if failure.kind == "busy" and back_end is BotoError:
            assert failure.retry_after == 7


def s3_error(status: int, code: str) -> Exception:
    return StatusError(status, "no", {}, code)


ERRORS: list[tuple[Exception, Kind, str]] = [
    (FileNotFoundError("x"), "absent", r"s3://bucket/a\.tar does not exist"),
    (PermissionError("x"), "denied", "access is refused: check the credentials, and the name"),
    (TypeError("an option that there is not"), "invalid", "TypeError: an option that there is not"),
    (ParamValidationError("Invalid bucket name"), "invalid", "Invalid bucket name"),
    (NoCredentialsError("x"), "denied", r'"anon": True.*anon=true.*profile=NAME'),
    (TimeoutError("x"), "timeout", "TimeoutError: x"),
    (ConnectionResetError("x"), "broken", "ConnectionResetError: x"),
    (ConnectionRefusedError("x"), "unreachable", "nothing answers at this address: check the URL"),
    (WrappingError(socket.gaierror(socket.EAI_NONAME, "x")), "unreachable", "no such host: check the URL"),
    (socket.gaierror(socket.EAI_AGAIN, "x"), "broken", "gaierror"),
    (WrappingError(ssl.SSLCertVerificationError("x")), "invalid", "name its certificate or authority by SSL_CERT_FILE"),
    (OSError("Tunnel connection failed: 403 Forbidden"), "denied", "check HTTPS_PROXY, or name the host in NO_PROXY"),
    (OSError("Tunnel connection failed: 404 Not Found"), "denied", "Tunnel connection failed: 404.*check HTTPS_PROXY"),
    (OSError("Tunnel connection failed: 503 Busy"), "busy", "Tunnel connection failed: 503"),
    (AttributeError("'NoneType' object has no attribute 'read'"), "invalid", "AttributeError: 'NoneType'"),
    (s3_error(403, "ExpiredToken"), "expired", "the credentials have expired: renew them"),
    (s3_error(403, "SignatureDoesNotMatch"), "denied", r"\(SignatureDoesNotMatch\).*check the credentials\)"),
    (http.client.BadStatusLine("x" * 65_536), "broken", "BadStatusLine: xxx"),
]


@pytest.mark.parametrize(("error", "kind", "pattern"), ERRORS)
def test_an_error_has_a_kind_and_a_message_of_bounded_length(error: Exception, kind: Kind, pattern: str) -> None:
    failure = failure_of(error, A_TAR)
    assert failure.kind == kind
    with pytest.raises(Failure, match=pattern):
        raise failure
    assert len(str(failure)) < 2_300


def test_what_is_absent_cannot_be_written() -> None:
    failure = failure_of(FileNotFoundError("x"), A_TAR, "written")
    assert (failure.kind, str(failure)) == (
        "invalid",
        f"{A_TAR} cannot be written: its bucket or folder does not exist",
    )


@pytest.mark.parametrize(("given", "least", "most"), [("7", 7, 7), ("date", 50, 61)])
def test_a_store_says_how_long_to_wait_in_seconds_or_by_a_date(given: str, least: float, most: float) -> None:
    headers = Message()
    headers["Retry-After"] = email.utils.formatdate(time.time() + 60, usegmt=True) if given == "date" else given
    after = failure_of(StatusError(503, "no", headers, ""), A_TAR).retry_after
    assert after is not None
    assert least <= after <= most


TRIED: list[tuple[Kind, int]] = [
    ("absent", 1), ("denied", 1), ("invalid", 1), ("ranges", 1), ("length", 5), ("busy", 20), ("broken", 20),
    ("timeout", 20), ("expired", 20), ("unreachable", 20),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "most"), TRIED)
def test_a_kind_decides_how_often_to_try(kind: Kind, most: int) -> None:
    attempts = Attempts(A_TAR, None, patience=1e6)
    with use_policy(first_pause=1e-6, longest_pause=1e-6):
        while attempts.failed(Failure(kind, "it is at fault")) is not None and attempts.failures < 20:
            pass
    assert attempts.failures == most
    error = attempts.error()
    assert type(error) is (NotFoundError if kind == "absent" else StorageError)
    assert getattr(error, "kind", kind) == kind
    assert str(error).startswith("it is at fault (5 attempts in " if kind == "length" else "it is at fault")


RESUME = "training can resume from the last checkpoint"
SAID: list[tuple[Kind, str]] = [
    ("absent", f"(1 attempt in 0.0 s; {RESUME})"),
    ("denied", f"(1 attempt in 0.0 s; {RESUME})"),
    ("length", f"(5 attempts in 0.0 s; {RESUME})"),
    ("unreachable", f"(1 attempt in 0.0 s; {RESUME})"),
    ("busy", f"(1 attempt in 0.0 s; download_timeout=9 is the limit; {RESUME})"),
]


@pytest.mark.parametrize(("kind", "said"), SAID)
def test_an_error_says_how_long_was_waited_which_limit_ended_it_and_how_to_go_on(kind: Kind, said: str) -> None:
    attempts = Attempts("http://silent.example/a.tar", Deadline(9, "download_timeout"), patience=1)
    failure = Failure(kind, "it is at fault", retry_after={"busy": 10, "unreachable": 6}.get(kind))
    with use_policy(first_pause=1e-6, longest_pause=1e-6):
        while attempts.failed(failure) is not None:
            pass
    assert str(attempts.error()) == f"it is at fault {said}"


def test_a_store_that_has_answered_before_is_waited_for_and_another_for_seconds() -> None:
    known, unknown = "http://known.example/a.tar", "http://unknown.example/a.tar"
    Attempts(known, None, patience=1).succeeded()
    for location, most in ((known, 1e6), (unknown, 5.0)):
        attempts, refused = Attempts(location, None, patience=1e6), Failure("unreachable", "x", retry_after=most / 2)
        pause = attempts.failed(refused)
        assert pause is not None
        assert pause >= most / 2
        refused.retry_after = most
        assert attempts.failed(refused) is None


def test_pauses_grow_with_jitter_up_to_a_limit_and_leave_the_random_numbers_of_the_program_alone() -> None:
    attempts, before = Attempts(A_TAR, None, patience=1e6), random.getstate()
    pauses = [attempts.failed(Failure("busy", "x")) or 0.0 for _ in range(30)]
    assert all(pause <= most for pause, most in zip(pauses, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, *[10.0] * 24], strict=True))
    assert max(pauses) > 5
    assert len(set(pauses)) == 30
    assert random.getstate() == before


def test_an_attempt_that_timed_out_says_less_than_the_one_before() -> None:
    attempts = Attempts(A_TAR, None, patience=1e6)
    attempts.failed(Failure("busy", "503 Slow Down"))
    assert attempts.failed(Failure("timeout", "no answer", retry_after=1e7)) is None
    assert str(attempts.error()).startswith("503 Slow Down (2 attempts in ")
    assert attempts.error().kind == "busy"


def test_a_missing_back_end_is_named_with_the_extra_that_brings_it() -> None:
    with pytest.raises(StorageError, match=r'pip install "wdsdist\[gcs\]"'):
        storage.read("gs://bucket/index.json")
