"""Reads from web servers and S3, on urllib3: connections, proxies, redirects, ranges.

Connections are kept open and shared by all threads of a process; a forked child makes its own. Nothing is retried
here. Headers and credentials do not follow a redirect to another store.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import urllib3
import urllib3.connection

from wdsdist.storage.failures import Failure
from wdsdist.storage.options import StorageOptions, given_for, store_of, trusted_stores
from wdsdist.storage.store import Entry, Opened, Sink
from wdsdist.storage.urls import login_of, shown, split

if TYPE_CHECKING:
    from wdsdist.storage.s3 import S3Addresses

_PIECE = 1 << 20  # bytes at most
_WAKING = 256 << 10
"""Bytes that have to be there before a thread that waits for a piece is woken, unless they are the last of a body."""
_MOMENT = struct.pack("@ll", 0, 100_000)
"""0.1 s, as the system takes it: bytes that arrive within are gathered into a piece."""
_CONNECTIONS = 64  # that are kept to one server
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_HOPS = 10  # redirects
_REDIRECTS = {301, 302, 303, 307, 308}
_NO_HEAD = {403, 405, 501}
"""Answers to HEAD after which GET may be allowed: by a URL that is signed for GET, or a server that has no HEAD."""
_CODE = re.compile(rb"<Code>(\w+)</Code>")
_COMPRESSED = (".gz", ".tgz", ".zst")
_UNSAFE = re.compile(r"%(?![0-9A-Fa-f]{2})|[^\x21-\x7e]|[\"#<>\\^`{|}]")
"""Characters that a URL may not hold as they are; a file has no fragment, so a ``#`` belongs to its name."""
_KEPT_ALIVE = [
    *urllib3.connection.HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""Socket options for connections that wait to be used again: else a router may forget one, and say nothing."""


class StatusError(Exception):
    """A web server or a store answered with a status that is an error."""

    def __init__(self, status: int, reason: str | None, headers: Mapping[str, str], code: str) -> None:
        super().__init__(f"{status} {reason or ''}" + (f" ({code})" if code else ""))
        self.status = status
        self.headers = headers
        self.s3_code = code
        """What S3 calls it; the status if an answer to a HEAD request has no body that would say."""


@dataclass(eq=False)
class HttpStore:
    """Reads from one web server, or from one bucket of S3."""

    addresses: S3Addresses | None = None
    """Signs the URLs of S3; the locations of a web server are URLs already."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The user's."""
    stores: tuple[str, ...] = ()
    """Stores that may see these headers."""

    @property
    def has_versions(self) -> bool:
        """Whether all answers about one version of an object have one stamp: machines of a web server may differ."""
        return self.addresses is not None

    def read(
        self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float, opened: Opened
    ) -> Entry:
        """Give the bytes of a range to ``sink`` as they arrive, as `Store.read` says."""
        is_whole = start == 0 and (stop is None or stop == size)
        answer = self._answer("GET", path, None if is_whole else (start, stop or 0), timeout)
        try:
            entry = _entry(path, answer)
            if size not in (None, -1) and entry.size not in (-1, size):
                raise Failure(
                    "length", f"{shown(path)} cannot be read: {entry.size:,} bytes where there should be {size:,}"
                )
            if not is_whole and answer.status == 206 and stop is not None and _left(answer) > stop - start:
                raise Failure("length", f"{shown(path)} cannot be read: more than {stop - start:,} bytes came")
            if not is_whole and answer.status != 206 and start:
                raise Failure("ranges", f"{shown(path)} cannot be read in parts: the server has no ranges")
            opened(functools.partial(_shut, answer))
            length = None if stop is None else stop - start
            got = _receive(answer, start, length, sink, timeout)
            if stop is not None and got != stop - start:
                raise Failure(
                    "length", f"{shown(path)} cannot be read: {got:,} bytes where there should be {stop - start:,}"
                )
            return entry
        finally:
            _release(answer)

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return what the headers of an object say: its size and its stamp."""
        try:
            answer = self._answer("HEAD", path, None, timeout)
        except StatusError as error:
            if error.status not in _NO_HEAD:
                raise
            answer = self._answer("GET", path, (0, 1), timeout)
        try:
            return _entry(path, answer)
        finally:
            _release(answer)

    def _answer(
        self, method: Literal["GET", "HEAD"], path: str, wanted: tuple[int, int] | None, timeout: float
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, follow redirects, and return an answer whose body has not been read."""
        url = self.addresses.url(method, path) if self.addresses else path
        for _ in range(_HOPS):
            answer = _manager(url).urlopen(
                method, _quoted(url), headers=self._headers(url, wanted), timeout=timeout, preload_content=False,
                decode_content=False, redirect=False, retries=False,
            )  # fmt: skip
            target, region = answer.headers.get("Location"), answer.headers.get("x-amz-bucket-region")
            if answer.status >= 300 and self.addresses and region and self.addresses.moved(region):
                url = self.addresses.url(method, path)
            elif answer.status in _REDIRECTS and target:
                url = _with_login(urllib.parse.urljoin(url, target.partition("#")[0]), url)
                if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
                    _release(answer)
                    raise ValueError("a redirect leads to another scheme than http or https")
            elif answer.status >= 300:
                raise self._error(method, answer)
            else:
                _check(answer, method, url, wanted)
                return answer
            _release(answer)
        raise ValueError(f"more than {_HOPS} redirects")

    def _headers(self, url: str, wanted: tuple[int, int] | None) -> dict[str, str]:
        # A body that the server compresses on its way has neither the length nor the ranges of the file.
        ours = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "wdsdist"}
        if wanted is not None:
            ours["Range"] = f"bytes={wanted[0]}-{wanted[1] - 1}"
        if self.addresses:
            return ours
        if login := urllib.parse.urlsplit(url).netloc.rpartition("@")[0]:
            ours |= urllib3.make_headers(basic_auth=urllib.parse.unquote(login))
        theirs = self.headers if store_of(url) in self.stores else {}
        for name, value in theirs.items():
            if {"\r", "\n"} & set(f"{name}{value}"):  # another header, or a request of its own
                raise ValueError(f"the header {name} of storage_options has a line break: remove it")
        names = {name.lower() for name in theirs} - {"range", "accept-encoding", "host", "connection"}
        return {**{name: value for name, value in ours.items() if name.lower() not in names},
                **{name: value for name, value in theirs.items() if name.lower() in names}}  # fmt: skip

    def _error(self, method: str, answer: urllib3.BaseHTTPResponse) -> StatusError:
        body = b""
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            body = answer.read(_PIECE) if method == "GET" else b""
        _release(answer)
        found = _CODE.search(body)
        code = (found[1].decode() if found else str(answer.status)) if self.addresses else ""
        return StatusError(answer.status, answer.reason, answer.headers, code)


