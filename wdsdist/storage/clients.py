"""The clients of fsspec: made with the options of their store, and asked with retries.

What a data set lists is data: an ``index.json`` may name shards anywhere. Options such as credentials therefore go to
the stores that the user has named, and to no other.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from wdsdist.storage.options import StorageOptions, given_for, named, options_for, store_of, trusted_stores  # noqa: F401
from wdsdist.storage.retry import Attempts, Deadline, FinalError, PassingError, answered, mapped, policy, raise_alone
from wdsdist.storage.urls import scrubbed, shown
from wdsdist.storage.waits import Request, under_way

if TYPE_CHECKING:
    import aiohttp

    from wdsdist.storage.s3_urls import S3Addresses

T = TypeVar("T")

_ALIASES = {"s3a": "s3", "gcs": "gs"}
_PORTS = {"http": "80", "https": "443"}
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
           "hf": "hf", "http": "http", "https": "http"}  # fmt: skip
_LOGIN = re.compile(r"[^/]*@|(?!arn:)[^/]*:")
"""Credentials before a bucket; a secret may hold a slash."""
_STALL = 20.0  # seconds
_POOL = 128
"""Connections that a client may hold; more than anybody asks for at once, or requests would wait where nobody sees."""

_OURS = {"host", "accept", "accept-encoding", "range", "connection"}
"""Headers of a request that are of no use to who should not have seen it."""

signers: dict[tuple[str | None, ...], S3Addresses | None] = {}
"""What signs requests to S3, by store, options and environment; dropped where credentials have expired."""

_used: dict[int, Any] = {}
"""All clients that were ever used, by identity, so that none of them ends. A forked child drops what fsspec inherited,
and a client that ends closes its connections: the parent, whose they are, would then wait on them in vain."""


reach = trusted_stores
store = store_of


def persist(location: str, action: Callable[[], T], verb: str = "read", deadline: Deadline | None = None) -> T:
    """Do something with a remote location, and again after a pause where it fails for another reason than absence.

    Raises ``FileNotFoundError`` where there is nothing, `StorageError` with the number of attempts and the cause where
    it cannot be done before the deadline; without one, within the policy's patience from the first failure on.
    """
    attempts = Attempts(deadline, patience=policy().patience)
    with under_way(Request(shown(location), verb)) as request:
        while True:
            try:
                with answered(location, verb):
                    return action()
            except (FinalError, PassingError) as error:
                pause = attempts.failed(error)
                request.failed(error, attempts.failures)
                renew(location, error)
            time.sleep(pause)


def renew(location: str, error: FinalError | PassingError) -> bool:
    """Forget the clients for locations like this where their credentials have expired; return whether they have."""
    if not (isinstance(error, PassingError) and error.has_expired):
        return False
    signers.clear()
    if "s3fs" in sys.modules:
        import fsspec

        fsspec.get_filesystem_class(location.partition("://")[0]).clear_instance_cache()
    return True


def filesystem(location: str, options: StorageOptions | None, *, retries: bool = True) -> tuple[Any, str]:
    """Return the client for a location, and the path of the location in that client.

    Clients are shared by all threads, and made anew in a forked process; fsspec sees to both.

    Args:
        location: a URL.
        options: for the client; it gets those that are for its store, as `options_for` decides.
        retries: whether the client may try again by itself, unseen and without regard to a deadline.
    """
    scheme, _, rest = location.partition("://")
    if _ALIASES.get(scheme, scheme) in ("s3", "gs") and _LOGIN.match(rest):
        raise_alone(
            FinalError(
                f"credentials in an {scheme}:// URL are not read: name the bucket alone, and pass them as "
                f"storage_options, or keep them in a profile or the environment, where the store's own tools look"
            )
        )
    given = given_for(location, options)
    with mapped(location):
        client, path = _made(location, _with_defaults(location, given, reach(location, options), retries=retries))
        if not retries and hasattr(client, "retries"):  # s3fs and gcsfs
            client.retries = 1
    _used[id(client)] = client
    return client, path


def _made(location: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec

    try:
        client, path = fsspec.core.url_to_fs(location, **options)
    except ImportError:
        scheme = location.partition("://")[0]
        extra = _EXTRAS.get(scheme)
        advice = f'pip install "wdsdist[{extra}]"' if extra else f"install the fsspec back end for {scheme}://"
        raise_alone(FinalError(f"{shown(location)} needs a package that is not installed: {advice}"))
    except ValueError as error:
        raise_alone(FinalError(f"{shown(location)} cannot be opened: {scrubbed(str(error), location)}"))
    return client, path


def speaks(client: Any, protocol: str) -> bool:
    """Say whether a client is one for a protocol, by the name that fsspec gives it; some have several."""
    names = client.protocol
    return protocol in (names if isinstance(names, (tuple, list)) else (names,))


def _with_defaults(location: str, given: dict[str, Any], stores: tuple[str, ...], *, retries: bool) -> dict[str, Any]:
    """Add the defaults of a client (connection limit, read timeout) to the given options, which take precedence.

    ``stores`` are those that may see what was given.
    """
    scheme = location.partition("://")[0]
    if scheme in ("http", "https"):
        if "middlewares" in given:  # they replace those of the session
            given["middlewares"] = (*given["middlewares"], functools.partial(_to_named_stores, stores=stores))
        return {"get_client": functools.partial(_session, stores=stores) if given else _session, **given}
    if scheme in ("s3", "s3a"):
        ours: dict[str, Any] = {"max_pool_connections": _POOL, "read_timeout": _STALL}
        if not retries:
            ours["retries"] = {"total_max_attempts": 1}
        return {**given, "config_kwargs": {**ours, **given.get("config_kwargs", {})}}
    return given


async def _session(*, stores: tuple[str, ...] | None = None, **options: Any) -> aiohttp.ClientSession:
    """Make a session of aiohttp; where it has options of the user's, only some stores get to see them."""
    import aiohttp

    # aiohttp's own limit is five minutes for a whole file, however well it comes in
    options.setdefault("timeout", aiohttp.ClientTimeout(total=None, sock_connect=_STALL, sock_read=_STALL))
    options.setdefault("connector", aiohttp.TCPConnector(limit=_POOL))
    if stores is not None:
        if not hasattr(aiohttp, "ClientMiddlewareType"):
            raise FinalError('storage_options for the web need aiohttp 3.12: pip install "wdsdist[http]"')
        mine = functools.partial(_to_named_stores, stores=stores)
        options["middlewares"] = (*options.get("middlewares", ()), mine)
    return aiohttp.ClientSession(**options)


