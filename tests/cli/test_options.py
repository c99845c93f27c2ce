"""Options that several commands share."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
import pytest
from click.testing import CliRunner
from fsspec import AbstractFileSystem

from wdsdist.cli import _wdsdist

OPENING = [["info"], ["ls"], ["verify"], ["plan", "--ranks", "2"], ["columns", "--field", "cls"], ["bench"]]


class Probe(AbstractFileSystem):  # type: ignore[misc]
    """An fsspec file system that records the storage options of its clients; it holds no files."""

    protocol = "probe"
    given: ClassVar[list[Any]] = []

    def __init__(self, **options: Any) -> None:
        self.given.append(options)
        raise PermissionError("seen")


@pytest.fixture
def given() -> list[Any]:
    """What commands make clients of ``probe://`` with."""
    fsspec.register_implementation("probe", Probe, clobber=True)
    Probe.given.clear()
    return Probe.given


@pytest.mark.parametrize("command", OPENING, ids=lambda command: command[0])
def test_storage_options_reach_the_store(command: list[str], given: list[Any]) -> None:
    options = ["anon=true", "client_kwargs.region_name=eu", "client_kwargs.retries=3", "profile=a=b", 'token="5"']
    words = [*command, "probe://bucket/train", *(word for option in options for word in ("--storage-option", option))]
    CliRunner().invoke(_wdsdist, words)
    client = {"region_name": "eu", "retries": 3}
    assert given
    assert all(one == {"anon": True, "client_kwargs": client, "profile": "a=b", "token": "5"} for one in given)


def test_without_options_clients_have_their_own(given: list[Any]) -> None:
    CliRunner().invoke(_wdsdist, ["ls", "probe://bucket/train"])
    assert given
    assert not any(given)


@pytest.mark.parametrize("option", ["hush", "=hush", "a=1,a.b=hush"])
def test_what_is_no_option_is_refused_without_showing_it(option: str, given: list[Any]) -> None:
    words = [word for one in option.split(",") for word in ("--storage-option", one)]
    refused = CliRunner().invoke(_wdsdist, ["ls", "probe://bucket/train", *words])
    assert refused.exit_code == 2
    assert "--storage-option" in refused.stderr
    assert "hush" not in refused.stderr
    assert given == []


@pytest.mark.parametrize("command", ["cache info", "cache clean --all", "bench x"])
def test_an_empty_cache_folder_is_not_taken_for_the_current_one(command: str) -> None:
    done = CliRunner().invoke(_wdsdist, [*command.split(), "--cache-dir", ""])
    assert done.exit_code == 2
    assert "--cache-dir is '': it must be a path" in done.output


@pytest.mark.parametrize("words", [[], ["cache"]])
def test_without_a_command_the_commands_are_listed(words: list[str]) -> None:
    done = CliRunner().invoke(_wdsdist, words)
    assert [line.split()[0] for line in done.output.partition("Commands:\n")[2].splitlines() if line][:2] == (
        ["clean", "info"] if words else ["bench", "cache"]
    )


def test_the_lists_of_commands_cut_no_sentence() -> None:
    for words in (["--help"], ["cache", "--help"]):
        assert "..." not in CliRunner().invoke(_wdsdist, words).stdout.partition("Commands:")[2]


@pytest.mark.parametrize("command", ["info", "cat", "index", "cache warm", "plan"])
def test_a_command_says_what_shards_it_takes(command: str) -> None:
    shown = " ".join(CliRunner().invoke(_wdsdist, [*command.split(), "--help"]).stdout.split())
    assert "SHARDS is a folder or URL" in shown
    assert "'train-{000..127}.tar'" in shown


@pytest.mark.parametrize(
    "command",
    [
        "plan --shards 3 --samples 9 --step nan",
        "plan --shards 3 --samples 9 --shard-bytes 9999PB",
        f"plan --shards 3 --samples {10**30}",
        f"plan --samples 3 --shards {10**30}",
        "bench nowhere --seconds inf",
        "bench nowhere --step nan",
        "bench nowhere --step 1e308",
        "plan --shards 3 --samples 9 --step 1e-308",
        f"ls nowhere --limit {10**30}",
        "view nowhere --weight nan",
        f"show nowhere --random {10**20}",
    ],
)
def test_a_number_that_is_none_or_too_large_is_refused(command: str) -> None:
    done = CliRunner().invoke(_wdsdist, command.split())
    assert done.exit_code == 2
    assert command.split()[-2] in done.stderr


def test_too_little_memory_is_an_error_that_says_so() -> None:
    done = CliRunner().invoke(_wdsdist, ["plan", "--shards", str(2**48), "--samples", str(2**48)])
    assert done.exit_code == 2
    assert done.stderr.startswith("wdsdist: error: there is too little memory: Unable to allocate 2.00 PiB")
