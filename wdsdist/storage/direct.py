"""Requests to web servers and S3 on connections of the standard library, for reads and downloads.

aiohttp and s3fs take 0.2 to 0.6 CPU seconds to import and to make their first client, in every process that has not
inherited them; this takes some 0.02. Connections are kept open and shared by all threads of a process; a forked child
makes its own. Nothing is retried here, redirects see no credentials, and errors hold the status and the headers.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import itertools
import os
import re
import select
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, Literal

from wdsdist.storage.clients import StorageOptions, filesystem, given_for, reach, store
from wdsdist.storage.proxies import basic_login, proxy_for, through
from wdsdist.storage.retry import FinalError, MisfitError, NoRangesError, policy
from wdsdist.storage.s3_urls import S3Addresses, s3_addresses
from wdsdist.storage.urls import login_of, shown

_PIECE = 1 << 20  # bytes at most
_GATHERING = 0.1
"""Seconds in which bytes that arrive are gathered into a piece: to write each packet takes more CPU than to read it."""
_MOMENT = struct.pack("@ll", 0, int(_GATHERING * 1e6))
"""The same, as the system takes it."""
_WAKING = 256 << 10
"""Bytes that have to be there before a thread that waits for a piece is woken, unless that is the last of a body."""
_MOST_IDLE = 32  # connections to one server
_LONGEST_IDLE = 15.0
"""Seconds after which a kept connection is not used again: a router may have forgotten it, and says nothing."""
_HOPS = 10  # redirects
_REDIRECTS = {301, 302, 303, 307, 308}
_NO_HEAD = {403, 405, 501}
"""Answers to HEAD where GET may be allowed: by a URL that is signed for that, or a server that does not know HEAD."""
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""What a request on a kept connection gives that the server has closed meanwhile."""
_CODE = re.compile(rb"<Code>(\w+)</Code>")
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
_UNSAFE = re.compile(r"%(?![0-9A-Fa-f]{2})|[^\x21-\x7e]|[\"#<>\\^`{|}]")
"""Characters that a URL may not hold as they are; a file has no fragment, so a ``#`` belongs to its name."""


class StatusError(Exception):
    """A web server or a store answered with a status that is an error."""

    def __init__(self, status: int, reason: str, headers: Message, code: str) -> None:
        super().__init__(f"{status} {reason}" + (f" ({code})" if code else ""))
        self.status = status
        self.headers = headers
        self.s3_code = code
        """What S3 calls it; the status where an answer to a HEAD request has no body that would say."""


