"""The ways to spell shards: what each means, and one clear error for what is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import wdsdist
from tests.support.memory_store import MemoryStore
from tests.support.tars import write_shard
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError
from wdsdist.shards.open import expand


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """A folder with a blank in its name, and two tars."""
    folder = tmp_path / "my tars"
    folder.mkdir()
    for number, name in enumerate(("a", "b"), 1):
        write_shard(folder / f"{name}.tar", number, prefix=name)
    return folder


SPELLINGS: list[Callable[[Path], object]] = [
    lambda tars: f"{tars}/a.tar::{tars}/b.tar",
    lambda tars: f"{tars}/*.tar",
    lambda tars: f"{tars.parent}/**/?.tar",
    lambda tars: f"{tars}/[ab].tar",
    lambda tars: f"{tars}/{{a,b}}.tar",
    lambda tars: f"{tars}/{{a,b,c}}.t*r".replace(",c", ""),
    lambda tars: [tars / "a.tar", f"{tars}/b*"],
    lambda tars: f"file://{tars}/{{a,b}}.tar".replace(" ", "%20"),
]


@pytest.mark.parametrize("number", range(len(SPELLINGS)))
def test_each_spelling_opens_indexes_and_packs_the_same_shards(tars: Path, tmp_path: Path, number: int) -> None:
    shards = SPELLINGS[number](tars)
    expected = [f"{tars}/a.tar", f"{tars}/b.tar"]
    assert expand(shards) == expected  # type: ignore[arg-type]
    opened = wdsdist.open(shards)  # type: ignore[arg-type]
    assert [opened.location(place) for place in range(2)] == expected
    assert wdsdist.index(shards, workers=1).num_samples == 3  # type: ignore[arg-type]
    assert wdsdist.pack(shards, tmp_path / "dest", workers=1).num_samples == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a*.tar", "[x].tar", "a::b.tar", "{a,b}.tar", "a%20b.tar"])
def test_what_exists_under_a_name_is_meant_by_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).touch()
    assert expand(name) == [str(tmp_path / name)]


def test_a_file_url_is_percent_encoded_and_leads_nowhere_else_in_an_index(tars: Path) -> None:
    assert wdsdist.open(tars.as_uri() + "/a.tar").num_samples == 1
    (tars / "index.json").write_text(
        json.dumps({"wids_version": 1, "shardlist": [{"url": f"file://{tars}/%2e%2e/x.tar", "nsamples": 1}]})
    )
    with pytest.raises(IndexFormatError, match="may name only relative paths in its own folder"):
        wdsdist.open(tars)


def test_a_command_is_never_run_and_the_error_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for action in (wdsdist.open, wdsdist.index, lambda command: wdsdist.pack(command, "out")):
        with pytest.raises(
            ArgumentError, match=r"^pipe:touch \.\.\. is a command, which wdsdist does not run"
        ) as caught:
            action("pipe:touch ran-by-secret.tar")
        assert "secret" not in str(caught.value)
        assert not list(tmp_path.iterdir())


def test_a_chain_of_file_systems_stays_one_location() -> None:
    for url in ("simplecache::s3://bucket/a.tar", "zip://a.tar::s3://bucket/b.zip", "tar://a.tar::/b.tar"):
        assert len(expand(url)) == 1
    assert expand("http://[::1]:8080/train/") == ["http://[::1]:8080/train"]
    assert expand("s3://bucket/a.tar::s3://bucket/b.tar") == ["s3://bucket/a.tar", "s3://bucket/b.tar"]


def test_globs_in_a_store_are_read_there() -> None:
    files = {"x/a-0.tar": b"", "x/a-1.tar": b"", "x/b.tar": b"", "x/c.txt": b""}
    with MemoryStore(files, name="store"):
        assert expand("faulty://store/x/a-*.tar") == [f"faulty://store/x/a-{number}.tar" for number in (0, 1)]
        assert expand("faulty://store/x/[b].tar") == ["faulty://store/x/b.tar"]
        with pytest.raises(NotFoundError, match="nothing matches"):
            expand("faulty://store/x/z*.tar")
