"""A web server that is as far away as an object store: so long to the first byte, so fast on each connection.

A script, which prints its address and ends with its standard input. Several processes share the port, and file contents
go from the page cache to the socket without a copy in user space, so that the server is not what is measured. The
clients of S3 take it for a store, as far as they only read. Every request is written to a log when it has ended.

With ``--total`` all connections of all processes share one link of so many bytes per second, turn by turn.

    python tools/bench/peers/store.py FOLDER --latency 0.02 --rate 90e6 --processes 2 --total 100e6
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import multiprocessing
import os
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_CHUNK = 512 << 10
_TURN = 64 << 10
"""Bytes that a connection sends before another's turn on a link that they share."""
_AHEAD = 0.002  # seconds that the link may be ahead of the clock, which sleeps overshoot


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as the server saw it."""

    began: float
    """Seconds since 1970, as is ``ended``."""
    ended: float
    path: str
    bytes: int
    """That were sent."""


@dataclass(frozen=True, slots=True)
class Store:
    """A server that runs."""

    url: str
    log: Path

    def requests(self) -> list[Request]:
        """Return what was asked for since the last call, in the order in which it began."""
        lines = [line.split("\t") for line in self.log.read_text().splitlines()]
        os.truncate(self.log, 0)
        found = [Request(float(began), float(ended), path, int(size)) for began, ended, path, size in lines]
        return sorted(found, key=lambda request: request.began)


class Link:
    """A link of so many bytes per second, for the threads of several forked processes."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = multiprocessing.Value("d", 0.0)

    def take(self, size: int) -> None:
        """Wait until so many bytes have been through."""
        with self._free_at:
            now = time.monotonic()
            self._free_at.value = max(self._free_at.value, now) + size / self._rate
            wait = self._free_at.value - now
        if wait > _AHEAD:
            time.sleep(wait)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256
    folder: Path
    log: int
    latency: float
    rate: float
    link: Link | None

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()

    def handle_error(self, *_: object) -> None: ...  # a client that has gone away


class _Handler(socketserver.StreamRequestHandler):
    """Handler of one HTTP connection, with GET, HEAD and ranges alone: its CPU is taken from the clients measured."""

    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        while head := self.rfile.readline():
            method, path, _ = head.decode("latin-1").split(" ")
            wanted = ""
            while line := self.rfile.readline().rstrip(b"\r\n"):
                name, _, value = line.partition(b":")
                if name.lower() == b"range":
                    wanted = value.decode("latin-1").strip()
            self._answer(method, path, wanted)

    def _answer(self, method: str, path: str, wanted: str) -> None:
        arrived, self._sent = time.time(), 0
        time.sleep(self.server.latency)
        try:
            with (self.server.folder / path.partition("?")[0].lstrip("/")).open("rb") as stream:
                self._file(stream, wanted, with_body=method == "GET")
        except (FileNotFoundError, IsADirectoryError):
            self.request.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        finally:
            os.write(self.server.log, f"{arrived}\t{time.time()}\t{path}\t{self._sent}\n".encode())

    def _file(self, stream: BinaryIO, wanted: str, *, with_body: bool) -> None:
        """Send a file, or the range of it that is wanted."""
        status = os.fstat(stream.fileno())
        start, stop, answer, also = 0, status.st_size, "200 OK", ""
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or stop - 1) + 1, stop)
            answer, also = "206 Partial Content", f"Content-Range: bytes {start}-{stop - 1}/{status.st_size}\r\n"
        self.request.sendall(
            f"HTTP/1.1 {answer}\r\nContent-Length: {stop - start}\r\n{also}Accept-Ranges: bytes\r\n"
            f'ETag: "{status.st_size:x}"\r\n'
            f"Last-Modified: {email.utils.formatdate(status.st_mtime, usegmt=True)}\r\n\r\n".encode()
        )
        began, at, link = time.monotonic(), start, self.server.link
        while with_body and at < stop:
            piece = min(_TURN if link else _CHUNK, stop - at)
            if link:
                link.take(piece)
            at += os.sendfile(self.request.fileno(), stream.fileno(), at, piece)
            self._sent = at - start
            ahead = began + (at - start) / self.server.rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)


@contextlib.contextmanager
def started(
    folder: Path, *, latency: float = 0.02, rate: float = 90e6, total: float = 0.0, processes: int = 2
) -> Iterator[Store]:
    """Serve a folder until the block ends; over a link of ``total`` bytes per second, unless that is 0."""
    with tempfile.NamedTemporaryFile() as log:
        call = [sys.executable, __file__, str(folder), f"--latency={latency}", f"--rate={rate}",
                f"--total={total}", f"--processes={processes}", f"--log={log.name}"]  # fmt: skip
        with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            yield Store(running.stdout.readline().strip(), Path(log.name))


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds to the first byte")
    parser.add_argument("--rate", type=float, default=90e6, help="bytes per second of one connection")
    parser.add_argument("--total", type=float, default=0.0, help="bytes per second of all connections together")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="gets a line for each request")
    arguments = parser.parse_args()
    _Server.folder, _Server.latency, _Server.rate = arguments.folder, arguments.latency, arguments.rate
    _Server.link = Link(arguments.total) if arguments.total else None
    _Server.log = os.open(arguments.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    server = _Server(("127.0.0.1", 0), _Handler)
    others = []
    for _ in range(arguments.processes - 1):
        child = os.fork()
        if child == 0:  # a socket of its own on the same port: the system deals connections out
            _Server(server.server_address, _Handler).serve_forever()
        others.append(child)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
    for child in others:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
