"""A real HTTP server on loopback that serves a folder, with ranges or without, and notes what it was asked for."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


class Web:
    """A folder on the web."""

    def __init__(self, folder: Path, *, ranges: bool) -> None:
        self.folder = folder
        self.ranges = ranges
        self.sent = 0
        """Bytes of file contents sent so far."""
        self.bytes_of: Counter[str] = Counter()
        """The same for each file, by its name."""
        self.url = ""


@contextlib.contextmanager
def served(folder: Path, *, ranges: bool = True) -> Iterator[Web]:
    """Serve a folder until the block ends."""
    web = Web(folder, ranges=ranges)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = folder / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            size = len(content)
            wanted = self.headers.get("Range") if web.ranges else None
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last or size - 1) + 1, size)
                content = content[start:stop]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content)
                    web.sent += len(content)
                    web.bytes_of[path.name] += len(content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
