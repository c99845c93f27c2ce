"""Credentials of S3 that expire while they are used: a new client reads those that were put in their place."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.web import Answer, Asked, answering
from wdsdist import storage
from wdsdist.errors import StorageError
from wdsdist.storage import Deadline, RequestPolicy, use_policy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("s3fs") is None, reason="s3fs is not installed")

A_TAR = "s3://bucket/a.tar"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Call it to put another token into the file of credentials."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    lines = "[default]\naws_access_key_id = k\naws_secret_access_key = s\naws_session_token = {}\n"
    return lambda token: file.write_text(lines.format(token))


@pytest.fixture(autouse=True)
def short_pauses() -> Iterator[None]:
    with use_policy(RequestPolicy(first_pause=0.01, patience=2.0, download_patience=2.0)):
        yield


Act = Callable[[storage.StorageOptions, Path], bytes]


def read(options: storage.StorageOptions, _: Path) -> bytes:
    return storage.read(A_TAR, options)


def looked_up(options: storage.StorageOptions, _: Path) -> bytes:
    assert storage.entry(A_TAR, options).size == 7
    return b"content"


def fetched(options: storage.StorageOptions, folder: Path) -> bytes:
    storage.fetch(A_TAR, folder / "a.tar", options)
    return (folder / "a.tar").read_bytes()


@pytest.mark.parametrize("act", [read, looked_up, fetched])
def test_an_expired_token_makes_a_new_client(token: Callable[[str], object], tmp_path: Path, act: Act) -> None:
    valid, renews = "one", False

    def answer(asked: Asked) -> Answer:
        if parse_qs(urlsplit(asked.path).query)["X-Amz-Security-Token"] != [valid]:
            if renews:
                token(valid)
            return 400, {"Content-Type": "application/xml"}, EXPIRED
        return 200, {"ETag": '"x"'}, b"content"

    token("one")
    with answering(answer) as (url, asked):
        options = storage.named({"endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}, [A_TAR])
        assert act(options, tmp_path) == b"content"
        valid, renews = "two", True
        assert act(options, tmp_path) == b"content"
        assert len(asked) <= 6
        valid, renews = "three", False
        with pytest.raises(StorageError, match=r"expired|Bad Request"):
            act(options, tmp_path)


def test_without_renewal_the_error_says_so_when_the_time_is_over(token: Callable[[str], object]) -> None:
    token("old")
    with answering(lambda _: (400, {"Content-Type": "application/xml"}, EXPIRED)) as (url, asked):
        options = storage.named({"endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}, [A_TAR])
        with pytest.raises(StorageError, match=r"the credentials have expired: renew them\) \(after \d+ attempts"):
            storage.read(A_TAR, options, deadline=Deadline(3.0))
        assert len(asked) > 1


@pytest.mark.slow  # s3fs is imported
def test_where_a_new_client_may_read_directly_it_does(
    token: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\ns3 =\n  addressing_style = path\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def answer(asked: Asked) -> Answer:
        if "X-Amz-Security-Token" in asked.path:
            return 200, {"ETag": '"x"'}, b"content"
        config.unlink(missing_ok=True)  # by which s3fs has to read
        return 400, {"Content-Type": "application/xml"}, EXPIRED

    token("one")
    with answering(answer) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert fetched(storage.named(None, [A_TAR]), tmp_path) == b"content"
