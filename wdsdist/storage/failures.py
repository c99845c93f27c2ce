"""Failed requests: what an error of a back end means, how often to try again, and what the message says.

Back ends share no base class: urllib3, botocore, google and azure have exceptions of their own. What they share is the
status of HTTP, somewhere along the chain of causes.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from wdsdist.errors import NotFoundError, StorageError
from wdsdist.storage import PASSING
from wdsdist.storage.urls import scheme, scrubbed, shown, store_of
from wdsdist.storage.waiting import Deadline, jitter, policy

Kind = Literal["absent", "denied", "invalid", "ranges", "length", "expired", "timeout", "unreachable", "broken", "busy"]
"""Why a request failed.

absent: there is no such object. denied: the store refuses access. invalid: the request, the options or this machine
are at fault. ranges: the server gives whole files only. length: the answer has the wrong length, or is of another
version of the object. expired: the credentials were good. timeout: no answer in time. unreachable: nothing answers at
this address. broken: the connection ended too early. busy: the store cannot answer for now.
"""
_TRIED_AGAIN = PASSING | {"expired", "length"}
_MOST_SECONDS_UNREACHABLE = 5.0
"""Patience for a store that has never answered this process: its address is likely to be wrong."""
_MOST_WRONG_LENGTHS = 5  # attempts: a length that is still wrong then will not get right later

_KINDS: dict[int, Kind] = {
    404: "absent", 410: "absent", 401: "denied", 403: "denied", 407: "denied",
    408: "busy", 425: "busy", 429: "busy",  # too slow, too early, too many
    501: "invalid", 505: "invalid",  # not implemented, another version of HTTP
}  # fmt: skip
"""By status; any other is ``"busy"`` from 500 on, and ``"invalid"`` below."""
_MISTAKES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, RuntimeError,
             TypeError, ValueError)  # fmt: skip
"""Errors of options and programs, which stay."""
_LASTING = {"PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError", "ParamValidationError",
            "InvalidRegionError", "NoRegionError"}  # fmt: skip
"""Errors of botocore and google that stay: of credentials, options and names of buckets."""
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
"""Codes of S3, with status 400 or 403, for credentials that were good: a new client reads those in their place."""
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3}) ")
_LONGEST_CAUSE = 2000
"""Letters of the message of a back end that an error repeats: a server may answer with anything."""

NO_CREDENTIALS = (
    'no credentials of AWS were found: pass storage_options={"anon": True} (anon=true) for a public bucket, '
    '{"profile": NAME} (profile=NAME) for a profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY'
)


class Failure(Exception):  # noqa: N818 - a value that the retry looks at
    """One failed attempt, with a message that is fit to be shown."""

    def __init__(self, kind: Kind, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        """Seconds that the store asks to wait for."""


class Attempts:
    """Counts the attempts at one request, and says how long to wait before the next: exponential, with full jitter.

    Jitter keeps many processes that a store has refused together from coming back together.
    """

    def __init__(self, location: str, deadline: Deadline | None, *, patience: float) -> None:
        """Begin to count; without a deadline, ``patience`` is the seconds from the first failure on."""
        self._location = location
        self._deadline = deadline or Deadline(math.inf)
        self._limit = deadline
        self._patience = patience
        self._is_late = False  # by the deadline
        self.cause: Failure | None = None
        self.failures = 0

    def failed(self, failure: Failure) -> float | None:
        """Return the seconds to wait after a failed attempt; ``None`` if no other can help, or the time is over."""
        self.failures += 1
        # An attempt that timed out has no answer: the message has an earlier cause.
        causes = failure, self.cause or failure
        self.cause = max(causes, key=lambda cause: (cause.kind == "expired", cause.kind != "timeout"))
        if failure.kind not in _TRIED_AGAIN:
            self.cause = failure
            return None
        if failure.kind == "length" and self.failures >= _MOST_WRONG_LENGTHS:
            return None
        limit = self._limit = self._limit or Deadline(self._patience)
        if failure.kind == "unreachable" and store_of(self._location) not in _answered:
            soon = Deadline(_MOST_SECONDS_UNREACHABLE, began=self._deadline.began)
            limit = min(limit, soon, key=lambda each: each.end)
        most = min(policy.first_pause * 2 ** min(self.failures - 1, 10), policy.longest_pause)
        pause = (failure.retry_after or 0.0) + jitter.uniform(0, most)
        is_over = pause >= limit.left()
        self._is_late = is_over and limit is self._deadline
        return None if is_over else pause

    def succeeded(self) -> None:
        """Note that the store has answered this process."""
        _answered.add(store_of(self._location))

    def error(self) -> NotFoundError | StorageError:
        """Return the error of the request, with its kind, the attempts and the seconds."""
        cause = self.cause or Failure("timeout", f"{shown(self._location)} cannot be read in time")
        message = str(cause)
        if self._deadline.name or self.failures > 1 or cause.kind in _TRIED_AGAIN:
            message += f" {self._deadline.spent(self.failures, is_over=self._is_late)}"
        return NotFoundError(message) if cause.kind == "absent" else StorageError(message, kind=cause.kind)


_answered: set[str] = set()
"""Stores that have answered this process: if their name is not found later, the fault will pass."""


def failure_of(error: Exception, location: str, verb: str = "read") -> Failure:
    """Classify an exception of a storage client as a `Failure`: its kind, message and ``Retry-After``.

    The exception itself may hold a signed URL or a password, and is left behind.
    """
    if isinstance(error, Failure):
        return error
    causes = list(_causes(error))
    answers = list(map(_answer, causes))
    status = next((status for status, *_ in answers if status is not None), None)
    code = next((code for _, code, _ in answers if code), "")
    kind = None if status is None else _KINDS.get(status, "busy" if status >= 500 else "invalid")
    if kind == "absent" or isinstance(error, FileNotFoundError):
        if verb == "written":
            return Failure("invalid", f"{shown(location)} cannot be written: its bucket or folder does not exist")
        return Failure("absent", f"{shown(location)} does not exist")
    root = causes[-1] if type(error).__module__.startswith("urllib3") else error
    message = f"{shown(location)} cannot be {verb}: "
    message += f"{type(root).__name__}: {scrubbed(str(root), location)[:_LONGEST_CAUSE]}"

    def is_any(*classes: type[Exception]) -> bool:
        return any(isinstance(cause, classes) for cause in causes)

    names, advice = {type(cause).__name__ for cause in causes}, ""
    if is_any(ssl.SSLCertVerificationError):
        kind, advice = "invalid", "if you trust the server, name its certificate or authority by SSL_CERT_FILE"
    elif code in _EXPIRED:
        kind, advice = "expired", "the credentials have expired: renew them"
    elif kind == "denied" or isinstance(error, PermissionError):
        kind, advice = "denied", f"access is refused: {_what_to_check(location, status, code)}"
    elif "NoCredentialsError" in names:
        kind, advice = "denied", NO_CREDENTIALS
    elif is_any(TimeoutError):  # S3 calls a slow request a bad one: 400
        kind = "timeout"
    elif kind is None and any(getattr(cause, "errno", None) == socket.EAI_NONAME for cause in causes):
        kind, advice = "unreachable", "no such host: check the URL"
    elif kind is None and is_any(ConnectionRefusedError):
        what = "HTTPS_PROXY and HTTP_PROXY" if "ProxyError" in names else "the URL"
        kind, advice = "unreachable", f"nothing answers at this address: check {what}"
    elif kind is None:
        kind = "invalid" if isinstance(error, _MISTAKES) or names & _LASTING else "broken"
    waits = [_retry_after(headers) for *_, headers in answers if headers]
    seconds = next((seconds for seconds in waits if seconds is not None), None)
    return Failure(kind, f"{message} ({advice})" if advice else message, seconds)


def _what_to_check(location: str, status: int | None, code: str) -> str:
    if status == 407:
        return "check HTTPS_PROXY, or name the host in NO_PROXY"
    if scheme(location) in ("s3", "s3a", "gs", "gcs") and code in ("", "403", "AccessDenied"):
        return "check the credentials, and the name: without permission to list, a missing object gives the same answer"
    return f"check the credentials{', or sign the URL again: it may have expired' if '?' in location else ''}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        attributes = getattr(error, "kwargs", None)  # botocore chains no causes
        inner = attributes.get("error") if isinstance(attributes, Mapping) else None
        error = error.__cause__ or (inner if isinstance(inner, BaseException) else None)


def _answer(error: BaseException) -> tuple[int | None, str, Any]:
    """Return the status, the code of S3 and the headers of the answer that an exception holds, if it holds one."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        known = response.get("ResponseMetadata", {})
        code = response.get("Error", {}).get("Code") or ""
        return known.get("HTTPStatusCode"), str(code), known.get("HTTPHeaders")
    if tunnel := _TUNNEL.search(str(error)):  # http.client has no type for a proxy's refusal
        return max(407, int(tunnel[1])), "", None
    if type(error).__module__ == "aiohttp.http_exceptions":
        return None, "", None  # a body that was cut has code 400 there, which no server said
    # In aiohttp, `code` is a deprecated name of `status`, and warns.
    names = ("status",) if hasattr(error, "status") else ("status_code", "code")
    values = [*(getattr(error, name, None) for name in names), getattr(response, "status_code", None)]
    status = next((value for value in values if isinstance(value, int) and 100 <= value < 600), None)
    return status, getattr(error, "s3_code", ""), getattr(error, "headers", None) or getattr(response, "headers", None)


def _retry_after(headers: Any) -> float | None:
    """Return the seconds that a store asks to wait for, by their number or by a date."""
    import urllib3

    with contextlib.suppress(AttributeError, TypeError, ValueError, urllib3.exceptions.InvalidHeader):
        value = headers.get("Retry-After") or headers.get("retry-after")
        return float(urllib3.Retry().parse_retry_after(value))
    return None