async def _to_named_stores(
    request: aiohttp.ClientRequest,
    handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
    *,
    stores: tuple[str, ...],
) -> aiohttp.ClientResponse:
    """Send a request to another store, to which a named one has redirected it, without what was given for that one.

    aiohttp drops an ``Authorization`` header there, but neither other headers nor cookies, and adds a session's
    ``auth`` again.
    """
    from aiohttp.http import SERVER_SOFTWARE

    if store(str(request.url)) not in stores:
        for name in [name for name in request.headers if name.lower() not in _OURS]:
            del request.headers[name]
        request.headers["User-Agent"] = SERVER_SOFTWARE  # some refuse a request without one
    return await handler(request)


def asked(client: Any, what: str, path: str, deadline: Deadline | None, **how: Any) -> Any:
    """Call a method of a client on a path and return its answer; raise ``TimeoutError`` where none comes.

    Synchronous clients of fsspec take as long as they take.
    """
    if speaks(client, "direct"):
        return getattr(client, what)(path, seconds=_patience(deadline), **how)
    if deadline is None or not client.async_impl:
        return getattr(client, what)(path, **how)
    import fsspec.asyn
    import fsspec.exceptions

    patience = _patience(deadline)
    try:
        return fsspec.asyn.sync(client.loop, getattr(client, f"_{what}"), path, timeout=patience, **how)
    except fsspec.exceptions.FSTimeoutError:
        raise TimeoutError(f"no answer in {patience:.1f} s") from None


def _patience(deadline: Deadline | None) -> float | None:
    """Return the seconds to wait for one answer: a quarter of the time, so that a stalled connection leaves some."""
    return None if deadline is None else max(0.1, min(deadline.left(), deadline.seconds / 4))
