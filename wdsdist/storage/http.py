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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import urllib3
import urllib3.connection

from wdsdist.storage.failures import Failure
from wdsdist.storage.store import Entry, Sink
from wdsdist.storage.urls import StorageOptions, login_of, options_for, shown, split, store_of

if TYPE_CHECKING:
    from wdsdist.storage.s3 import S3Addresses

_PIECE = 1 << 20  # bytes at most
_WAKING = 256 << 10
"""Bytes that have to be there before a thread that waits for a piece is woken, unless they are the last of a body."""
_MOMENT = struct.pack("@ll", 0, 500_000)
"""0.5 s, as the system takes it: bytes that arrive within are gathered into a piece."""
_CONNECTIONS = 64  # that are kept to one server
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
"""Variables that name certificates to trust besides the system's or SSL_CERT_FILE's."""
_HOPS = 10  # redirects
_REDIRECTS = {301, 302, 303, 307, 308}
_CODE = re.compile(rb"<Code>(\w+)</Code>")
_COMPRESSED = (".gz", ".tgz", ".zst")
_KEPT_ALIVE = [
    *urllib3.connection.HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
]
"""Socket options for connections that wait to be used again: else a router may forget one, and say nothing."""


class StatusError(Exception):
    """A web server or a store answered with a status that is an error."""

    def __init__(self, status: int, reason: str | None, headers: Mapping[str, str], code: str) -> None:
        super().__init__(f"{status} {reason or ''}" + (f" ({code})" if code else ""))
        self.status = status
        self.headers = headers
        self.s3_code = code
        """The name of the error in S3; empty if the answer does not say."""


@dataclass(eq=False)
class HttpStore:
    """Reads from one web server, or from one bucket of S3."""

    addresses: S3Addresses | None = None
    """Signs the URLs of S3; the locations of a web server are URLs already."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The user's, for the store of a location alone, by their names in lower case."""

    def read(self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float) -> None:
        """Give the bytes of a range to ``sink`` as they arrive, as `Store.read` says."""
        is_whole = start == 0 and stop in (None, size)
        length = None if stop is None else stop - start
        with self._answer(path, None if is_whole else (start, stop), timeout) as answer:
            total = _entry(path, answer).size
            given = answer.headers.get("Content-Range", f"bytes {start}-")
            left = answer._fp.length or 0  # type: ignore[attr-defined]
            if start and answer.status != 206:
                raise Failure("ranges", f"{shown(path)} cannot be read in parts: the server has no ranges")
            if size is not None and total not in (-1, size):
                problem = f"{total:,} bytes where there should be {size:,}"
            elif not given.startswith(f"bytes {start}-"):
                problem = f"{given} came where bytes from {start} on were asked for"
            elif answer.status == 206 and length is not None and left > length:
                problem = f"more than {length:,} bytes came"
            else:
                received = _receive(answer, start, length, sink, timeout)
                if length in (None, received):
                    return
                if given.startswith(f"bytes {start}-{start + received - 1}/"):  # a server may send a part of a range
                    raise ConnectionAbortedError(f"{received:,} bytes came of {length:,}")
                problem = f"{received:,} bytes where there should be {length:,}"
        raise Failure("length", f"{shown(path)} cannot be read: {problem}")

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return the size and the stamp (ETag) of an object, from the response to a request for its first byte."""
        try:
            with self._answer(path, (0, 1), timeout) as answer:
                answer.read(1)  # so that the connection can be kept
                return _entry(path, answer)
        except StatusError as error:
            if error.status != 416:  # an empty file has no first byte
                raise
            return Entry(split(path)[1], 0, error.headers.get("ETag", ""))

    @contextlib.contextmanager
    def _answer(
        self, path: str, wanted: tuple[int, int | None] | None, timeout: float
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send a request, follow redirects, and yield an answer whose body has not been read."""
        url = self.addresses.url(path) if self.addresses else path
        for _ in range(_HOPS):
            headers = {"accept": "*/*", "user-agent": "wdsdist"}
            if not self.addresses and store_of(url) == store_of(path):
                if (login := login_of(path)).endswith("@"):
                    headers |= urllib3.make_headers(basic_auth=urllib.parse.unquote(login[:-1]))
                headers |= self.headers
            # A body that the server compresses on its way has neither the length nor the ranges of the file.
            headers["accept-encoding"] = "identity"
            if wanted is not None:
                headers["range"] = f"bytes={wanted[0]}-{'' if wanted[1] is None else wanted[1] - 1}"
            connections = _connections(os.getpid(), _proxy_for(url), is_encrypted=url.startswith("https:"))
            answer = connections.urlopen(
                "GET", url.replace(login_of(url), "", 1).replace("#", "%23"),  # a file has no fragment
                headers=headers, timeout=timeout, preload_content=False, decode_content=False, redirect=False,
                retries=False,
            )  # fmt: skip
            try:
                target, region = answer.headers.get("Location"), answer.headers.get("x-amz-bucket-region")
                if self.addresses and answer.status >= 300 and region and self.addresses.moved(region):
                    url = self.addresses.url(path)
                elif answer.status in _REDIRECTS and target:
                    url = urllib.parse.urljoin(url, target.partition("#")[0])
                    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
                        raise ValueError("a redirect leads to another scheme than http or https")
                elif answer.status >= 300:
                    content = b""
                    with contextlib.suppress(urllib3.exceptions.HTTPError):
                        content = answer.read(_PIECE)
                    code = _CODE.search(content) if self.addresses else None
                    raise StatusError(answer.status, answer.reason, answer.headers, code[1].decode() if code else "")
                else:
                    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
                    # Some servers name the compression of a file as encoding, and send it as it is.
                    is_file = urllib.parse.urlsplit(url).path.lower().endswith(_COMPRESSED)
                    if encoding != "identity" and not is_file:
                        raise ValueError(
                            f"the server sends the file compressed ({encoding}), although it was asked not to: switch "
                            f"off the compression of its answers, or upload the file without Content-Encoding"
                        )
                    yield answer
                    return
            finally:
                body: Any = answer._fp  # type: ignore[attr-defined]
                if body.length == 0 and not body.isclosed():
                    body.close()
                if body.isclosed():
                    answer.release_conn()
                else:
                    answer.close()  # the connection too, as the rest of the body was not read
        raise ValueError(f"more than {_HOPS} redirects")


