"""A proxy that breaks the web on purpose: between a client and a real HTTP or S3 server, it plants faults by rule.

It runs in a process of its own, so that any number of ranks can use it, and ends with its standard input:

    python tests/support/faults.py http://127.0.0.1:9000     # prints its own address

Tests start it with `planted`; through `Proxy` they change its rules and read its counts, from any process:

    with planted(server) as proxy:
        proxy.rules(Rule("status", 503, share=0.1), Rule("cut", 1000, path="*.tar", times=1))
        ...
        assert proxy.count("/a.tar").requests == 1
"""

from __future__ import annotations

import contextlib
import fnmatch
import http.client
import http.server
import json
import random
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

FAULTS = {
    "status": "answers with this status (500, 503, 429, 403, 404, ...) and does not ask the server",
    "refuse": "closes the connection without an answer, as a server that is gone",
    "cut": "closes the connection after so many bytes of body; the length that was announced stays",
    "stall": "sends so many bytes of body, then nothing, until the client goes away",
    "wrong": "changes the byte of the body at this place; a body that ends before is changed at its last byte",
    "short": "announces and sends so many bytes fewer than there are",
    "long": "announces and sends so many bytes more than there are",
}
"""Each fault, and what its value means. Places count from the start of an answer's body, whatever range it is of."""

