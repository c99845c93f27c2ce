"""Requests over connections of the standard library: kept ones, redirects, broken bodies, and what fsspec gets."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.web import Answer, Asked, answering
from wdsdist import storage
from wdsdist.errors import StorageError
from wdsdist.storage import RequestPolicy, direct, use_policy
from wdsdist.storage.direct import Direct, reader

A_TAR = (200, {"ETag": '"x"'}, b"content")


@pytest.fixture(autouse=True)
def short_pauses() -> Iterator[None]:
    with use_policy(RequestPolicy(first_pause=0.01, patience=2.0)):
        yield


def test_requests_share_one_connection_and_a_kept_one_that_was_closed_is_replaced() -> None:
    connections: set[threading.Thread] = set()  # the server has a thread for each
    closes = threading.Event()

    def answer(asked: Asked) -> Answer | None:
        connections.add(threading.current_thread())
        if closes.is_set():
            closes.clear()
            return None
        return A_TAR

    with answering(answer) as (url, asked):
        assert [storage.read(f"{url}/a.tar") for _ in range(3)] == [b"content"] * 3
        assert len(connections) == 1
        closes.set()
        assert Direct().whole(f"{url}/a.tar") == (b"content", '"x"')  # nothing is retried there
        assert (len(asked), len(connections)) == (5, 2)


def test_a_redirect_to_another_server_carries_no_header_and_no_login() -> None:
    with answering(lambda _: A_TAR) as (other, elsewhere):

        def answer(asked: Asked) -> Answer:
            if asked.path == "/b.tar":
                return A_TAR
            place = f"{other}/c.tar" if asked.path == "/away.tar" else "/b.tar"
            return 302, {"Location": place}, b""

        with answering(answer) as (url, here):
            named = url.replace("://", "://me:secret@")
            options = storage.named({"headers": {"X-Token": "secret"}}, [url])
            for name in ("near.tar", "away.tar"):
                assert storage.read(f"{named}/{name}", options) == b"content"
    assert [asked.headers["x-token"] for asked in here] == ["secret"] * 3
    assert here[0].headers["authorization"].startswith("Basic ")
    assert not {"x-token", "authorization"} & set(elsewhere[0].headers)


def test_a_body_that_the_server_compresses_unasked_is_an_error_and_a_compressed_file_is_read_as_it_is(
    tmp_path: Path,
) -> None:
    packed = gzip.compress(b"content")
    with answering(lambda _: (200, {"Content-Encoding": "gzip"}, packed)) as (url, asked):
        with pytest.raises(StorageError, match=r"the server sends the file compressed \(gzip\).* switch off"):
            storage.read(f"{url}/index.json")
        with pytest.raises(StorageError, match="the server sends the file compressed"):
            storage.fetch(f"{url}/a.tar", tmp_path / "a.tar", size=len(packed))
        assert len(asked) == 2
        storage.fetch(f"{url}/a.tar.gz", tmp_path / "a.tar.gz", size=len(packed))
    assert gzip.decompress((tmp_path / "a.tar.gz").read_bytes()) == b"content"


def test_redirects_without_end_are_an_error_at_once() -> None:
    with (
        answering(lambda _: (302, {"Location": "/a.tar"}, b"")) as (url, asked),
        pytest.raises(StorageError, match=r"a\.tar cannot be read: ValueError: more than 10 redirects"),
    ):
        storage.read(f"{url}/a.tar")
    assert len(asked) == 10


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://host/a.tar"])
def test_a_redirect_to_what_is_not_the_web_is_refused(place: str) -> None:
    with (
        answering(lambda _: (302, {"Location": place}, b"")) as (url, asked),
        pytest.raises(StorageError, match=r"a\.tar cannot be read: ValueError: a request would go to"),
    ):
        storage.read(f"{url}/a.tar")
    assert len(asked) == 1


def test_a_body_that_ends_early_is_an_error() -> None:
    with (
        answering(lambda _: (200, {"Content-Length": "9", "Connection": "close"}, b"content")) as (url, _),
        pytest.raises(http.client.IncompleteRead),
    ):
        Direct().cat_file(f"{url}/a.tar")


def test_names_are_sent_as_a_url_may_hold_them() -> None:
    with answering(lambda _: A_TAR) as (url, asked):
        for name in ("a b.tar", "ä.tar", "a%20b.tar", "50%.tar", "a#b.tar", "a.tar?signature=x%2F%2B&y", "a+b.tar"):
            storage.read(f"{url}/{name}")
    paths = [
        "/a%20b.tar",
        "/%C3%A4.tar",
        "/a%20b.tar",
        "/50%25.tar",
        "/a%23b.tar",
        "/a.tar?signature=x%2F%2B&y",
        "/a+b.tar",
    ]
    assert [one.path for one in asked] == paths


@pytest.mark.parametrize(
    ("options", "is_direct"),
    [({}, True), ({"headers": {"X-Token": "x"}}, True), ({"client_kwargs": {"headers": {"X-Token": "x"}}}, True),
     ({"client_kwargs": {"trust_env": True}}, False), ({"block_size": 1}, False)],
)  # fmt: skip
def test_options_that_only_fsspec_knows_are_left_to_it(options: dict[str, Any], is_direct: bool) -> None:
    client, _ = reader("https://host/a.tar", storage.named(options, ["https://host"]))
    assert isinstance(client, Direct) == is_direct


def test_a_download_that_is_given_up_leaves_its_server_alone(tmp_path: Path) -> None:
    reached, gone = threading.Event(), threading.Event()

    def answer(asked: Asked) -> Answer | None:
        reached.set()
        gone.wait(10)
        return None

    with answering(answer) as (url, _):
        with storage.begin_fetch(f"{url}/a.tar", tmp_path / "a.tar", size=7):
            assert reached.wait(10)
        gone.set()
    assert not (tmp_path / "a.tar").stat().st_size


def test_a_header_with_a_line_break_is_an_error_that_does_not_show_it() -> None:
    with answering(lambda _: A_TAR) as (url, asked):
        options = storage.named({"headers": {"Authorization": "Bearer secret\n"}}, [url])
        with pytest.raises(StorageError, match="header Authorization of storage_options has a line break") as caught:
            storage.read(f"{url}/a.tar", options)
    assert "secret" not in str(caught.value)
    assert not asked


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [("http://[::1]/a.tar", "::1", 80), ("https://[::1]/a.tar", "::1", 443), ("http://[::1]:8/a.tar", "::1", 8),
     ("http://bücher.example/a.tar", "bücher.example", 80)],
)  # fmt: skip
def test_a_host_may_be_an_address_or_have_letters_of_its_own(
    url: str, host: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: http.client.HTTPConnection) -> None:
        assert (connection.host, connection.port) == (host, port)
        raise ConnectionRefusedError

    for kind in (http.client.HTTPConnection, http.client.HTTPSConnection):
        monkeypatch.setattr(kind, "connect", refuse)
    with pytest.raises(ConnectionRefusedError):
        Direct().whole(url)


def test_a_redirect_within_a_server_keeps_the_login() -> None:
    def answer(asked: Asked) -> Answer:
        return A_TAR if asked.path == "/b.tar" else (302, {"Location": f"http://{asked.headers['host']}/b.tar"}, b"")

    with answering(answer) as (url, asked):
        storage.read(f"{url.replace('://', '://me:secret@')}/a.tar")
    assert asked[0].headers["authorization"] == asked[1].headers["authorization"]


def test_another_range_than_was_asked_for_is_no_part_of_the_file(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        return 206, {"Content-Range": "bytes 0-3/8"}, b"cont"

    with (
        answering(answer) as (url, _),
        use_policy(RequestPolicy(first_pause=0.01, part_bytes=4)),
        pytest.raises(StorageError, match="bytes 0-3/8 came where bytes 4-7 were asked for"),
    ):
        storage.fetch(f"{url}/a.tar", tmp_path / "a.tar", size=8)


def test_a_range_that_goes_on_behind_its_end_takes_no_memory_and_is_an_error() -> None:
    body = bytes(32 << 20)
    with answering(lambda _: (206, {"Content-Range": "bytes 4-7/8"}, body)) as (url, _):
        tracemalloc.start()
        with pytest.raises(StorageError, match="5 of 4 bytes came from 4 on: was it replaced"):
            storage.read_range(f"{url}/a.tar", 4, 8)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < len(body) // 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between may have forgotten it without a word, and each of many would be waited for in vain."""
    connections: set[threading.Thread] = set()

    def answer(asked: Asked) -> Answer:
        connections.add(threading.current_thread())
        return A_TAR

    now = time.monotonic
    with answering(answer) as (url, _):
        for later in (0.0, 0.0, 100.0):
            monkeypatch.setattr(time, "monotonic", lambda later=later: now() + later)
            assert storage.read(f"{url}/a.tar") == b"content"
    assert len(connections) == 2