def _entry(path: str, answer: urllib3.BaseHTTPResponse) -> Entry:
    size = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
    stamp = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    return Entry(split(path)[1], int(size) if size.isdecimal() else -1, stamp)


_buffers = threading.local()


def _receive(answer: urllib3.BaseHTTPResponse, start: int, length: int | None, sink: Sink, timeout: float) -> int:
    """Give at most ``length`` bytes of a body to ``sink`` as they arrive; return their number.

    Pieces come in the same memory, one after another: fresh memory would cost a page fault for every 4 KiB. The
    system gathers a long body for 0.5 s and wakes this thread for each 256 KiB: a look at each packet costs a third
    of the CPU of receiving on a link that many connections share (1.75 s/GB, and 1.1 so). Where 48 connections
    share 100 MB/s, 0.1 s in its place would make twice as many pieces, of 0.1 ms of CPU each.
    """
    body: Any = answer._fp  # type: ignore[attr-defined]  # urllib3's own readinto copies
    if not hasattr(_buffers, "piece"):
        _buffers.piece = memoryview(bytearray(_PIECE))
    wire: Any = getattr(answer.connection, "sock", None)
    # The bytes of a long body come as they are, but for TLS and chunks.
    is_plain = type(wire) is socket.socket and not body.chunked and (body.length or 0) > _WAKING
    received, until = 0, 0.0
    while length is None or received < length:
        room = _buffers.piece if length is None else _buffers.piece[: length - received]
        if not is_plain:
            size = body.readinto(room)
        elif not received:  # what has come with the header: nothing of it stays in the buffer of `body`
            size = body.fp.readinto1(room[: min(io.DEFAULT_BUFFER_SIZE, body.length)])
            body.length -= size
            wire.settimeout(None)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _MOMENT)
        else:
            room = room[: body.length]
            # The last bytes of a body would not wake this thread, for nothing comes behind them.
            waking = _WAKING if body.length - len(room) >= _WAKING else 1
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, waking)
            try:
                size = wire.recv_into(room, flags=socket.MSG_WAITALL)
            except BlockingIOError:  # nothing has come yet
                sink(start + received, room[:0])  # which ends the request if nobody waits for it
                if time.monotonic() >= until:
                    raise TimeoutError(f"nothing came in {timeout:g} s") from None
                continue
            body.length -= size
        if not size:
            break
        sink(start + received, room[:size])
        received += size
        until = time.monotonic() + timeout
    if is_plain:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    if body.length and (length is None or received < length):
        raise ConnectionAbortedError(f"the connection ended {body.length:,} bytes too early")
    return received


@functools.cache
def _connections(pid: int, proxy: str | None, *, is_encrypted: bool) -> urllib3.PoolManager:
    """Return the connections of a process that go through a proxy; for TLS apart, as its certificates take 20 ms.

    A forked child never uses or closes the connections of its parent.
    """
    pool: dict[str, Any] = {
        "num_pools": 64, "maxsize": _CONNECTIONS, "socket_options": _KEPT_ALIVE,
        "ssl_context": _tls() if is_encrypted else None,
    }  # fmt: skip
    if proxy is None:
        return urllib3.PoolManager(**pool)
    try:
        login = urllib3.util.parse_url(proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=urllib.parse.unquote(login)) if login else None
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **pool)
    except ValueError:  # whose message may hold a password
        raise ValueError("HTTPS_PROXY and HTTP_PROXY must look like http://proxy:3128") from None


def _proxy_for(url: str) -> str | None:
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
    context = ssl.create_default_context()
    for name in _BUNDLES:
        if bundle := os.environ.get(name):
            try:
                context.load_verify_locations(bundle)
            except OSError as error:
                raise ValueError(f"{name} names {bundle}, which holds no certificates") from error
    return context


def http_store(location: str, options: StorageOptions | None) -> HttpStore:
    """Return the store that reads a URL of the web. Raises `Failure` for options that have no meaning there."""
    if "/" in (login := login_of(location)) and login.endswith("@"):
        raise Failure(
            "invalid",
            f"the user or password in the URL of {shown(location)} has a slash: write it as %2F, or pass a header by "
            f"storage_options",
        )
    headers: dict[str, str] = {}
    for name, value in options_for(location, options).items():
        if name == "client_kwargs" and set(value) == {"headers"}:  # as fsspec takes them
            name, value = "headers", value["headers"]
        if name != "headers" or not isinstance(value, Mapping):
            raise Failure(
                "invalid", f'{shown(location)} takes storage_options={{"headers": {{NAME: VALUE}}}} alone, not {name!r}'
            )
        headers.update(value)
    for name, value in headers.items():
        if {"\r", "\n"} & set(f"{name}{value}"):  # another header, or a request of its own
            raise Failure("invalid", f"the header {name} of storage_options has a line break: remove it")
    return HttpStore(None, {name.lower(): value for name, value in headers.items()})
