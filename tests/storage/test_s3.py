"""S3 by signed URLs: which options are read so and which by s3fs, the URLs, and credentials that expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.policies import use_policy
from tests.support.web import Answer, Asked, answering
from wdsdist import storage
from wdsdist.errors import StorageError
from wdsdist.storage import engine, s3
from wdsdist.storage.s3 import S3Addresses

pytest.importorskip("obstore")
A_TAR = "s3://bucket/train/a.tar"
KEYS = {"key": "k", "secret": "s"}
LOCAL = {**KEYS, "endpoint_url": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE",
                 "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HTTPS_PROXY", "https_proxy",
                 "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3.forget()
    yield tmp_path
    s3.forget()


def url(options: dict[str, Any], location: str = A_TAR) -> str:
    addresses = s3._made(location, options)
    assert addresses is not None
    return addresses.url(location)


def test_a_url_is_signed_for_the_endpoint_and_the_region() -> None:
    more = {"client_kwargs": {"region_name": "eu-west-1"}, "token": "t"}
    place = urlsplit(url({**LOCAL, **more}))
    assert (place.netloc, place.path) == ("127.0.0.1:9", "/bucket/train/a.tar")
    query = parse_qs(place.query)
    assert query["X-Amz-Credential"][0].split("/")[::2] == ["k", "eu-west-1", "aws4_request"]
    assert query["X-Amz-Security-Token"] == ["t"]
    assert urlsplit(url({**KEYS, **more})).netloc.endswith("eu-west-1.amazonaws.com")


def test_options_of_the_client_count_too_and_anonymous_access_signs_nothing() -> None:
    inner = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "endpoint_url": "http://127.0.0.1:9"}
    first, second = (urlsplit(url(options)) for options in (LOCAL, {"client_kwargs": inner}))
    assert first.path == second.path
    assert parse_qs(first.query)["X-Amz-Credential"] == parse_qs(second.query)["X-Amz-Credential"]
    assert url({"anon": True, "endpoint_url": "http://127.0.0.1:9"}) == "http://127.0.0.1:9/bucket/train/a.tar"


def test_credentials_come_from_the_environment_or_a_profile(
    no_settings_of_this_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[research]\naws_access_key_id = profiled\naws_secret_access_key = s\n"
    (no_settings_of_this_machine / "credentials").write_text(text)
    assert "X-Amz-Credential=profiled%2F" in url({"profile": "research"})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert "X-Amz-Credential=environment%2F" in url({})
    assert "X-Amz-Credential=profiled%2F" in url({"profile": "research"})


LEFT: list[tuple[str, dict[str, Any], dict[str, str], str]] = [
    *((A_TAR, more, {}, "") for more in ({"config_kwargs": {}}, {"requester_pays": True},
                                         {"client_kwargs": {"verify": False}})),
    (A_TAR, {}, {"AWS_USE_FIPS_ENDPOINT": "true"}, ""),
    *((A_TAR, {}, {"AWS_DEFAULT_REGION": region}, "") for region in ("cn-north-1", "us-iso-east-1")),
    *((A_TAR, {}, {}, line) for line in ("endpoint_url = http://127.0.0.1:1", "region = cn-north-1")),
    ("s3://bucket--use1-az4--x-s3/a.tar", {}, {}, ""),
    ("s3://arn:aws:s3:us-east-1:123456789012:accesspoint/a.tar", {}, {}, ""),
    *((f"s3://bucket/{key}", {"endpoint_url": "http://127.0.0.1:9"}, {}, "")
      for key in ("a//b.tar", "./a.tar", "a/../b.tar")),
]  # fmt: skip
"""A location, options, variables and a line of the configuration file."""


@pytest.mark.parametrize(("location", "options", "variables", "line"), LEFT)
def test_what_obstore_would_read_otherwise_is_left_to_s3fs(
    no_settings_of_this_machine: Path, monkeypatch: pytest.MonkeyPatch, location: str, options: dict[str, Any],
    variables: dict[str, str], line: str,
) -> None:  # fmt: skip
    assert s3.s3_store(A_TAR, storage.named(KEYS, [A_TAR]))
    s3.forget()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (no_settings_of_this_machine / "config").write_text(f"[default]\n{line}\n")
    assert s3.s3_store(location, storage.named(KEYS | options, [location])) is None
    if line:
        assert s3.s3_store(A_TAR, storage.named(LOCAL, [A_TAR]))


def test_a_bucket_in_another_region_is_asked_there() -> None:
    addresses = S3Addresses("bucket", None, "us-east-1", ("k", "s", None))
    assert not addresses.moved("us-east-1")
    assert addresses.moved("eu-west-1")
    assert "eu-west-1" in urlsplit(addresses.url(A_TAR)).netloc


def test_keys_arrive_as_they_are_and_errors_name_the_code_of_s3() -> None:
    def answer(asked: Asked) -> Answer:
        if "missing" in asked.path:
            return 403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>"
        return 200, {"ETag": '"x"'}, b"content"

    with answering(answer) as (server, asked), use_policy(first_pause=0.01):
        options = storage.named({**LOCAL, "endpoint_url": server}, ["s3://bucket"])
        for key in ("a b+c.tar", "ä%41.tar"):
            assert storage.read(f"s3://bucket/{key}", options) == b"content"
        with pytest.raises(StorageError, match=r"403 Forbidden \(SignatureDoesNotMatch\) \(access is"):
            storage.read("s3://bucket/missing", options)
    paths = [urlsplit(one.path).path for one in asked]
    assert paths == ["/bucket/a%20b%2Bc.tar", "/bucket/%C3%A4%2541.tar", "/bucket/missing"]


def test_s3fs_is_not_asked_for_the_size_of_what_is_read_whole(tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    with answering(lambda _: (200, {"ETag": '"x"', "Content-Length": "7"}, b"content")) as (url, asked):
        given = storage.named({**KEYS, "endpoint_url": url, "config_kwargs": {}}, [A_TAR])
        engine.fetch(A_TAR, tmp_path / "a.tar", given, size=7)
        assert storage.read(A_TAR, given) == b"content"
        assert [each.method for each in asked] == ["GET", "GET"]


MISSING: list[tuple[dict[str, Any], str]] = [
    ({}, r'no credentials of AWS were found: pass storage_options={"anon": True} \(anon=true\).*\(profile=NAME\)'),
    ({"key": "k"}, "storage_options has one of key and secret: pass both"),
    ({"profile": "none"}, r"ProfileNotFound: .*\(none\)"),
]


@pytest.mark.parametrize(("options", "message"), MISSING)
def test_credentials_that_are_missing_are_an_error_at_once_that_says_what_to_pass(
    options: dict[str, Any], message: str
) -> None:
    given = storage.named({**options, "endpoint_url": "http://127.0.0.1:9"}, [A_TAR])
    with pytest.raises(StorageError, match=message):
        storage.read(A_TAR, given)


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


@pytest.fixture
def token(no_settings_of_this_machine: Path) -> Callable[[str], object]:
    """Call it to put another token into the file of credentials."""
    lines = "[default]\naws_access_key_id = k\naws_secret_access_key = s\naws_session_token = {}\n"
    return lambda token: (no_settings_of_this_machine / "credentials").write_text(lines.format(token))


def fetched(options: storage.StorageOptions, folder: Path) -> bytes:
    engine.fetch(A_TAR, folder / "a.tar", options)
    return (folder / "a.tar").read_bytes()


@pytest.mark.parametrize("act", [lambda options, _: storage.read(A_TAR, options), fetched], ids=["read", "fetched"])
def test_an_expired_token_makes_a_new_client(
    token: Callable[[str], object], tmp_path: Path, act: Callable[[storage.StorageOptions, Path], bytes]
) -> None:
    valid, renews = "one", False

    def answer(asked: Asked) -> Answer:
        if parse_qs(urlsplit(asked.path).query)["X-Amz-Security-Token"] != [valid]:
            if renews:
                token(valid)
            return 400, {"Content-Type": "application/xml"}, EXPIRED
        return 200, {"ETag": '"x"'}, b"content"

    token("one")
    policy = {"first_pause": 0.01, "patience": 2.0, "download_patience": 2.0}
    with answering(answer) as (url, asked), use_policy(**policy):
        options = storage.named({"endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}, [A_TAR])
        assert act(options, tmp_path) == b"content"
        valid, renews = "two", True
        assert act(options, tmp_path) == b"content"
        assert len(asked) <= 6
        valid, renews = "three", False
        with pytest.raises(StorageError, match=r"expired|Bad Request"):
            act(options, tmp_path)