@dataclass(eq=False)
class Direct:
    """A client that reads from one store."""

    addresses: S3Addresses | None = None
    """Of S3; a web server's locations are URLs already."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The user's."""
    stores: tuple[str, ...] = ()
    """Stores that may see these."""
    protocol = "direct"
    async_impl = False

    def cat_file(
        self, location: str, start: int | None = None, end: int | None = None, *, seconds: float | None = None
    ) -> bytes:
        """Return a file, or a range of it, within so many seconds."""
        wanted = None if start is None or end is None else range(start, end)
        with self.answer("GET", location, wanted, seconds=seconds) as answer:
            if wanted is None or answer.status == 206:
                check_range(answer, wanted)
                return answer.content(None if wanted is None else len(wanted) + 1)  # so that more shows
            if wanted.start:
                raise NoRangesError("the server has no ranges")
            return answer.content(len(wanted))  # of a whole file the beginning is enough

    def whole(self, location: str, *, seconds: float | None = None) -> tuple[bytes, str]:
        """Return a file and its ETag, of one answer."""
        with self.answer("GET", location, seconds=seconds) as answer:
            return answer.content(), answer.headers.get("ETag", "")

    def info(self, location: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Return what the headers of a file say: its size and its stamps."""
        try:
            answer = self.answer("HEAD", location, seconds=seconds)
        except StatusError as error:
            if error.status not in _NO_HEAD:
                raise
            answer = self.answer("GET", location, range(1), seconds=seconds)
        with answer:
            size = answer.headers.get("Content-Length")
            if answer.status == 206:
                whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
                size = whole if whole.isdecimal() else None
            stamps = {name: answer.headers[name] for name in ("ETag", "Last-Modified") if name in answer.headers}
            return {"size": None if size is None else int(size), "type": "file", **stamps}

    def answer(
        self, method: Literal["GET", "HEAD"], location: str, wanted: range | None = None, *,
        seconds: float | None = None,
    ) -> Answer:  # fmt: skip
        """Send an HTTP request for a file or a byte range; redirects to other stores carry no headers or credentials.

        Raises `StatusError`, or what the connection raises.
        """
        until = None if seconds is None else time.monotonic() + seconds
        url = self.addresses.url(method, location) if self.addresses else location
        for _ in range(_HOPS):
            answer = _asked(method, url, self._headers(url, wanted), until)
            target, region = answer.headers.get("Location"), answer.headers.get("x-amz-bucket-region")
            if answer.status >= 300 and self.addresses and region and self.addresses.moved(region):
                url = self.addresses.url(method, location)
            elif answer.status in _REDIRECTS and target:
                url = _with_login(urllib.parse.urljoin(url, target.partition("#")[0]), url)
            elif answer.status >= 300:
                with answer:
                    raise self._error(method, answer)
            else:
                encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
                # Of a compressed file, some servers name so what it is, and send it as it is.
                is_file = urllib.parse.urlsplit(url).path.lower().endswith(_COMPRESSED)
                if method == "HEAD" or encoding == "identity" or is_file:
                    return answer
                answer.close()
                raise ValueError(
                    f"the server sends the file compressed ({encoding}), although it was asked not to: switch off the "
                    f"compression of its answers, or upload the file without Content-Encoding"
                )
            answer.close()
        raise ValueError(f"more than {_HOPS} redirects")

    def _headers(self, url: str, wanted: range | None) -> dict[str, str]:
        # A body that the server compresses on its way has neither the length nor the ranges of the file.
        ours = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "wdsdist"}
        if wanted is not None:
            ours["Range"] = f"bytes={wanted.start}-{wanted.stop - 1}"
        if self.addresses:
            return ours
        if login := urllib.parse.urlsplit(url).netloc.rpartition("@")[0]:
            ours["Authorization"] = basic_login(login)
        theirs = self.headers if store(url) in self.stores else {}
        for name, value in theirs.items():
            if {"\r", "\n"} & set(f"{name}{value}"):  # another header, or a request of its own
                raise ValueError(f"the header {name} of storage_options has a line break: remove it")
        names = {name.lower() for name in theirs} - {"range", "accept-encoding", "host", "connection"}
        return {**{name: value for name, value in ours.items() if name.lower() not in names},
                **{name: value for name, value in theirs.items() if name.lower() in names}}  # fmt: skip

    def _error(self, method: str, answer: Answer) -> StatusError:
        code = ""
        if self.addresses:
            found = _CODE.search(answer.piece()) if method == "GET" else None
            code = found[1].decode() if found else str(answer.status)
        return StatusError(answer.status, answer.reason, answer.headers, code)


class Answer:
    """An answer whose body is read in pieces; it goes back to the kept connections when it has been read whole."""

    def __init__(self, connection: http.client.HTTPConnection, key: _Key, until: float | None) -> None:
        self._connection, self._key, self._until = connection, key, until
        self._socket = connection.sock
        self._giving = threading.Lock()
        self._is_abandoned = False
        self._waking = 0  # bytes that wake this thread; 0 before the body has begun
        self._response = connection.getresponse()
        self.status, self.reason, self.headers = self._response.status, self._response.reason, self._response.headers

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_read(self) -> bool:
        """Whether the whole body has been read."""
        return self._response.isclosed() or self._response.length == 0

    def piece(self, most: int = _PIECE) -> bytes:
        """Return the bytes that have arrived, after waiting for the first; none at the end."""
        self._be_patient()
        piece = self._response.read1(most)
        if not piece and self._response.length:
            raise http.client.IncompleteRead(b"", self._response.length)
        return piece

    def _be_patient(self) -> None:
        # Not the socket of the connection, which has none any more where the server is to close it.
        if self._socket is not None and not self._response.isclosed():
            self._socket.settimeout(_patience(self._until))

    def each(self, take: Callable[[memoryview], None], wait: Callable[[], None]) -> float:
        """Give the rest of the body to a function as it arrives, and wait as another one does after each piece.

        Pieces come in the same memory, one after another: fresh memory would cost a page fault for every 4 KiB. Nothing
        is given after another thread has called `abandon`. Returns the seconds until all pieces had arrived.
        """
        buffer = memoryview(bytearray(min(_PIECE, self._response.length or _PIECE)))
        gather = self._gather_plain if self._is_plain else self._gather
        seconds, began = 0.0, time.monotonic()
        while size := gather(buffer):
            seconds += time.monotonic() - began
            with self._giving:
                if self._is_abandoned:
                    raise ConnectionAbortedError("nobody waits for the answer any more")
                take(buffer[:size])
            wait()
            began = time.monotonic()
        return seconds

    def _gather(self, buffer: memoryview) -> int:
        """Receive the next piece of a body: the bytes within 0.1 s of the first ones; return its size, 0 at the end."""
        size, until = self._receive(buffer), time.monotonic() + _GATHERING
        while 0 < size < len(buffer) and not self.is_read and self._has_more(until - time.monotonic()):
            got = self._receive(buffer[size:])
            if not got:
                break
            size += got
        return size

    def _gather_plain(self, buffer: memoryview) -> int:
        """Receive the next piece of a body that comes through the socket as it is; return its size, 0 at the end."""
        size = 0 if self._waking else self._receive(buffer)  # the first bytes may have come with the header
        if rest := buffer[size : size + (self._response.length or 0)]:
            size += self._wait_for(rest, patience=0.0 if size else _patience(self._until))
        return size

    def _receive(self, buffer: memoryview) -> int:
        """Receive into a buffer what has arrived, waiting for the first byte; return the count, 0 at the end."""
        response = self._response
        if response.fp is None or response.chunked or response.length is None:
            piece = self.piece(len(buffer))
            buffer[: len(piece)] = piece
            return len(piece)
        self._be_patient()
        got = response.fp.readinto1(buffer[: response.length])  # which http.client itself does by way of a copy
        if not got and response.length:
            raise http.client.IncompleteRead(b"", response.length)
        response.length -= got
        return got

    @property
    def _is_plain(self) -> bool:
        """Whether the rest of the body is what comes through the socket, byte by byte, once the header was read."""
        is_tcp = self._socket is not None and not isinstance(self._socket, ssl.SSLSocket)
        return is_tcp and not self._response.chunked and self._response.length is not None

    def _wait_for(self, buffer: memoryview, *, patience: float) -> int:
        """Receive into a buffer until it is full or 0.1 s are over, and longer while nothing comes; return the count.

        The system waits for all of it: to look at each packet here would take more CPU than all else. Nor does it wake
        this thread for each, which takes half of the CPU of receiving, on a link that many connections share. Without
        ``patience``, in seconds, nothing may come; else that is a ``TimeoutError``.
        """
        assert self._socket is not None
        assert self._response.length is not None
        # What is left of the last piece after a look would not wake this thread, for nothing comes behind it.
        waking = _WAKING if self._response.length - len(buffer) >= _WAKING else 1
        if waking != self._waking:
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _MOMENT)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, waking)
            self._waking = waking
        until = time.monotonic() + patience
        while True:
            try:
                got = self._socket.recv_into(buffer, flags=socket.MSG_WAITALL)
                break
            except BlockingIOError:
                if not patience:
                    return 0
                if time.monotonic() >= until:
                    raise TimeoutError(f"nothing came in {patience:g} s") from None
        if not got:
            raise http.client.IncompleteRead(b"", self._response.length)
        self._response.length -= got
        return got

    def _has_more(self, seconds: float) -> bool:
        """Return whether more arrives in time: bytes of a slow link must not be held back until the next ones come."""
        if seconds <= 0 or self._socket is None:
            return False
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        return bool(readable.poll(seconds * 1000))

    def content(self, most: int | None = None) -> bytes:
        """Return the rest of the body, or so many bytes of it."""
        if most is None:
            return b"".join(iter(self.piece, b""))
        found = bytearray()
        while len(found) < most and (piece := self.piece(min(_PIECE, most - len(found)))):
            found += piece
        return bytes(found)

    def abandon(self) -> None:
        """End `each` in another thread, at once, also where it waits for bytes."""
        with self._giving:
            self._is_abandoned = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Keep the connection where all was read, close it otherwise."""
        response, connection = self._response, self._connection
        with self._giving:
            self._socket = None  # which another answer may get
        is_whole = not self._is_abandoned and self.is_read
        response.close()
        idle = _kept().setdefault(self._key, [])
        if is_whole and not response.will_close and connection.sock is not None and len(idle) < _MOST_IDLE:
            idle.append((time.monotonic(), connection))
        else:
            connection.close()


_Key = tuple[str, str, int]
_Idle = list[tuple[float, http.client.HTTPConnection]]
_idle: dict[int, dict[_Key, _Idle]] = {}
"""Connections that are kept, and since when, by process. Those that a forked child inherits stay open there, unused:
they are its parent's, whose end would close them."""


def _kept() -> dict[_Key, _Idle]:
    return _idle.setdefault(os.getpid(), {})


@atexit.register
def _close_idle() -> None:
    for _, connection in itertools.chain(*_kept().values()):
        connection.close()


def check_range(answer: Any, wanted: range | None) -> None:
    """Raise `MisfitError` where an answer says that it is another range of the file than was wanted."""
    given = answer.headers.get("Content-Range", "")
    if wanted and answer.status == 206 and given and not given.startswith(f"bytes {wanted.start}-"):
        asked = f"bytes {wanted.start}-{wanted.stop - 1}"
        raise MisfitError(f"{given} came where {asked} were asked for")


def _with_login(target: str, source: str) -> str:
    """Return where a redirect leads, with the login of its source where that is on the same server."""
    login, at, _ = urllib.parse.urlsplit(source).netloc.rpartition("@")
    place = urllib.parse.urlsplit(target)
    if "@" in place.netloc or store(target) != store(source):
        return target
    return place._replace(netloc=f"{login}{at}{place.netloc}").geturl()


def _patience(until: float | None) -> float:
    """Return the seconds that one operation on a connection may take. Raises ``TimeoutError`` where none are left."""
    if until is None:
        return policy().stall
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return min(left, policy().stall)


def _asked(method: str, url: str, headers: Mapping[str, str], until: float | None) -> Answer:
    """Make one request; again, on a new connection, where a kept one turns out to have been closed."""
    place = urllib.parse.urlsplit(_UNSAFE.sub(lambda found: urllib.parse.quote(found[0], safe=""), url))
    if place.scheme not in ("http", "https") or not place.hostname:
        raise ValueError(f"a request would go to {place.scheme}://, which is not the web")
    # Not by `urlunsplit`, some versions of which put more slashes before a path that begins with two.
    target = (place.path or "/") + (f"?{place.query}" if place.query else "")
    # Without a port, http.client would look for one in an address of IPv6.
    port = place.port or {"http": 80, "https": 443}[place.scheme]
    key = (place.scheme, urllib.parse.unquote(place.hostname), port)
    while True:
        connection = _connection(key, _patience(until))
        is_kept = connection.sock is not None
        try:
            connection.request(method, target, headers=dict(headers))
            return Answer(connection, key, until)
        except BaseException as error:
            connection.close()
            if not (is_kept and isinstance(error, _STALE)):
                raise


def _connection(key: _Key, patience: float) -> http.client.HTTPConnection:
    """Take a kept connection, or make one that connects when it is used."""
    with contextlib.suppress(KeyError, IndexError):
        since, connection = _kept()[key].pop()
        while time.monotonic() - since >= _LONGEST_IDLE:
            connection.close()
            since, connection = _kept()[key].pop()
        connection.timeout = patience
        if connection.sock is not None:
            connection.sock.settimeout(patience)
        return connection
    scheme, host, port = key
    tls = _tls() if scheme == "https" else None
    if proxy := proxy_for(scheme, host, port):
        return through(proxy, host, port, timeout=patience, tls=tls)
    if tls is not None:
        return http.client.HTTPSConnection(host, port, timeout=patience, context=tls)
    return http.client.HTTPConnection(host, port, timeout=patience)


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def reader(location: str, options: StorageOptions | None, *, retries: bool = True) -> tuple[Any, str]:
    """Return the client that reads a location, and the path of the location in that client.

    A `Direct` one for web servers and S3 where the options allow; what `filesystem` returns otherwise.
    """
    scheme = location.partition("://")[0].lower()
    if scheme in ("http", "https"):
        if "@" in (login := login_of(location)) and "/" in login:
            raise FinalError(
                f"the user or password in the URL of {shown(location)} has a slash: write it as %2F, or pass a header "
                f"by storage_options"
            )
        headers = _only_headers(given_for(location, options))
        if headers is not None:
            return Direct(None, headers, reach(location, options)), location
    elif scheme in ("s3", "s3a"):
        addresses = s3_addresses(location, given_for(location, options))
        if addresses is not None:
            return Direct(addresses), location
    return filesystem(location, options, retries=retries)


def _only_headers(given: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the headers that options for the web hold; None where they hold something else."""
    headers = {}
    for name, value in given.items():
        more = value if name == "headers" else value.get("headers", {}) if name == "client_kwargs" else None
        if more is None or (name == "client_kwargs" and set(value) - {"headers"}):
            return None
        headers.update(more)
    return headers
