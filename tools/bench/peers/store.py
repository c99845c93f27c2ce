"""A web server that is as far away as an object store: so long to the first byte, so fast on each connection.

A script, which prints its address and ends with its standard input. Several processes share the port, and file contents
go from the page cache to the socket without a copy in user space, so that the server is not what is measured.

    python tools/bench/peers/store.py FOLDER --latency 0.02 --rate 90e6 --processes 2
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 512 << 10


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    folder: Path
    latency: float
    rate: float

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()

    def handle_error(self, *_: object) -> None: ...  # a client that has gone away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        time.sleep(self.server.latency)
        path = self.server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        with path.open("rb") as stream:
            size = path.stat().st_size
            start, stop = 0, size
            wanted = self.headers.get("Range")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last or size - 1) + 1, size)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            began, at = time.monotonic(), start
            while with_body and at < stop:
                at += self.connection.sendfile(stream, at, min(_CHUNK, stop - at))
                time.sleep(max(0.0, began + (at - start) / self.server.rate - time.monotonic()))


@contextlib.contextmanager
def started(folder: Path, *, latency: float = 0.02, rate: float = 90e6, processes: int = 2) -> Iterator[str]:
    """Serve a folder until the block ends; yields the address."""
    call = [sys.executable, __file__, str(folder), f"--latency={latency}", f"--rate={rate}", f"--processes={processes}"]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds to the first byte")
    parser.add_argument("--rate", type=float, default=90e6, help="bytes per second of one connection")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    _Server.folder, _Server.latency, _Server.rate = arguments.folder, arguments.latency, arguments.rate
    server = _Server(("127.0.0.1", 0), _Handler)
    others = []
    for _ in range(arguments.processes - 1):
        child = os.fork()
        if child == 0:  # a socket of its own on the same port: the system deals connections out
            _Server(server.server_address, _Handler).serve_forever()
        others.append(child)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    for child in others:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
