"""What a wrong call raises: the error and its reason, in a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.tars import plain_tar, write_shard
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, ShardDamagedError
from wdsdist.shards import index as shardindex

Call = Callable[[Path], Any]
NO_DATA = r"no index\.json: run `wdsdist index .*` once for tars, or .* `wdsdist pack .* DEST`"

MESSAGES: list[tuple[Call, type[Exception], str]] = [
    # Names of shards
    (lambda root: wdsdist.open(root / "nowhere"), NotFoundError, "nowhere does not exist"),
    (lambda root: wdsdist.open(root / "nowhere/index.json"), NotFoundError, r"index\.json does not exist"),
    (lambda root: wdsdist.open(root / "empty"), NotFoundError, r"neither tars nor an index\.json: name a data set in"),
    (lambda root: wdsdist.open(root / "tars"), NotFoundError, f"tars holds 2 tar files but {NO_DATA}"),
    (lambda root: wdsdist.open(root / "tars/nowhere.tar"), NotFoundError, r"shard .*nowhere\.tar does not exist"),
    (lambda root: wdsdist.open(root / "tars/{0..2}.tar"), NotFoundError, r"shard .*2\.tar does not exist"),
    (lambda root: wdsdist.open(root / "tars/{0..2.tar"), NotFoundError, "does not exist"),
    (lambda root: wdsdist.open(root / "tars/*.json"), NotFoundError, r"nothing matches .*json: check the pattern"),
    (lambda _: wdsdist.open("memory://nowhere"), NotFoundError, "memory://nowhere does not exist"),
    (lambda _: wdsdist.open("memory://x/a.tar"), NotFoundError, r"no index\.json that lists a\.tar: .*wdsdist index"),
    (lambda _: wdsdist.open([]), NotFoundError, "the list of shards is empty"),
    (lambda _: wdsdist.open([7]), ArgumentError, "shards holds 7: name a path, a URL or a list of them"),  # type: ignore[list-item]
    (lambda _: wdsdist.open(None), ArgumentError, "shards is None: name a path"),  # type: ignore[arg-type]
    (lambda root: wdsdist.open([root / "tars/0.tar", root]), ArgumentError, "2 names, but .*is not a tar: .*concat"),
    (lambda _: wdsdist.open(["memory://a", "memory://b"]), ArgumentError, "2 names, but memory://a is not a tar"),
    (lambda root: wdsdist.open(write_shard(root / "x\udcff.tar", 1)), ArgumentError, "is not UTF-8: rename it"),
    # Tars
    (
        lambda root: index_of(root, "a.jpg", "a.JPG"),
        ShardDamagedError,
        "sample 'a' has two members with extension 'jpg'",
    ),
    (lambda root: index_of(root, "a.5.jpg", "a.5.jpg"), ShardDamagedError, r"extension '5\.jpg'.*key='last-dot'"),
    (lambda root: index_of(root, "k.__KEY__"), ShardDamagedError, r"member k\.__KEY__ has the name of an entry"),
    (lambda root: index_of(root, "a::b.jpg", name="a::b.tar"), IndexFormatError, "rename it"),
    (lambda root: index_of(root, "a.jpg", name="a\nb.tar"), IndexFormatError, "rename it"),
    (lambda root: shardindex.load(text(root, b"wdsindex" + bytes([1]) + bytes(99))), IndexFormatError, "of version 1"),
    # Options of index
    (lambda root: wdsdist.index(root / "nowhere.tar"), NotFoundError, r"nowhere\.tar does not exist"),
    (lambda root: wdsdist.index(root / "empty"), NotFoundError, r"empty holds no \.tar files"),
    (lambda _: wdsdist.index("memory://x/a.tar"), NotFoundError, r"memory://x/a\.tar does not exist"),
    (lambda root: wdsdist.index(root / "**/*.tar"), IndexFormatError, "the shards lie in 2 folders"),
    (lambda root: wdsdist.index(root / "tars", on_error="none"), ArgumentError, "on_error is 'none'"),  # type: ignore[arg-type]
    (
        lambda root: wdsdist.index(root / "tars", key="("),
        ArgumentError,
        r"key is .*'last-dot', or a regular expression",
    ),
    (lambda root: wdsdist.index(root / "tars", key=3), ArgumentError, "key is 3"),  # type: ignore[arg-type]
    (lambda root: wdsdist.index(root / "tars", name="../x"), ArgumentError, "1 to 64 letters, digits"),
    (lambda root: wdsdist.index([root / "tars/0.tar"] * 2, output=root / "own"), IndexFormatError, "is named 2 times"),
    (lambda root: wdsdist.index(root / "tars", output="memory://own"), ArgumentError, "must be a local folder"),
    (lambda root: wdsdist.index(root / "tars", output=root / "x.tar"), ArgumentError, "without the name of a tar"),
    (
        lambda root: wdsdist.index("memory://x/a.tar?signature=y", output=root / "own"),
        ArgumentError,
        r"a\.tar holds a password or a query",
    ),
]


def text(root: Path, content: bytes) -> Path:
    (root / "file").write_bytes(content)
    return root / "file"


def index_of(root: Path, *members: str, name: str = "x.tar") -> wdsdist.Manifest:
    (root / "empty" / name).write_bytes(plain_tar((member, b"1") for member in members))
    return wdsdist.index(root / "empty")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder, and folders with two tars and with one."""
    for name, count in (("empty", 0), ("tars", 2), ("more", 1)):
        (tmp_path / name).mkdir()
        for number in range(count):
            write_shard(tmp_path / name / f"{number}.tar", 2)
    return tmp_path


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_a_wrong_call_raises_an_error_with_its_reason(root: Path, number: int) -> None:
    call, error, message = MESSAGES[number]
    with pytest.raises(error, match=message) as caught:
        call(root)
    assert "signature" not in str(caught.value)
    assert not list(root.rglob("index.json"))