def test_a_body_that_drips_ends_in_time_also_on_a_connection_that_is_not_kept() -> None:
    with (
        answering(lambda _: (200, {"Content-Length": "9", "Connection": "close"}, b"content")) as (url, _),
        Direct().answer("GET", f"{url}/a.tar", seconds=10.0) as found,
    ):
        assert found.piece() == b"content"
        found._until = 0.0
        with pytest.raises(TimeoutError):
            found.piece()


def test_packets_that_come_together_are_given_in_few_pieces() -> None:
    class Packets(direct.Answer):
        is_read = False

        def __init__(self, packets: list[bytes]) -> None:
            self._stream = io.BytesIO(b"".join(packets))
            self._giving, self._is_abandoned = threading.Lock(), False
            self._response, self._socket = SimpleNamespace(length=None, chunked=True), None  # type: ignore[assignment]

        def _receive(self, buffer: memoryview) -> int:
            return self._stream.readinto(buffer[: len(packets[0])])

        def _has_more(self, seconds: float) -> bool:
            return seconds > 0

    packets, pieces = [bytes([number % 256]) * 1000 for number in range(2000)], list[bytes]()
    Packets(packets).each(lambda piece: pieces.append(bytes(piece)), lambda: None)
    assert b"".join(pieces) == b"".join(packets)
    assert len(pieces) < len(packets) / 2
    assert max(map(len, pieces)) <= direct._PIECE


