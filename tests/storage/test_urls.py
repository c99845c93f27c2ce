"""Locations as messages show them: without anything secret, and otherwise as they are."""

from __future__ import annotations

import pytest

from wdsdist import storage
from wdsdist.errors import StorageError
from wdsdist.storage.urls import scrubbed, shown


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://AKIA:se/cr/et@bucket/a.tar", "s3://bucket/a.tar"),
        ("s3://AKIA:12/secret@bucket/a.tar", "s3://bucket/a.tar"),
        ("s3://AKIA:se/cret", "s3://"),
        ("https://me:se/cret@host/a.tar", "https://host/a.tar"),
        ("https://me:se?cret@host/a.tar", "https://host/a.tar"),
        ("https://me:secret@host:8/a@b.tar?signature=secret", "https://host:8/a@b.tar"),
    ],
)
def test_no_part_of_a_secret_is_shown_also_where_it_has_a_slash(location: str, expected: str) -> None:
    assert shown(location) == expected
    assert scrubbed(f"GET {location} failed", location) == f"GET {expected} failed"


@pytest.mark.parametrize(
    "location",
    ["s3://bucket/a@b:c.tar", "s3://arn:aws:s3:eu-west-1:1:accesspoint/name/a@b.tar", "https://host:8080/a:b@c.tar",
     "http://[::1]:8080/a.tar", "http://[::1]/a.tar", "memory://a.tar"],
)  # fmt: skip
def test_what_is_no_secret_is_shown(location: str) -> None:
    assert shown(location) == location


def test_a_url_that_ends_with_a_colon_in_a_message_is_shown() -> None:
    text = "http://host:9000: refused, s3://bucket: refused"
    assert scrubbed(text, "http://host:9000") == text


def test_a_password_with_a_slash_is_an_error_that_shows_no_part_of_it() -> None:
    with pytest.raises(StorageError, match=r"in the URL of https://host/a\.tar has a slash: write it as %2F") as caught:
        storage.read("https://me:se/cret@host/a.tar")
    assert "se/" not in str(caught.value)
