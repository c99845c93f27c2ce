"""Options that several commands share, and the help of all."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import click
import fsspec
import pytest
from click.testing import CliRunner
from fsspec import AbstractFileSystem

from wdsdist.cli import _wdsdist
from wdsdist.cli.options import Command

OPENING = [["info"], ["ls"], ["verify"], ["plan", "--ranks", "2"], ["columns", "--field", "cls"], ["bench"]]
PAGES = [
    (group, name)
    for group, commands in ((None, _wdsdist), ("cache", _wdsdist.commands["cache"]))
    for name, command in commands.commands.items()  # type: ignore[attr-defined]
    if isinstance(command, Command)
]


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
    options += ["secret=0e12"]  # no number
    words = [*command, "probe://bucket/train", *(word for option in options for word in ("--storage-option", option))]
    CliRunner().invoke(_wdsdist, words)
    expected = {"anon": True, "client_kwargs": {"region_name": "eu", "retries": 3}, "profile": "a=b", "token": "5"}
    assert given
    assert all(one == {**expected, "secret": "0e12"} for one in given)


def test_without_options_clients_have_their_own(given: list[Any]) -> None:
    CliRunner().invoke(_wdsdist, ["ls", "probe://bucket/train"])
    assert given
    assert not any(given)


@pytest.mark.parametrize("option", ["hush", "=hush", "a=1,a.b=hush"])
def test_a_value_without_a_name_is_refused_and_not_shown(option: str, given: list[Any]) -> None:
    words = [word for part in option.split(",") for word in ("--storage-option", part)]
    refused = CliRunner().invoke(_wdsdist, ["ls", "probe://bucket/train", *words])
    assert refused.exit_code == 2
    assert "--storage-option: " in refused.stderr
    assert "hush" not in refused.stderr
    assert given == []


@pytest.mark.parametrize("words", [[], ["cache"]])
def test_without_a_command_the_commands_are_listed_and_no_sentence_is_cut(words: list[str]) -> None:
    listed = CliRunner().invoke(_wdsdist, words).output.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines() if line][:2] == (
        ["clean", "info"] if words else ["bench", "cache"]
    )
    assert "..." not in listed.partition("\n\n")[0]


@pytest.mark.parametrize(("group", "name"), PAGES)
def test_help_has_two_examples_that_parse_groups_of_options_and_a_text_for_each(group: str | None, name: str) -> None:
    words = [*filter(None, (group, name))]
    page = CliRunner().invoke(_wdsdist, [*words, "--help"], terminal_width=100).stdout
    commands = _wdsdist.commands["cache"].commands if group else _wdsdist.commands  # type: ignore[attr-defined]
    command = commands[name]
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.opts[0] for option in options if not option.help] == []
    examples = re.findall(r"^    (?:ssh .*? )?(wdsdist .*)$", page.partition("Options:")[0], re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        used = [word for word in re.findall(r" (--?[a-z][\w-]*)", example) if word not in ("-L",)]
        assert set(used) <= {spelling for option in options for spelling in option.opts}, example
        assert example.split()[1 : 1 + len(words)] == words
    assert all(option.opts[-1] in page for option in options if not option.hidden)
    grouped = {word for names in command.groups.values() for word in names.split()}
    assert grouped <= {option.name for option in options}
    titles = re.findall(r"^(\w.*):$", page, re.MULTILINE)
    assert "Advanced" not in titles[:-1], "it is the last group"
    if any(param.name == "shards" for param in command.params):
        assert "SHARDS is a folder or URL" in " ".join(page.split())
