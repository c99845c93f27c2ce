"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

import wdsdist.shards.open
from wdsdist.cli import _wdsdist
from wdsdist.errors import ArgumentError

OPENING = [["info"], ["ls"], ["verify"], ["plan", "--ranks", "2"], ["columns", "--field", "cls"], ["bench"]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What commands open data sets with; none is opened."""
    found: list[Any] = []

    def note(shards: Any, *, storage_options: Any = None, **_: Any) -> None:
        found.append(storage_options)
        raise ArgumentError("seen")

    monkeypatch.setattr(wdsdist.shards.open, "open", note)
    return found


@pytest.mark.parametrize("command", OPENING, ids=lambda command: command[0])
def test_storage_options_reach_the_store(command: list[str], given: list[Any]) -> None:
    options = ["anon=true", "client_kwargs.region_name=eu", "client_kwargs.retries=3", "profile=a=b", 'token="5"']
    words = [*command, "s3://bucket/train", *(word for option in options for word in ("--storage-option", option))]
    CliRunner().invoke(_wdsdist, words)
    client = {"region_name": "eu", "retries": 3}
    assert given == [{"anon": True, "client_kwargs": client, "profile": "a=b", "token": "5"}]


def test_without_options_clients_have_their_own(given: list[Any]) -> None:
    CliRunner().invoke(_wdsdist, ["ls", "s3://bucket/train"])
    assert given == [None]


@pytest.mark.parametrize("option", ["hush", "=hush", "a=1,a.b=hush"])
def test_what_is_no_option_is_refused_without_showing_it(option: str, given: list[Any]) -> None:
    words = [word for one in option.split(",") for word in ("--storage-option", one)]
    refused = CliRunner().invoke(_wdsdist, ["ls", "s3://bucket/train", *words])
    assert refused.exit_code == 2
    assert "--storage-option" in refused.stderr
    assert "hush" not in refused.stderr
    assert given == []
