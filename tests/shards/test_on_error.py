"""Tars with faults: an error by default; with ``on_error="skip"`` of the index all good samples, the others listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.shards.test_foreign_tars import samples
from tests.support.tars import BLOCK, plain_tar
from wdsdist.errors import ShardDamagedError

GOOD = [(f"{number}.{extension}", b"%d" % number) for number in range(6) for extension in ("jpg", "txt")]
TWICE = [*GOOD[:4], ("1.jpg", b"again"), *GOOD[4:]]
Act = Callable[..., wdsdist.Manifest]


def indexed(tars: Path, _: Path, **options: Any) -> wdsdist.Manifest:
    return wdsdist.index(tars, workers=1, **options)


def packed(tars: Path, dest: Path, **options: Any) -> wdsdist.Manifest:
    if options:
        wdsdist.index(tars, workers=1, **options)
    return wdsdist.pack(tars, dest, workers=1, shuffle_seed=None)


def report(folder: Path) -> list[dict[str, str | None]]:
    (path,) = folder.glob("*-report.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """A folder with a good tar."""
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "a.tar").write_bytes(plain_tar([("z.jpg", b"z"), ("z.txt", b"z")]))
    return tmp_path / "tars"


both = pytest.mark.parametrize("act", [indexed, packed])


@both
def test_a_member_that_is_there_twice_costs_only_its_sample(tars: Path, tmp_path: Path, act: Act) -> None:
    (tars / "b.tar").write_bytes(plain_tar(TWICE))
    with pytest.raises(ShardDamagedError, match=r"sample '1' has two members with extension 'jpg'.*on_error='skip'"):
        act(tars, tmp_path / "dest")
    made = act(tars, tmp_path / "dest", on_error="skip")
    assert [key for key, _ in samples(made)] == ["z", "0", "2", "3", "4", "5"]
    (line,) = report(tars)
    assert line["key"] == "1"
    assert "two members with extension 'jpg'" in str(line["reason"])
    assert wdsdist.verify(made, workers=1) == []


@both
def test_a_cut_tar_is_left_out(tars: Path, tmp_path: Path, act: Act) -> None:
    content = plain_tar(GOOD)
    (tars / "b.tar").write_bytes(content[: 2 * BLOCK * 7 + 100])  # in the header of 3.txt
    with pytest.raises(ShardDamagedError, match="two closing blocks"):
        act(tars, tmp_path / "dest")
    made = act(tars, tmp_path / "left out", on_error="skip")
    assert [key for key, _ in samples(made)] == ["z"]
    (line,) = report(tars)
    assert "b.tar" in json.dumps(line)
    assert "without its two closing blocks" in str(line["reason"])
    assert wdsdist.verify(made, workers=1) == []


def test_where_nothing_is_good_there_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(plain_tar(GOOD)[:700])
    with pytest.raises(ShardDamagedError, match=r"no sample for .* is left: .*b\.tar"):
        wdsdist.index(tmp_path, on_error="skip")
    with pytest.raises(ShardDamagedError, match="two closing blocks"):
        wdsdist.pack(tmp_path, tmp_path / "dest", on_error="skip")
    assert not (tmp_path / "index.json").exists()


def test_the_report_goes_when_nothing_is_left_out_any_more(tars: Path) -> None:
    (tars / "b.tar").write_bytes(plain_tar(TWICE))
    wdsdist.index(tars, on_error="skip", workers=1)
    (tars / "b.tar").write_bytes(plain_tar(GOOD))
    made = wdsdist.index(tars, on_error="skip", workers=1)
    assert "left_out" not in made.extra
    assert not (tars / "index-report.jsonl").exists()
