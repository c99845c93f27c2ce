"""Retries: which errors of back ends are tried again, after which pause, and until which deadline.

Back ends share no base class: aiohttp, botocore, google and azure have exceptions of their own. What they share is the
status of HTTP, somewhere along the chain of causes.
"""

from __future__ import annotations

import contextlib
import email.utils
import random
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

from wdsdist.errors import StorageError
from wdsdist.storage.deadline import Deadline
from wdsdist.storage.failures import RequestPolicy, policy, raise_alone, use_policy  # noqa: F401
from wdsdist.storage.urls import scheme, scrubbed, shown

_ABSENT = {404, 410}
_REFUSED = {401, 403}
_PASSING = {408, 425, 429}  # of 400 to 499: too slow, too early, too many
_NEVER = {501, 505}  # of 500 and more: not implemented, another version of HTTP
# Of the options, of the program, of the credentials: what is wrong with them stays wrong.
_FINAL = (PermissionError, ImportError, NotImplementedError, TypeError, ValueError)
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3}) ")
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
"""Codes of S3, with status 400 or 403, for credentials that were good: a new client reads those in their place."""
_BARE = "400"  # code of a HEAD request that fails: it has no body that would say why
_LASTING = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "DefaultCredentialsError",
            "ParamValidationError", "InvalidRegionError", "NoRegionError", "TooManyRedirects"}  # fmt: skip
"""Errors of botocore, google and aiohttp that stay: of credentials, options, names of buckets, and redirects."""
_MISFITS = 5  # what has the wrong length so many times will not get the right one
_MOST_TOLD = 2000
"""Letters of what a back end says that an error repeats: a server may answer with anything."""
_OF_UNKNOWN = 0.1
"""Share of the patience for a host that there is not: long enough for a name that is being registered."""


class FinalError(StorageError):
    """Base of errors that another attempt would not mend."""


class WrongLengthError(StorageError):
    """What the store gives has another number of bytes than it should, however often it is asked for."""


class PassingError(StorageError):
    """Base of errors that another attempt may mend."""

    retry_after: float | None = None
    """Seconds that the store asks to wait for."""
    has_expired = False
    """Whether the credentials of the client have expired: the next attempt needs a new one."""
    is_misfit = False
    """Whether the store answered well, but with another number of bytes."""
    is_vague = False
    """Whether the store refused without a reason that tells whether another attempt may help."""
    is_unknown = False
    """Whether there is no such host, for which a URL with a mistake is likelier than a fault of the network."""
    is_timeout = False
    """Whether no answer came in the time that the attempt had."""


class UnfitError(PassingError):
    """The store answered, but not with what it should hold, such as a page that asks for a login."""


class NotKeptError(StorageError):
    """What was fetched cannot be written here, such as to a full disk: the store is not at fault."""


class NoRangesError(StorageError):
    """A web server that serves whole files only, without ranges."""


class AwayError(StorageError):
    """A store did not answer, or answered that it cannot for now, until the time was over."""


class MisfitError(Exception):
    """A range has more or fewer bytes than it should, or is another one."""


class Attempts:
    """Counts the attempts at one thing, and says how long to wait before the next: exponentially longer, full jitter.

    Jitter keeps many processes that a store has refused together from coming back together.
    """

    def __init__(self, deadline: Deadline | None, *, patience: float) -> None:
        """Begin to count. Without a deadline, there are so many seconds of patience from the first failure on."""
        self._deadline = deadline
        self._patience = patience
        self.failures = 0
        self._misfits = 0
        self._cause: PassingError | None = None

    def failed(self, error: FinalError | PassingError) -> float:
        """Return the seconds to wait after a failed attempt.

        Raises `StorageError` with the number of attempts and the cause where another attempt cannot help, or where the
        time is over before it; `WrongLengthError` where too many answers had the wrong length, or the last one had;
        `AwayError` where the last one was that the store cannot answer, or there was none. An attempt that timed out
        has no answer: the cause is what one before it was told.
        """
        self.failures += 1
        attempts = f"after {self.failures} attempt{'s'[: self.failures - 1]}"
        if isinstance(error, FinalError):
            raise StorageError(f"{error} ({attempts})" if self.failures > 1 else f"{error}") from None
        if self._deadline is None:
            self._deadline = Deadline(self._patience * (_OF_UNKNOWN if error.is_unknown else 1))
        # The last attempt may have had no time for an answer, which says less than what others said before it.
        self._cause = max(error, self._cause or error, key=lambda one: (one.has_expired, not one.is_timeout))
        self._misfits += error.is_misfit or error.is_vague
        most = min(policy().first_pause * 2 ** min(self.failures - 1, 10), policy().longest_pause)
        pause = (error.retry_after or 0.0) + random.uniform(0, most)
        if self._misfits < _MISFITS:
            if pause < self._deadline.left():
                return pause
            attempts = f"{attempts} in {self._deadline.seconds:g} s"
        cause = self._cause
        is_answer = isinstance(cause, UnfitError) or cause.has_expired
        kind = WrongLengthError if cause.is_misfit else StorageError if is_answer else AwayError
        raise kind(f"{cause} ({attempts})") from None


_answered: set[str] = set()
"""Hosts and buckets that have answered this process: where their name is not found later, a fault will pass."""