def _check(answer: urllib3.BaseHTTPResponse, method: str, url: str, wanted: tuple[int, int] | None) -> None:
    """Raise if an answer is compressed on its way, or is another range than was asked for."""
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    # Some servers name the compression of a file as encoding, and send it as it is.
    is_file = urllib.parse.urlsplit(url).path.lower().endswith(_COMPRESSED)
    given = answer.headers.get("Content-Range", "")
    problem: Exception | None = None
    if method == "GET" and encoding != "identity" and not is_file:
        problem = ValueError(
            f"the server sends the file compressed ({encoding}), although it was asked not to: switch off the "
            f"compression of its answers, or upload the file without Content-Encoding"
        )
    elif wanted and answer.status == 206 and given and not given.startswith(f"bytes {wanted[0]}-"):
        asked = f"bytes {wanted[0]}-{wanted[1] - 1}"
        problem = Failure("length", f"{shown(url)} cannot be read: {given} came where {asked} were asked for")
    if problem is not None:
        answer.close()
        raise problem


def _entry(path: str, answer: urllib3.BaseHTTPResponse) -> Entry:
    size = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
    stamp = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    return Entry(split(path)[1], int(size) if size.isdecimal() else -1, stamp)


def _left(answer: urllib3.BaseHTTPResponse) -> int:
    """Return the bytes of a body that have not been read; 0 if their number is unknown."""
    body: Any = answer._fp  # type: ignore[attr-defined]  # urllib3's own readinto copies
    return body.length or 0


_buffers = threading.local()


def _receive(answer: urllib3.BaseHTTPResponse, start: int, length: int | None, sink: Sink, timeout: float) -> int:
    """Give at most ``length`` bytes of a body to ``sink`` as they arrive; return their number.

    Pieces come in the same memory, one after another: fresh memory would cost a page fault for every 4 KiB.
    """
    body: Any = answer._fp  # type: ignore[attr-defined]
    if not hasattr(_buffers, "piece"):
        _buffers.piece = memoryview(bytearray(_PIECE))
    wire = _wire(answer, body)
    got = 0
    while length is None or got < length:
        room = _buffers.piece if length is None else _buffers.piece[: length - got]
        if wire is None:
            size = body.readinto(room)
        elif got:
            size = _gather(wire, body, room[: body.length], timeout)
        else:  # what has come with the header, of which nothing stays in the buffer of `body`
            size = body.fp.readinto1(room[: min(io.DEFAULT_BUFFER_SIZE, body.length)])
            body.length -= size
        if not size:
            break
        sink(start + got, room[:size])
        got += size
    if wire is not None:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    if body.length and (length is None or got < length):
        raise ConnectionAbortedError(f"the connection ended {body.length:,} bytes too early")
    return got


def _wire(answer: urllib3.BaseHTTPResponse, body: Any) -> socket.socket | None:
    """Return the socket through which a long body comes byte by byte as it is; ``None`` for TLS and for chunks."""
    wire = getattr(answer.connection, "sock", None)
    is_plain = type(wire) is socket.socket and not body.chunked and (body.length or 0) > _WAKING
    return wire if is_plain else None