_CONTROL = "/-/faults"
_CHUNK = 64 << 10
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Rule:
    """Which requests get a fault."""

    fault: str
    value: float = 0
    """What it means, `FAULTS` says."""
    path: str = "*"
    """Pattern of the paths, as in `fnmatch`; without the query."""
    method: str = "GET"
    """``*`` for all."""
    share: float = 1.0
    """Of the requests that match; which ones depends on the seed, the path, the range and how often it was asked for,
    and not on the order in which threads ask."""
    times: int | None = None
    """At most so many requests of each path; None: always."""
    retry_after: int | None = None
    """Seconds that a status tells the client to wait."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"there is no fault {self.fault!r}: {', '.join(FAULTS)}")


@dataclass
class Count:
    """What was asked of one path."""

    requests: int = 0
    """GETs."""
    bytes: int = 0
    """Of bodies, sent."""
    faults: int = 0
    """Requests that were hit."""


@dataclass(frozen=True)
class Proxy:
    """A running proxy, as tests see it. Travels to other processes."""

    url: str

    def rules(self, *rules: Rule) -> None:
        """Replace all rules; without any the proxy is sound again."""
        self._call(json.dumps([asdict(rule) for rule in rules]).encode())

    def counts(self) -> dict[str, Count]:
        """Return what was asked so far, by path."""
        return {path: Count(**count) for path, count in json.loads(self._call()).items()}

    def count(self, path: str) -> Count:
        return self.counts().get(path, Count())

    def forget(self) -> None:
        """Count from nothing again."""
        self._call(method="DELETE")

    def _call(self, data: bytes | None = None, method: str | None = None) -> bytes:
        request = urllib.request.Request(self.url + _CONTROL, data, method=method)
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
        return content


@contextlib.contextmanager
def planted(server: str) -> Iterator[Proxy]:
    """Start a proxy in front of a server until the block ends."""
    call = [sys.executable, __file__, server]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        yield Proxy(running.stdout.readline().strip())


@dataclass
class _State:
    rules: list[Rule] = field(default_factory=list)
    counts: dict[str, Count] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    hits: dict[tuple[int, str], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, path: str, **more: int) -> None:
        with self.lock:
            count = self.counts.setdefault(path, Count())
            for name, value in more.items():
                setattr(count, name, getattr(count, name) + value)

    def replace(self, rules: Iterable[Rule]) -> None:
        with self.lock:
            self.rules = list(rules)
            self.asked.clear()
            self.hits.clear()

    def choose(self, method: str, path: str, wanted: str) -> Rule | None:
        """Return the first rule that a request is hit by."""
        with self.lock:
            key = f"{method} {path} {wanted}"
            self.asked[key] = self.asked.get(key, 0) + 1
            for number, rule in enumerate(self.rules):
                if not fnmatch.fnmatch(path, rule.path) or rule.method not in ("*", method):
                    continue
                hits = self.hits.get((number, path), 0)
                if rule.times is not None and hits >= rule.times:
                    continue
                if random.Random(f"{rule.seed} {number} {key} {self.asked[key]}").random() < rule.share:
                    self.hits[number, path] = hits + 1
                    return rule
            return None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits for the acknowledgement of its header
    state: _State
    origin: urllib.parse.SplitResult

    def log_message(self, *_: object) -> None: ...

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that has gone away
            super().handle()

    def _forward(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if path == _CONTROL:
            self._control(data)
            return
        fault = self.state.choose(self.command, path, self.headers.get("Range", ""))
        self.state.count(path, requests=self.command == "GET", faults=fault is not None)
        if fault and fault.fault == "refuse":
            self.close_connection = True
        elif fault and fault.fault == "status":
            self._refuse(fault)
        else:
            self._relay(path, data, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815 - the names that http.server looks for

    def _control(self, data: bytes) -> None:
        if self.command == "POST":
            self.state.replace(Rule(**rule) for rule in json.loads(data))
        elif self.command == "DELETE":
            with self.state.lock:
                self.state.counts.clear()
        with self.state.lock:
            content = json.dumps({path: asdict(count) for path, count in self.state.counts.items()}).encode()
        self._answer(200, content)

    def _answer(self, status: int, content: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, fault: Rule) -> None:
        """Answer with a status, as S3 words it."""
        status = int(fault.value)
        code = {403: "AccessDenied", 404: "NoSuchKey", 429: "SlowDown", 503: "SlowDown"}.get(status, "InternalError")
        content = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>on purpose</Message></Error>'.encode()
        headers = [("Content-Type", "application/xml")]
        if fault.retry_after is not None:
            headers.append(("Retry-After", str(fault.retry_after)))
        self._answer(status, content, headers)

    def _relay(self, path: str, data: bytes, fault: Rule | None) -> None:
        connection = http.client.HTTPConnection(self.origin.netloc)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, data, headers)
            answer = connection.getresponse()
            announced = answer.getheader("Content-Length")
            body = b"" if announced is not None else answer.read()  # one without a length is a small one of S3
            length = len(body) if announced is None else int(announced)
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            kind, value = (fault.fault, int(fault.value)) if fault else ("", 0)
            told = max(0, length + {"short": -value, "long": value}.get(kind, 0))
            self.send_header("Content-Length", str(told))
            self.end_headers()
            if self.command == "HEAD":
                return
            whole = iter([body]) if body else iter(lambda: answer.read(_CHUNK), b"")
            end = min(told, value) if kind in ("cut", "stall") else told
            self._send(path, _altered(whole, kind, value, length), end)
            if kind == "stall":
                self.rfile.read(1)  # ends when the client goes away
            self.close_connection = kind in ("cut", "stall")
        finally:
            connection.close()

    def _send(self, path: str, chunks: Iterable[bytes], end: int) -> None:
        sent = 0
        for chunk in chunks:
            part = chunk[: end - sent]
            if part:
                self.state.count(path, bytes=len(part))  # before a client that has all of them can ask
                self.wfile.write(part)
                sent += len(part)
            if sent >= end:
                break


def _altered(chunks: Iterable[bytes], kind: str, value: int, length: int) -> Iterator[bytes]:
    at = 0
    place = min(value, length - 1) if kind == "wrong" else -1
    for chunk in chunks:
        if at <= place < at + len(chunk):
            changed = bytearray(chunk)
            changed[place - at] ^= 0xFF
            yield bytes(changed)
        else:
            yield chunk
        at += len(chunk)
    if kind == "long":
        yield bytes(value)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # ranks and workers come all at once

    def handle_error(self, *_: object) -> None: ...  # a client that has gone away


def main() -> None:
    """Serve until standard input ends."""
    _Handler.origin = urllib.parse.urlsplit(sys.argv[1])
    _Handler.state = _State()
    server = _Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