@contextlib.contextmanager
def mapped(location: str, verb: str = "read") -> Iterator[None]:
    """Turn whatever a back end raises into ``FileNotFoundError``, `FinalError` or `PassingError`.

    Its own exception may hold a signed URL or a password. It is left behind: see `raise_alone`.
    """
    try:
        yield
    except StorageError as error:
        raise_alone(error)
    except Exception as error:
        raise_alone(_meaning(error, location, verb))


@contextlib.contextmanager
def answered(location: str, verb: str = "read") -> Iterator[None]:
    """Do what `mapped` does for a request, and note that the store has answered it."""
    with mapped(location, verb):
        yield
    _answered.add(_host(location))


def _host(location: str) -> str:
    return "/".join(location.split("/", 3)[:3])


def _meaning(error: Exception, location: str, verb: str) -> FileNotFoundError | FinalError | PassingError:
    causes = list(_causes(error))
    status = next(filter(None, map(_status, causes)), None)
    told: BaseException = error
    if isinstance(error, FileNotFoundError):
        # fsspec calls a file on the web missing whatever kept it from asking; its cause tells why
        told = next((cause for cause in causes if type(cause).__module__.startswith("aiohttp")), error)
    is_of_proxy = any(_TUNNEL.match(str(one)) for one in causes)
    if (status in _ABSENT and not is_of_proxy) or isinstance(told, FileNotFoundError):
        if verb == "written":
            return FinalError(f"{shown(location)} cannot be written: its bucket or folder does not exist")
        return FileNotFoundError(f"{shown(location)} does not exist")
    name = "" if isinstance(told, MisfitError) else f"{type(told).__name__}: "
    text = name + scrubbed(str(told), location)[:_MOST_TOLD]
    message = f"{shown(location)} cannot be {verb}: {text}"
    code = next(filter(None, map(_s3_code, causes)), "")
    has_expired = code in _EXPIRED or code == _BARE
    if code in _EXPIRED:
        message += " (the credentials have expired: renew them)"
    is_unknown = any(isinstance(one, socket.gaierror) and one.errno == socket.EAI_NONAME for one in causes)
    is_unknown = is_unknown and _host(location) not in _answered
    if is_unknown:
        message += " (no such host: check the URL)"
    if any(isinstance(one, ssl.SSLCertVerificationError) for one in causes):
        message += " (if you trust the server, name its certificate or authority by SSL_CERT_FILE)"
    if not has_expired and (status in _REFUSED or isinstance(told, PermissionError)):
        advice = "check HTTPS_PROXY, or name the host in NO_PROXY" if is_of_proxy else _what_to_check(location, code)
        return FinalError(f"{message} (access is refused: {advice})")
    if not has_expired and _is_final(told, causes, status):
        return FinalError(message)
    passing = PassingError(message)
    passing.has_expired, passing.is_vague, passing.is_unknown = has_expired, code == _BARE, is_unknown
    passing.is_misfit, passing.is_timeout = isinstance(told, MisfitError), isinstance(told, TimeoutError)
    passing.retry_after = next((after for after in map(_retry_after, causes) if after is not None), None)
    return passing


def _what_to_check(location: str, code: str) -> str:
    if code == "RequestTimeTooSkewed":
        return "check the clock of this machine"
    if scheme(location) in ("s3", "s3a", "gs", "gcs") and code in ("", "403", "AccessDenied"):
        return "check the credentials, and the name: who may not list a bucket gets this for what does not exist too"
    return f"check the credentials{', or sign the URL anew: it may have expired' if '?' in location else ''}"


def _is_final(error: BaseException, causes: list[BaseException], status: int | None) -> bool:
    if isinstance(error, TimeoutError):  # S3 calls a slow request a bad one: 400
        return False
    if status is not None:
        return status in _NEVER or (400 <= status < 500 and status not in _PASSING)
    return isinstance(error, _FINAL) or any(
        isinstance(cause, ssl.SSLCertVerificationError) or type(cause).__name__ in _LASTING for cause in causes
    )


def _s3_code(error: BaseException) -> str:
    if hasattr(error, "s3_code"):
        return str(error.s3_code)
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, Mapping) else ""  # botocore


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        kept = getattr(error, "kwargs", None)  # of botocore, which raises from nothing
        inner = kept.get("error") if isinstance(kept, Mapping) else None
        error = error.__cause__ or (inner if isinstance(inner, BaseException) else None)


def _status(error: BaseException) -> int | None:
    if tunnel := _TUNNEL.match(str(error)):  # which a proxy has refused; http.client has no type for that
        return int(tunnel[1])
    if type(error).__module__ == "aiohttp.http_exceptions":
        return None  # a body that was cut has code 400 there, which no server said
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        return _number(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    # Of aiohttp, `code` is a deprecated name of `status`, and warns.
    names = ("status",) if hasattr(error, "status") else ("status_code", "code")
    for owner, name in (*((error, name) for name in names), (response, "status_code")):
        if found := _number(getattr(owner, name, None)):
            return found
    return None


def _number(status: Any) -> int | None:
    return status if isinstance(status, int) and 100 <= status < 600 else None


def _retry_after(error: BaseException) -> float | None:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    else:
        headers = getattr(error, "headers", None) or getattr(response, "headers", None)
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # none, or neither seconds nor a date
        given = headers.get("Retry-After") or headers.get("retry-after")
        with contextlib.suppress(ValueError):
            return float(given)
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    return None