def _gather(wire: socket.socket, body: Any, room: memoryview, timeout: float) -> int:
    """Receive until ``room`` is full or 0.1 s are over, and longer while nothing comes; return the number of bytes.

    The system waits for all of it, and wakes this thread for each 256 KiB: to look at each packet costs a third of the
    CPU of receiving on a link that many connections share (1.75 s/GB, and 1.1 so).
    """
    if not room:
        return 0
    wire.settimeout(None)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _MOMENT)
    # The last bytes of a body would not wake this thread, for nothing comes behind them.
    waking = _WAKING if body.length - len(room) >= _WAKING else 1
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, waking)
    until = time.monotonic() + timeout
    while True:
        try:
            size = wire.recv_into(room, flags=socket.MSG_WAITALL)
            break
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError(f"nothing came in {timeout:g} s") from None
    body.length -= size
    return size


def _shut(answer: urllib3.BaseHTTPResponse) -> None:
    """End a request at once, also in a thread that waits for bytes."""
    connection: Any = answer.connection
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _release(answer: urllib3.BaseHTTPResponse) -> None:
    """Keep the connection if all of the body was read, close it otherwise."""
    body: Any = answer._fp  # type: ignore[attr-defined]
    if body.length == 0 and not body.isclosed():
        body.close()
    if body.isclosed():
        answer.release_conn()
    else:
        answer.close()


def _quoted(url: str) -> str:
    quoted = _UNSAFE.sub(lambda found: urllib.parse.quote(found[0], safe=""), url)
    before, _, rest = quoted.partition("://")
    host, slash, path = rest.partition("/")
    return f"{before}://{host.rpartition('@')[2]}{slash}{path}"  # the login is a header


def _with_login(target: str, source: str) -> str:
    """Return the target of a redirect, with the login of its source if that is on the same server."""
    login, at, _ = urllib.parse.urlsplit(source).netloc.rpartition("@")
    parts = urllib.parse.urlsplit(target)
    if "@" in parts.netloc or store_of(target) != store_of(source):
        return target
    return parts._replace(netloc=f"{login}{at}{parts.netloc}").geturl()


_managers: dict[tuple[int | str | None, ...], urllib3.PoolManager] = {}
"""Connections by process and proxy, and the same by server and environment. A forked child never uses or closes what it
inherits."""


def _manager(url: str) -> urllib3.PoolManager:
    """Return the connections of this process that lead to a server, through the proxy that the environment names."""
    key = (os.getpid(), url[: url.find("/", len("https://"))], *map(os.environ.get, _PROXIES))
    if key not in _managers:
        proxy = proxy_for(url) or ""
        if (os.getpid(), proxy) not in _managers:
            _managers[os.getpid(), proxy] = _made(proxy)
        _managers[key] = _managers[os.getpid(), proxy]
    return _managers[key]


def _made(proxy: str) -> urllib3.PoolManager:
    how: dict[str, Any] = {
        "num_pools": 64, "maxsize": _CONNECTIONS, "socket_options": _KEPT_ALIVE, "ssl_context": _tls(),
    }  # fmt: skip
    if not proxy:
        return urllib3.PoolManager(**how)
    parts = urllib.parse.urlsplit(proxy)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"a proxy has the scheme {parts.scheme}, and only http and https are known: set HTTPS_PROXY and "
            f"HTTP_PROXY to http://HOST:PORT, or name the server in NO_PROXY"
        )
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:  # which may hold a password
        raise ValueError("a proxy has no valid port: set HTTPS_PROXY and HTTP_PROXY to http://HOST:PORT") from None
    login = parts.netloc.rpartition("@")[0]
    headers = urllib3.make_headers(proxy_basic_auth=urllib.parse.unquote(login)) if login else None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urllib3.ProxyManager(f"{parts.scheme}://{host}:{port}", proxy_headers=headers, **how)


def proxy_for(url: str) -> str | None:
    """Return the proxy that requests to a server go through; ``None`` if they need none."""
    if not any(map(os.environ.get, _PROXIES)):
        return None
    import urllib.request  # late: it takes as long as a request

    parts = urllib.parse.urlsplit(url)
    port = parts.port or {"http": 80}.get(parts.scheme, 443)
    # With the port, which NO_PROXY may name too.
    if urllib.request.proxy_bypass(f"{parts.hostname}:{port}"):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def http_store(location: str, options: StorageOptions | None) -> HttpStore:
    """Return the store that reads a URL of the web. Raises `Failure` for options that have no meaning there."""
    if "@" in (login := login_of(location)) and "/" in login:
        raise Failure(
            "invalid",
            f"the user or password in the URL of {shown(location)} has a slash: write it as %2F, or pass a header by "
            f"storage_options",
        )
    given = given_for(location, options)
    headers: dict[str, str] = {}
    for name, value in given.items():
        more = value if name == "headers" else value.get("headers", {}) if name == "client_kwargs" else None
        if not isinstance(more, Mapping) or (name == "client_kwargs" and set(value) - {"headers"}):
            raise Failure(
                "invalid", f'{shown(location)} takes storage_options={{"headers": {{NAME: VALUE}}}} alone, not {name!r}'
            )
        headers.update(more)
    return HttpStore(None, headers, trusted_stores(location, options))
