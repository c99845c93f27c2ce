"""The proxy of the fault tests does what its rules say: seen by a plain HTTP client."""

from __future__ import annotations

import http.client
import socket
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.support import faults
from tests.support.faults import Proxy, Rule
from tests.support.web import served

CONTENT = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("web")
    (folder / "a.tar").write_bytes(CONTENT)
    (folder / "b.tar").write_bytes(CONTENT)
    with served(folder) as web, faults.planted(web.url) as proxy:
        yield proxy


@pytest.fixture
def proxy(server: Proxy) -> Proxy:
    server.rules()
    server.forget()
    return server


def get(proxy: Proxy, path: str = "/a.tar", bytes_: str = "", timeout: float = 10) -> tuple[int, bytes, int]:
    """Return the status, the body, and the length that was announced; a body that is cut ends where it is cut."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(proxy.url).netloc, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Range": f"bytes={bytes_}"} if bytes_ else {})
        answer = connection.getresponse()
        length = int(answer.headers["Content-Length"])
        try:
            return answer.status, answer.read(), length
        except http.client.IncompleteRead as error:
            return answer.status, error.partial, length
    finally:
        connection.close()


def test_a_proxy_without_rules_passes_everything_and_counts_it(proxy: Proxy) -> None:
    assert get(proxy) == (200, CONTENT, len(CONTENT))
    assert get(proxy, bytes_="100-299") == (206, CONTENT[100:300], 200)
    assert get(proxy, "/none.tar")[0] == 404
    assert proxy.count("/a.tar") == faults.Count(requests=2, bytes=len(CONTENT) + 200)


@pytest.mark.parametrize(
    ("rule", "status", "body", "length"),
    [
        (Rule("cut", 1000), 200, CONTENT[:1000], len(CONTENT)),
        (Rule("short", 10), 200, CONTENT[:-10], len(CONTENT) - 10),
        (Rule("long", 3), 200, CONTENT + bytes(3), len(CONTENT) + 3),
        (Rule("wrong", 70_000), 200, CONTENT[:70_000] + b"\x8f" + CONTENT[70_001:], len(CONTENT)),
        (Rule("wrong", 10**9), 200, CONTENT[:-1] + b"\x00", len(CONTENT)),
    ],
)
def test_bodies_are_broken(proxy: Proxy, rule: Rule, status: int, body: bytes, length: int) -> None:
    proxy.rules(rule)
    assert get(proxy) == (status, body, length)
    assert proxy.count("/a.tar").faults == 1


@pytest.mark.parametrize("status", [500, 503, 429, 403, 404])
def test_answers_have_the_status_that_is_asked_for(proxy: Proxy, status: int) -> None:
    proxy.rules(Rule("status", status))
    assert get(proxy)[0] == status


def test_a_server_can_be_gone(proxy: Proxy) -> None:
    proxy.rules(Rule("refuse"))
    with pytest.raises(http.client.RemoteDisconnected):
        get(proxy)


def test_a_stalled_body_neither_goes_on_nor_ends(proxy: Proxy) -> None:
    proxy.rules(Rule("stall", 1000))
    with socket.create_connection(urllib.parse.urlsplit(proxy.url).netloc.split(":"), timeout=10) as connection:
        connection.sendall(b"GET /a.tar HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        while len(got.partition(b"\r\n\r\n")[2]) < 1000:
            got += connection.recv(1 << 16)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_time_to_first_byte_and_bandwidth_are_as_given(proxy: Proxy) -> None:
    proxy.rules(Rule("latency", 0.1), Rule("bandwidth", len(CONTENT) / 0.2))
    began = time.monotonic()
    assert get(proxy) == (200, CONTENT, len(CONTENT))
    assert time.monotonic() - began >= 0.3
    assert proxy.count("/a.tar").faults == 0


def test_rules_choose_by_path_number_and_row(proxy: Proxy) -> None:
    proxy.rules(Rule("status", 404, path="/b*"), Rule("status", 500, times=2), Rule("status", 503, times=1))
    assert [get(proxy, "/a.tar")[0] for _ in range(4)] == [500, 500, 503, 200]
    assert get(proxy, "/b.tar")[0] == 404


def test_a_share_of_the_requests_is_hit_the_same_ones_each_time(proxy: Proxy) -> None:
    ranges = [f"{start}-{start}" for start in range(60)]

    def hit(seed: int, order: list[str], burst: int = 1) -> set[str]:
        proxy.rules(Rule("status", 500, share=0.2, seed=seed, burst=burst))
        return {wanted for wanted in order if get(proxy, bytes_=wanted)[0] == 500}

    first = hit(1, ranges)
    assert 4 <= len(first) <= 24
    assert hit(1, ranges[::-1]) == first
    assert hit(2, ranges) != first
    assert len(hit(1, ranges, burst=4)) > len(first) + 5
