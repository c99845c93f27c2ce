"""What an ``index.json`` says is data: which locations it may name, and which only the user may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.memory_store import MemoryStore
from tests.support.tars import write_shard
from tests.support.web import served
from wdsdist.errors import IndexFormatError
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_location

REMOTE = "https://host/train"
LOCAL = "/data/train"


def write_index(folder: Path, *entries: Any, **more: Any) -> Path:
    """Write an index.json of entries, each given by its URL or whole, and return the folder."""
    folder.mkdir(exist_ok=True)
    listed = [{"url": entry, "nsamples": 1} if isinstance(entry, str) else entry for entry in entries]
    (folder / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed, **more}))
    return folder


# Locations


@pytest.mark.parametrize(
    "name",
    [
        "00.tar", "sub/00.tar", "./00.tar", "a b.tar", "köln.tar", "00.tar?signature=x/y", "00.tar#part", "..00.tar",
        "a..b/c.tar", "a%20b.tar", "100%.tar", "~me.tar", "$HOME.tar", "x*y[1].tar", "a//b.tar", "pipe:cat 00.tar",
        "https://host/train/00.tar", "https://host/train/sub/00.tar?signature=x",
    ],
)  # fmt: skip
def test_what_lies_below_the_base_may_be_named(name: str) -> None:
    check_location(REMOTE, name)


@pytest.mark.parametrize(
    "name",
    [
        "../00.tar", "sub/../../00.tar", "sub/../00.tar", "%2e%2e/00.tar", "%2E./00.tar", ".%252e/00.tar",
        "..%2f00.tar",
        "sub%2f..%2f..%2f00.tar", "..\\00.tar", "..%5c00.tar", "..;/00.tar", "%c0%ae%c0%ae/00.tar", "/etc/passwd",
        "//evil/00.tar", "/00.tar", "file:///etc/passwd", "local:///etc/passwd", "https://evil/train/00.tar",
        "https://host/00.tar", "https://host/train/../00.tar", "https://host/trainer/00.tar",
        "http://host/train/00.tar",
        "https://host:444/train/00.tar", "https://me:secret@host/train/00.tar", "https://host@evil/train/00.tar",
        "https://host/train@evil/00.tar", "https://host/train/%2e%2e/00.tar",
        "https://[fe80:0:0:0:0:0:0:1]/train/00.tar",
        "a%2Fb.tar",
        "%e0%80%ae%e0%80%ae/a.tar",
        "https://169.254.169.254/latest/meta-data", "s3://bucket/00.tar", "memory://train/00.tar", "HTTPS://evil/x.tar",
    ],
)  # fmt: skip
def test_what_lies_elsewhere_may_be_named_by_the_user_only(name: str) -> None:
    with pytest.raises(ElsewhereError):
        check_location(REMOTE, name)


@pytest.mark.parametrize(
    "name",
    [
        "", None, 7, ["00.tar"], {"a": 1}, ".", "..", "sub/", "sub/..", "sub/.", "https://host/train/", "a\0.tar",
        "a\n.tar",
        "\x1b]0;x\x07.tar", "%00.tar", "a%0d%0a.tar", "\ud800.tar", "a::b.tar", "a.tar::http://evil/x", "x" * 256,
        "x/" * 2100 + "y", "reference://a.tar::http://evil/spec.json", "reference://a.tar", "zip://a.tar", "pipe://x",
        "simplecache::https://host/train/00.tar", "github://me:repo@main/00.tar", "https://[::1]/00.tar",
        "file://host/00.tar",
    ],
    ids=lambda name: ascii(name)[:40],
)  # fmt: skip
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_no_location_is_made_of_is_refused_whoever_allows_it(name: Any, elsewhere: bool) -> None:
    with pytest.raises(ValueError) as caught:
        check_location(REMOTE, name, elsewhere=elsewhere)
    assert not elsewhere or not isinstance(caught.value, ElsewhereError)


@pytest.mark.parametrize("name", ["00.tar", "sub/00.tar", "/data/train/00.tar", "%2e%2e.tar", "%2e%2e/00.tar"])
def test_a_local_data_set_may_name_what_lies_in_its_folder(name: str) -> None:
    check_location(LOCAL, name)


@pytest.mark.parametrize(
    "name",
    [
        "../00.tar", "sub/../00.tar", "/etc/passwd", "file:///data/train/00.tar",
        "/data/train/../00.tar", "/data/trainer/00.tar",
        "//data/train/00.tar",
        "file:///etc/passwd", "FILE:///data/train/00.tar", "local:///data/train/00.tar", "https://host/00.tar",
        "..\\00.tar",
    ],
)  # fmt: skip
def test_a_local_data_set_may_not_name_what_lies_outside_its_folder(name: str) -> None:
    with pytest.raises(ElsewhereError):
        check_location(LOCAL, name)
    check_location(LOCAL, name, elsewhere=True)


# Entries


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "../b.tar"}, {"url": "b\0.tar"}, {"url": ".."}, {"url": "b.tar::memory://x"}, {"url": None},
        {"url": ["b.tar"]},
        {"nsamples": -1}, {"nsamples": 1.0}, {"nsamples": float("nan")}, {"nsamples": float("inf")}, {"nsamples": "1"},
        {"nsamples": 2**62}, {"nsamples": 10**400}, {"nsamples": None}, {"nsamples": []}, {"filesize": -2},
        {"filesize": 1.5}, {"filesize": None}, {"tarsize": -7}, {"tarsize": "9"}, {"sha256": 5}, {"sha256": None},
        {"sha256": "ab"}, {"sha256": "\x1b[2J" + "a" * 60}, {"url": "a.tar", "nsamples": 2},
    ],
    ids=lambda wrong: json.dumps(wrong)[:40],
)  # fmt: skip
def test_an_entry_that_cannot_be_right_is_named_by_number_and_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write_index(tmp_path, "a.tar", {"url": "b.tar", "nsamples": 1, **wrong})
    with pytest.raises(IndexFormatError) as caught:
        wdsdist.open(tmp_path)
    assert isinstance(caught.value, IndexFormatError)
    message = str(caught.value)
    assert f"{tmp_path}/index.json" in message
    assert f"entry 1, {wrong.get('url', 'b.tar')!a}, " in message
    assert message.isprintable()
    assert len(message) < 600


# Elsewhere


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder beside the data sets, with a tar of three samples."""
    (tmp_path / "home").mkdir()
    write_shard(tmp_path / "home" / "x.tar", 3)
    return tmp_path / "home"


