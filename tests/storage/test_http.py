"""Requests to web servers: connections, redirects, proxies, headers, broken bodies."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest

from tests.storage.conftest import read_ranges
from tests.support.policies import use_policy
from tests.support.web import Answer, Asked, answering
from wdsdist import storage
from wdsdist.errors import StorageError
from wdsdist.storage import Deadline, engine, http

A_TAR = (200, {"ETag": '"x"'}, b"content")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def short_pauses_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with use_policy(first_pause=0.01, patience=2.0, download_patience=2.0):
        yield


def test_requests_share_one_connection_and_one_that_was_closed_is_replaced() -> None:
    connections: set[threading.Thread] = set()  # the server has a thread for each
    closes = threading.Event()

    def answer(asked: Asked) -> Answer | None:
        connections.add(threading.current_thread())
        if closes.is_set():
            closes.clear()
            return None
        if "range" in asked.headers:
            return 206, {"Content-Range": "bytes 0-0/7"}, b"c"
        return (404, {}, b"no") if "none" in asked.path else A_TAR

    with answering(answer) as (url, _):
        for _ in range(3):
            assert storage.read(f"{url}/a.tar") == b"content"
            with pytest.raises(FileNotFoundError):
                storage.read(f"{url}/none")
            assert storage.stat(f"{url}/a.tar").size == 7
        assert len(connections) == 1
        closes.set()
        assert storage.read(f"{url}/a.tar") == b"content"
        assert len(connections) == 2


def test_a_redirect_to_another_server_carries_no_header_cookie_or_login() -> None:
    with answering(lambda _: A_TAR) as (other, elsewhere):

        def answer(asked: Asked) -> Answer:
            if asked.path == "/b.tar":
                return A_TAR
            target = f"{other}/c.tar" if asked.path == "/away.tar" else "/b.tar"
            return 302, {"Location": target, "Set-Cookie": "session=secret"}, b""

        with answering(answer) as (url, here):
            options = storage.named({"headers": {"X-Token": "secret", "Cookie": "a=b"}}, [url])
            for name in ("near.tar", "away.tar"):
                assert storage.read(f"{url.replace('://', '://me:secret@')}/{name}", options) == b"content"
    assert [asked.headers["x-token"] for asked in here] == ["secret"] * 3
    assert {asked.headers["authorization"] for asked in here} == {"Basic bWU6c2VjcmV0"}
    assert {asked.headers["cookie"] for asked in here} == {"a=b"}
    assert not {"x-token", "authorization", "cookie"} & set(elsewhere[0].headers)


def test_a_file_that_is_compressed_on_its_way_is_an_error_and_a_compressed_file_is_read_as_it_is(
    tmp_path: Path,
) -> None:
    packed = gzip.compress(b"content")
    with answering(lambda _: (200, {"Content-Encoding": "gzip"}, packed)) as (url, asked):
        with pytest.raises(StorageError, match=r"the server sends the file compressed \(gzip\).* switch off"):
            storage.read(f"{url}/index.json")
        with pytest.raises(StorageError, match="the server sends the file compressed"):
            engine.fetch(f"{url}/a.tar", tmp_path / "a.tar", size=len(packed))
        assert len(asked) == 2
        engine.fetch(f"{url}/a.tar.gz", tmp_path / "a.tar.gz", size=len(packed))
    assert gzip.decompress((tmp_path / "a.tar.gz").read_bytes()) == b"content"


@pytest.mark.parametrize(
    ("target", "requests", "message"),
    [
        ("/a.tar", 10, "ValueError: more than 10 redirects"),
        ("file:///etc/passwd", 1, "ValueError: a redirect leads to another scheme"),
        ("ftp://host/a.tar", 1, "ValueError: a redirect leads to another scheme"),
    ],
)
def test_redirects_that_lead_nowhere_are_an_error_at_once(target: str, requests: int, message: str) -> None:
    with (
        answering(lambda _: (302, {"Location": target}, b"")) as (url, asked),
        pytest.raises(StorageError, match=rf"a\.tar cannot be read: {message}"),
    ):
        storage.read(f"{url}/a.tar")
    assert len(asked) == requests


def test_names_are_sent_as_a_url_may_hold_them() -> None:
    names = {
        "a b.tar": "/a%20b.tar",
        "ä.tar": "/%C3%A4.tar",
        "a%20b.tar": "/a%20b.tar",
        "50%.tar": "/50%25.tar",
        "a#b.tar": "/a%23b.tar",
        "a.tar?signature=x%2F%2B&y": "/a.tar?signature=x%2F%2B&y",
        "a+b.tar": "/a+b.tar",
    }
    with answering(lambda _: A_TAR) as (url, asked):
        for name in names:
            storage.read(f"{url}/{name}")
    assert [each.path for each in asked] == list(names.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token": "secret"}, r"takes storage_options={\"headers\": {NAME: VALUE}} alone, not 'token'"),
        ({"client_kwargs": {"auth": "secret"}}, "alone, not 'client_kwargs'"),
        ({"headers": {"Authorization": "Bearer secret\n"}}, "header Authorization of storage_options has a line break"),
    ],
)
def test_options_that_the_web_does_not_take_are_an_error_that_shows_no_secret(
    options: dict[str, Any], message: str
) -> None:
    with answering(lambda _: A_TAR) as (url, asked):
        with pytest.raises(StorageError, match=message) as caught:
            storage.read(f"{url}/a.tar", storage.named(options, [url]))
        assert "secret" not in str(caught.value)
        assert not asked


WRONG_BODIES: dict[str, tuple[Answer, str]] = {
    "another range": ((206, {"Content-Range": "bytes 0-3/8"}, b"cont"), "bytes 0-3/8 came where bytes from 4 on were"),
    "too long": ((206, {"Content-Range": "bytes 4-7/8"}, bytes(32 << 20)), "more than 4 bytes came"),
    "too short": ((206, {"Content-Range": "bytes 4-7/8"}, b"con"), "3 bytes where there should be 4"),
    "of a larger file": ((206, {"Content-Range": "bytes 4-7/9"}, b"cont"), "9 bytes where there should be 8"),
    "cut": (
        (206, {"Content-Range": "bytes 4-7/8", "Content-Length": "4", "Connection": "close"}, b"c"),
        "too early|bytes 4-7/8 came where bytes from 5 on were",
    ),
}


@pytest.mark.parametrize("case", WRONG_BODIES)
def test_a_body_that_is_not_what_was_asked_for_is_an_error_and_takes_no_memory(case: str) -> None:
    body, message = WRONG_BODIES[case]
    got: list[int] = []
    with answering(lambda _: body) as (url, _), use_policy(first_pause=0.001, download_patience=0.2):
        tracemalloc.start()
        with pytest.raises(StorageError, match=message):
            read_ranges(f"{url}/a.tar", [(4, 8)], lambda start, piece: got.append(start), size=8)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20
    assert set(got) <= {4}


def test_a_part_of_a_range_is_a_step_and_the_rest_is_asked_for() -> None:
    def answer(request: Asked) -> Answer:
        first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        last = min(last, first + 2)
        return 206, {"Content-Range": f"bytes {first}-{last}/8"}, b"contents"[first : last + 1]

    got = bytearray(8)
    with answering(answer) as (url, asked):
        read_ranges(
            f"{url}/a.tar", [(1, 8)], lambda at, piece: got.__setitem__(slice(at, at + len(piece)), piece), size=8
        )
        assert bytes(got) == b"\0ontents"
        assert len(asked) == 3


@pytest.mark.parametrize("date", ["Fri, 31 Dec 99999 23:59:59 GMT", "9" * 5000, "soon"])
def test_a_wait_that_cannot_be_read_is_like_none(date: str) -> None:
    answers = [(200, {}, b"content"), (503, {"Retry-After": date}, b"")]
    with answering(lambda _: answers.pop()) as (url, _):
        assert storage.read(f"{url}/a.tar") == b"content"


SIZES: list[tuple[Answer, storage.Entry]] = [
    ((206, {"Content-Range": "bytes 0-0/7", "ETag": '"x"'}, b"c"), storage.Entry("a.tar", 7, '"x"')),
    ((206, {"Content-Range": "bytes 0-0/*"}, b"c"), storage.Entry("a.tar", -1, "")),  # not the size of the byte
    ((200, {"Last-Modified": "today"}, b"content"), storage.Entry("a.tar", 7, "today")),
    ((416, {"Content-Range": "bytes */0"}, b""), storage.Entry("a.tar", 0, "")),
]


@pytest.mark.parametrize(("given", "entry"), SIZES)
def test_the_size_of_a_file_is_asked_for_by_a_byte_of_it(given: Answer, entry: storage.Entry) -> None:
    """For a URL that is signed for GET allows no other request."""
    with answering(lambda _: given) as (url, asked):
        assert storage.stat(f"{url}/a.tar?signature=x") == entry
    assert [(each.method, each.headers["range"]) for each in asked] == [("GET", "bytes=0-0")]


def test_a_server_without_ranges_gives_the_beginning_of_a_file_or_all_of_it(tmp_path: Path) -> None:
    whole: list[bytes] = []
    with answering(lambda _: A_TAR) as (url, asked):
        assert storage.read(f"{url}/a.tar", stop=3) == b"con"
        with pytest.raises(StorageError, match="cannot be read in parts: the server has no ranges") as caught:
            storage.read(f"{url}/a.tar", start=1, stop=3)
        assert caught.value.kind == "ranges"
        assert len(asked) == 2
        read_ranges(f"{url}/a.tar", [(0, 7)], lambda _, piece: whole.append(bytes(piece)), size=7)
        read_ranges(f"{url}/a.tar", [(0, None)], lambda _, piece: whole.append(bytes(piece)))
        for size in (7, None):
            with use_policy(part_bytes=3):
                engine.fetch(f"{url}/a.tar", tmp_path / "copy", size=size)
            assert (tmp_path / "copy").read_bytes() == b"content"
    assert whole == [b"content"] * 2


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a function that serves a listening socket, in a thread; yield the URL of a file there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://{host}:{port}/a.tar"


def accepted(listener: socket.socket, header: bytes) -> socket.socket:
    connection, _ = listener.accept()
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 206 Partial Content\r\n" + header + b"\r\n\r\n")
    return connection


def test_a_long_body_comes_in_few_pieces_and_leaves_a_connection_on_which_a_short_one_comes_at_once() -> None:
    body = secrets.token_bytes(5 << 20)
    pieces: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        size = len(body)
        with accepted(listener, b"Content-Range: bytes 0-%d/%d\r\nContent-Length: %d" % (size - 1, size, size)) as wire:
            for start in range(0, size, 1 << 14):
                wire.sendall(body[start : start + (1 << 14)])
            wire.recv(65_536)
            wire.sendall(
                b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-4/9\r\nContent-Length: 5\r\n\r\nshort"
            )
            wire.recv(1)

    with serving(serve) as url:
        read_ranges(url, [(0, len(body))], lambda _, piece: pieces.append(bytes(piece)), deadline=Deadline(60))
        assert b"".join(pieces) == body
        assert len(pieces) < 60
        assert storage.read(url, stop=5, deadline=Deadline(60)) == b"short"


def test_a_long_body_that_stops_coming_is_a_fault_once_patience_is_over() -> None:
    got: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        header = b"Content-Range: bytes 0-999999/1000000\r\nContent-Length: 1000000"
        with contextlib.suppress(OSError), accepted(listener, header) as wire:
            wire.sendall(b"a" * 1000)
            wire.recv(1)

    with (
        serving(serve) as url,
        use_policy(stall=1.0, first_pause=0.001, download_patience=0.0),
        pytest.raises(StorageError, match="TimeoutError: nothing came in 1 s"),
    ):
        read_ranges(url, [(0, 10**6)], lambda _, piece: got.append(bytes(piece)), size=10**6)
    assert got == [b"a" * 1000]  # bytes of a slow link are given before the next ones come


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Asked]]:
    """What a proxy is asked for, which answers for all servers."""
    with answering(lambda _: A_TAR) as (url, asked):
        monkeypatch.setenv("http_proxy", url.replace("://", "://me:p%40ss@"))
        yield asked


def test_a_proxy_is_asked_for_the_whole_url_with_its_login(proxy: list[Asked], tmp_path: Path) -> None:
    assert storage.read("http://far.example/train/a b.tar?signature=x") == b"content"
    assert storage.stat("http://[2001:db8::1]:8080/a.tar").size == 7
    engine.fetch("http://far.example:80/a.tar", tmp_path / "a.tar", size=7)
    assert [each.path.replace(":80/", "/") for each in proxy] == [
        "http://far.example/train/a%20b.tar?signature=x",
        "http://[2001:db8::1]:8080/a.tar",
        "http://far.example/a.tar",
    ]
    assert {each.headers["proxy-authorization"] for each in proxy} == {"Basic bWU6cEBzcw=="}


def test_a_proxy_is_asked_for_s3_too(proxy: list[Asked]) -> None:
    pytest.importorskip("obstore")
    given = {"key": "k", "secret": "s", "endpoint_url": "http://far.example"}
    assert storage.read("s3://bucket/a.tar", storage.named(given, ["s3://bucket"])) == b"content"
    assert proxy[0].path.startswith("http://far.example/bucket/a.tar?X-Amz-")


@pytest.mark.parametrize("names", ["HOST", "HOST:PORT"])
def test_a_server_that_no_proxy_names_is_asked_itself(
    proxy: list[Asked], monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    with answering(lambda _: (200, {}, b"own")) as (url, asked):
        host, _, port = url.removeprefix("http://").partition(":")
        monkeypatch.setenv("no_proxy", names.replace("HOST", host).replace("PORT", port))
        assert storage.read(f"{url}/a.tar") == b"own"
    assert (len(asked), len(proxy)) == (1, 0)


def test_an_encrypted_connection_goes_through_a_proxy_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda _: (407, {}, b"")) as (url, asked):
        monkeypatch.setenv("https_proxy", url)
        with pytest.raises(StorageError, match=r"Tunnel connection failed: 407.*check HTTPS_PROXY"):
            storage.read("https://far.example/a.tar", deadline=Deadline(1.0))
    assert {f"{each.method} {each.path}" for each in asked} == {"CONNECT far.example:443"}


@pytest.mark.parametrize("proxy_url", ["socks5://me:secret@proxy:1080", "http://me:sec/ret@proxy:1080"])
def test_a_proxy_that_cannot_be_used_is_an_error_that_shows_no_password(
    proxy_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy_url)
    with pytest.raises(StorageError, match="HTTPS_PROXY and HTTP_PROXY must look like http://proxy:3128") as caught:
        storage.read("https://far.example/a.tar")
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_certificates_that_the_environment_names_are_trusted_too(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for other in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv(name, certifi.where())
    http._tls.cache_clear()
    assert http._tls().cert_store_stats()["x509_ca"]
    monkeypatch.setenv(name, str(tmp_path / "none.pem"))
    http._tls.cache_clear()
    http._connections.cache_clear()
    with pytest.raises(StorageError, match=rf"{name} names .*none\.pem, which holds no certificates"):
        storage.read("https://127.0.0.1:1/a.tar")
    http._tls.cache_clear()