@contextlib.contextmanager
def _begun(header: bytes) -> Iterator[tuple[direct.Answer, socket.socket]]:
    """Yield an answer, whose header is there, and the socket of its server; nothing may take longer than a second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = http.client.HTTPConnection(*listener.getsockname(), timeout=5.0)
        connection.request("GET", "/a.tar")
        theirs, _ = listener.accept()
    theirs.sendall(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n\r\n")
    with (
        use_policy(RequestPolicy(stall=1.0)),
        contextlib.closing(theirs),
        direct.Answer(connection, ("http", "server", 80), None) as answer,
    ):
        yield answer, theirs


def test_bytes_of_a_slow_link_are_given_before_the_next_ones_arrive() -> None:
    """Else a connection whose packets come seconds apart would count as stalled, and be dropped."""
    pieces = list[bytes]()
    with _begun(b"Content-Length: 6") as (answer, server):

        def take(piece: memoryview) -> None:
            pieces.append(bytes(piece))
            if len(pieces) == 1:
                server.sendall(b"two")

        server.sendall(b"one")
        answer.each(take, lambda: None)
    assert pieces == [b"one", b"two"]


def test_a_long_body_comes_in_pieces_and_leaves_a_connection_on_which_a_short_one_comes_at_once() -> None:
    body, pieces = bytes(range(256)) * (20 << 10), list[bytes]()
    with _begun(b"Content-Length: %d" % len(body)) as (answer, server):
        sending = threading.Thread(target=server.sendall, args=(body,))
        sending.start()
        answer.each(lambda piece: pieces.append(bytes(piece)), lambda: None)
        sending.join()
        assert b"".join(pieces) == body
        assert len(pieces) < 20
        server.sendall(b"short")
        answer._connection.sock.settimeout(1.0)
        assert answer._connection.sock.recv(100) == b"short"  # which would wait for as many bytes as before


def test_a_long_body_that_stops_coming_is_a_fault_once_patience_is_over() -> None:
    pieces = list[bytes]()
    with _begun(b"Content-Length: 1000000") as (answer, server):
        server.sendall(b"a" * 1000)
        with pytest.raises(TimeoutError, match="nothing came in 1 s"):
            answer.each(lambda piece: pieces.append(bytes(piece)), lambda: None)
    assert b"".join(pieces) == b"a" * 1000


def test_the_size_of_a_file_is_asked_for_by_a_byte_of_it_where_head_is_refused() -> None:
    """As a URL that is signed for GET refuses it."""
    answer_range = "bytes 0-0/7"

    def answer(asked: Asked) -> Answer:
        if asked.method == "HEAD":
            return 403, {}, b""
        return 206, {"Content-Range": answer_range, "ETag": '"x"'}, b"c"

    with answering(answer) as (url, asked):
        assert storage.entry(f"{url}/a.tar?signature=x") == storage.Entry("a.tar", 7, '"x"')
        answer_range = "bytes 0-0/*"
        assert Direct().info(f"{url}/a.tar")["size"] is None  # not that of the byte
    assert [one.headers.get("range") for one in asked[:2]] == [None, "bytes=0-0"]


def test_of_a_server_without_ranges_the_beginning_of_a_file_is_read() -> None:
    with answering(lambda _: A_TAR) as (url, asked):
        assert storage.read_range(f"{url}/a.tar", 0, 3) == b"con"
        with pytest.raises(StorageError, match="cannot be read in parts: the server has no ranges"):
            storage.read_range(f"{url}/a.tar", 1, 3)
        assert len(asked) == 2
