"""Requests through the proxy that the environment names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.web import Asked, answering
from wdsdist import storage
from wdsdist.errors import StorageError
from wdsdist.storage import RequestPolicy, use_policy
from wdsdist.storage.clients import signers
from wdsdist.storage.s3_urls import s3_addresses

_NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with use_policy(RequestPolicy(first_pause=0.01, patience=0.1)):
        yield


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Asked]]:
    """What a proxy is asked for, which answers for all servers."""
    with answering(lambda _: (200, {"ETag": '"x"'}, b"content")) as (url, asked):
        monkeypatch.setenv("HTTP_PROXY", url.replace("://", "://me:p%40ss@"))
        monkeypatch.setenv("http_proxy", url.replace("://", "://me:p%40ss@"))
        yield asked


def test_a_proxy_is_asked_for_the_whole_url_with_its_login(proxy: list[Asked], tmp_path: Path) -> None:
    assert storage.read("http://far.example/train/a b.tar?signature=x") == b"content"
    assert storage.entry("http://[2001:db8::1]:8080/a.tar").size == 7
    storage.fetch("http://far.example:80/a.tar", tmp_path / "a.tar", size=7)
    paths = [
        "http://far.example/train/a%20b.tar?signature=x",
        "http://[2001:db8::1]:8080/a.tar",
        "http://far.example/a.tar",
    ]
    assert [one.path for one in proxy] == paths
    assert [one.headers["host"] for one in proxy] == ["far.example", "[2001:db8::1]:8080", "far.example"]
    assert {one.headers["proxy-authorization"] for one in proxy} == {"Basic bWU6cEBzcw=="}


def test_s3_is_asked_through_it_too(proxy: list[Asked]) -> None:
    pytest.importorskip("obstore")
    signers.clear()
    given = {"key": "k", "secret": "s", "endpoint_url": "http://far.example"}
    assert storage.read("s3://bucket/a.tar", storage.named(given, ["s3://bucket"])) == b"content"
    assert proxy[0].path.startswith("http://far.example/bucket/a.tar?X-Amz-")


@pytest.mark.parametrize("names", ["HOST", "HOST:PORT"])
def test_what_no_proxy_names_is_asked_itself(proxy: list[Asked], monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    with answering(lambda _: (200, {}, b"own")) as (url, asked):
        host, _, port = url.removeprefix("http://").partition(":")
        given = names.replace("HOST", host).replace("PORT", port)
        monkeypatch.setenv("NO_PROXY", given)
        monkeypatch.setenv("no_proxy", given)
        assert storage.read(f"{url}/a.tar") == b"own"
    assert (len(asked), len(proxy)) == (1, 0)


def test_an_encrypted_connection_goes_through_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        lines.append(f"{asked.method} {asked.path}")
        return 407, {}, b""

    with answering(answer) as (url, _):
        monkeypatch.setenv("https_proxy", url)
        with pytest.raises(StorageError, match="Tunnel connection failed: 407"):
            storage.read("https://far.example/a.tar")
    assert set(lines) == {"CONNECT far.example:443"}


def test_a_proxy_of_another_kind_is_an_error_that_does_not_show_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://me:secret@proxy:1080")
    with pytest.raises(StorageError, match="HTTPS_PROXY names a proxy of the scheme socks5, and only http") as caught:
        storage.read("https://far.example/a.tar")
    assert "secret" not in str(caught.value)


def test_a_proxy_without_a_valid_port_is_an_error_that_does_not_show_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://me:sec/ret@proxy:1080")
    with pytest.raises(StorageError, match="HTTPS_PROXY names a proxy without a valid port") as caught:
        storage.read("https://far.example/a.tar")
    assert "sec" not in str(caught.value)


def test_s3_is_left_to_s3fs_where_the_proxy_is_spoken_to_by_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    given = {"key": "k", "secret": "s", "endpoint_url": "http://far.example:9000"}
    for url, no_proxy, is_direct in (
        ("https://proxy:3128", "", False),
        ("https://proxy:3128", "far.example:9000", True),
        ("http://proxy:3128", "", True),
        ("proxy:3128", "", True),
    ):
        signers.clear()
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("no_proxy", no_proxy)
        assert (s3_addresses("s3://bucket/a.tar", given) is not None) == is_direct