def test_the_error_says_what_lies_where_and_how_to_allow_it(tmp_path: Path) -> None:
    folder = write_index(tmp_path / "data", "a.tar", "https://me:secret@evil/x.tar?signature=y")
    with pytest.raises(IndexFormatError) as caught:
        wdsdist.open(folder)
    message = str(caught.value)
    assert f"entry 1, 'https://evil/x.tar', may lie outside {folder}" in message
    assert "allow_elsewhere=True" in message
    assert "secret" not in message
    assert "signature" not in message


def test_where_the_user_allows_it_shards_elsewhere_are_read(tmp_path: Path, home: Path) -> None:
    folder = write_index(tmp_path / "data", {"url": "../home/x.tar", "nsamples": 3})
    with pytest.raises(IndexFormatError):
        wdsdist.StreamingDataset(folder)
    world = {"num_replicas": 1, "rank": 0, "allow_elsewhere": True}
    for dataset in (wdsdist.StreamingDataset(folder, **world), wdsdist.mix({folder: 1.0}, **world)):
        assert len(list(dataset)) == 3
    with pytest.raises(IndexFormatError):
        wdsdist.mix({folder: 1.0})
    opened = wdsdist.open(folder, allow_elsewhere=True)
    assert wdsdist.pack(opened, tmp_path / "out").num_samples == 3


@pytest.mark.parametrize(
    "base", ["/etc", "../home", "https://evil/x", "file:///etc", "s3://bucket", "sub/../..", "a\0b", 7]
)
def test_the_base_that_an_index_states_obeys_the_same_rule(tmp_path: Path, base: Any) -> None:
    folder = write_index(tmp_path / "data", "x.tar", base=base)
    with pytest.raises(IndexFormatError, match="its base, "):
        wdsdist.open(folder)


@pytest.mark.parametrize("base", [None, "", ".", "{folder}", "{folder}/", "sub/"])
def test_the_base_may_be_the_folder_itself_or_lie_below_it(tmp_path: Path, base: str | None) -> None:
    folder = write_index(tmp_path / "data", "x.tar", "x.tar", base=base and base.format(folder=tmp_path / "data"))
    assert wdsdist.open(folder).location(1) == f"{folder}/{'sub/' if base == 'sub/' else ''}x.tar"


def test_a_reference_in_a_url_fetches_nothing(tmp_path: Path) -> None:
    # fsspec before 2026.6 renders the templates of the fetched specification with jinja2, which runs code.
    spec = {"version": 1, "templates": {"u": "{{ 7 }}"}, "refs": {"a.tar": ["{{u}}", 0, 1]}}
    with served(tmp_path) as web:
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        folder = write_index(tmp_path / "data", f"reference://a.tar::{web.url}/spec.json")
        with pytest.raises(IndexFormatError, match="'::', which chains file systems"):
            list(wdsdist.StreamingDataset(folder, num_replicas=1, rank=0, download_timeout=5))
        for allowed in (False, True):
            with pytest.raises(IndexFormatError):
                wdsdist.verify(wdsdist.open(folder, allow_elsewhere=allowed))
        assert web.asked == []


@pytest.mark.parametrize("name", ["../b.jpg", "%2e%2e/b.jpg", "%252e%252e/b.jpg", "..%5cb.jpg", "b::file:///c.jpg"])
def test_what_a_store_lists_elsewhere_is_not_packed(tmp_path: Path, name: str) -> None:
    with MemoryStore({"data/a.jpg": b"a", f"data/{name}": b"b"}) as store:
        made = wdsdist.pack(f"{store.url}/data/", tmp_path / "out", on_error="skip", workers=1)
        assert made.num_samples == 1
        assert set(store.paths("read")) <= {"data/a.jpg", "data/index.json"}


@pytest.mark.parametrize("name", ["b%2f..%2f..%2fb.tar", "b::memory:.tar"])
def test_tars_that_a_store_lists_elsewhere_are_not_indexed(tmp_path: Path, name: str) -> None:
    with MemoryStore({f"data/{name}": b"tar"}) as store:
        for output in (None, tmp_path / "out"):
            with pytest.raises(IndexFormatError, match="rename it"):
                wdsdist.index(f"{store.url}/data", output=output)


# What the user named


def test_what_index_wrote_elsewhere_is_opened_by_who_allows_it(tmp_path: Path, home: Path) -> None:
    made = wdsdist.index(home / "x.tar", output=tmp_path / "own")
    with pytest.raises(IndexFormatError, match="allow_elsewhere"):
        wdsdist.open(tmp_path / "own")
    found = wdsdist.open(tmp_path / "own", allow_elsewhere=True)
    assert found.location(0) == made.location(0) == str(home / "x.tar")
    assert made.sources[0].is_named
    assert not found.sources[0].is_named  # the flag allows reading; repairs elsewhere take the manifest of `index`
    wdsdist.export([home / "x.tar"], "wids", output=tmp_path)
    assert wdsdist.open(tmp_path / "wids.json", allow_elsewhere=True).location(0) == str(home / "x.tar")
