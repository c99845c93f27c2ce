"""A real HTTP server on loopback that serves a folder, with ranges or without, and notes what it was asked for."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


class Web:
    """A folder on the web."""

    def __init__(self, folder: Path, *, ranges: bool) -> None:
        self.folder = folder
        self.ranges = ranges
        self.sent = 0
        """Bytes of file contents sent so far."""
        self.bytes_of: Counter[str] = Counter()
        """The same for each file, by its name."""
        self.asked: list[str] = []
        """The path of each request, as it came."""
        self.url = ""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # ranks and workers come all at once

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connections: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End the connections that clients keep open too, each of which has a thread."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, *_: object) -> None: ...  # a client that has gone away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits for the acknowledgement of its header

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def _running(handler: type[_Handler], *, is_awaited: bool) -> Iterator[str]:
    """Run a server until the block ends, and the threads of its connections if they are awaited; yield its URL."""
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = not is_awaited
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def served(folder: Path, *, ranges: bool = True) -> Iterator[Web]:
    """Serve a folder until the block ends."""
    web = Web(folder, ranges=ranges)
    lock = threading.Lock()

    class Handler(_Handler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            with lock:
                web.asked.append(self.path)
            path = folder / self.path.partition("?")[0].lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            with path.open("rb") as stream:
                size = path.stat().st_size
                start, stop = 0, size
                wanted = self.headers.get("Range") if web.ranges else None
                if wanted:
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    start, stop = int(first), min(int(last or size - 1) + 1, size)
                    if start >= size:
                        self.send_error(416)
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(stop - start))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    while with_body and start < stop:
                        size = min(_CHUNK, stop - start)
                        with lock:  # before a client can have them: it may look at once
                            web.sent += size
                            web.bytes_of[path.name] += size
                        start += self.connection.sendfile(stream, start, size)

    with _running(Handler, is_awaited=True) as web.url:
        yield web


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as a server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    """By names in lower case."""


Answer = tuple[int, dict[str, str], bytes]


@contextlib.contextmanager
def answering(answer: Callable[[Asked], Answer | None]) -> Iterator[tuple[str, list[Asked]]]:
    """Answer requests by a function, and give the address and what was asked; None breaks the connection."""
    asked: list[Asked] = []

    class Handler(_Handler):
        def do_GET(self) -> None:
            request = Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            asked.append(request)
            given = answer(request)
            if given is None:
                self.close_connection = True
                return
            status, headers, body = given
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_CONNECT = do_GET  # noqa: N815 - the names that http.server looks for

    with _running(Handler, is_awaited=False) as url:
        yield url, asked
