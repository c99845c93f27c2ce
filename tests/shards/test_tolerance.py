"""Tars with faults: an error by default, and with ``on_error="skip"`` all good samples, the others listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.shards.test_foreign_tars import samples
from tests.support.tars import BLOCK, content_end, plain_tar, write_shard
from wdsdist.errors import ArgumentError, ShardDamagedError, SourceError
from wdsdist.shards import tar as tarformat

GOOD = [(f"{number}.{extension}", b"%d" % number) for number in range(6) for extension in ("jpg", "txt")]
TWICE = [*GOOD[:4], ("1.jpg", b"again"), *GOOD[4:]]
Act = Callable[..., wdsdist.Manifest]


def unclosed(content: bytes) -> bytes:
    return content[: content_end(content) - 2 * BLOCK]


def indexed(tars: Path, _: Path, **options: Any) -> wdsdist.Manifest:
    return wdsdist.index(tars, workers=1, **options)


def packed(tars: Path, dest: Path, **options: Any) -> wdsdist.Manifest:
    return wdsdist.pack(tars, dest, workers=1, shuffle_seed=None, **options)


def report(manifest: wdsdist.Manifest) -> list[dict[str, str | None]]:
    (path,) = Path(manifest.base).glob("*-report.jsonl")
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
    with pytest.raises(ShardDamagedError, match=r"sample '1' has two members with extension 'jpg'.*--on-error skip"):
        act(tars, tmp_path / "dest")
    made = act(tars, tmp_path / "dest", on_error="skip")
    assert [key for key, _ in samples(made)] == ["z", "0", "2", "3", "4", "5"]
    assert made.extra["left_out"] == 1
    (line,) = report(made)
    assert line["key"] == "1"
    assert "two members with extension 'jpg'" in str(line["reason"])
    assert wdsdist.verify(made, workers=1) == []


@both
def test_by_choice_the_first_copy_is_kept(tars: Path, tmp_path: Path, act: Act) -> None:
    (tars / "b.tar").write_bytes(plain_tar(TWICE))
    made = act(tars, tmp_path / "dest", on_error="skip", keep_first=True)
    assert dict(samples(made))["1"] == {"jpg": b"1", "txt": b"1"}
    assert made.num_samples == 7
    assert [line["key"] for line in report(made)] == ["1"]
    assert wdsdist.verify(made, workers=1) == []


@both
def test_a_cut_tar_is_left_out_and_on_request_salvaged(tars: Path, tmp_path: Path, act: Act) -> None:
    content = plain_tar(GOOD)
    (tars / "b.tar").write_bytes(content[: 2 * BLOCK * 7 + 100])  # in the header of 3.txt
    with pytest.raises(ShardDamagedError, match="two closing blocks"):
        act(tars, tmp_path / "dest")
    made = act(tars, tmp_path / "left out", on_error="skip")
    assert [key for key, _ in samples(made)] == ["z"]
    ((line),) = report(made)
    assert "b.tar" in json.dumps(line)
    assert "without its two closing blocks" in str(line["reason"])
    made = act(tars, tmp_path / "salvaged", on_error="skip", salvage=True)
    assert [key for key, _ in samples(made)] == ["z", "0", "1", "2"]
    assert {line["key"] for line in report(made)} >= {"3"}
    assert wdsdist.verify(made, workers=1) == []


@both
def test_a_tar_without_closing_blocks_is_salvaged_whole(tars: Path, tmp_path: Path, act: Act) -> None:
    (tars / "b.tar").write_bytes(unclosed(plain_tar(GOOD)))
    made = act(tars, tmp_path / "dest", on_error="skip", salvage=True)
    assert [key for key, _ in samples(made)] == ["z", *"012345"]
    assert wdsdist.verify(made, workers=1) == []


def test_a_salvaged_tar_that_changes_afterwards_is_noticed(tars: Path) -> None:
    content = unclosed(plain_tar(GOOD))
    (tars / "b.tar").write_bytes(content)
    made = wdsdist.index(tars, on_error="skip", salvage=True, workers=1)
    (tars / "b.tar").write_bytes(content[:-BLOCK])
    assert wdsdist.verify(made, workers=1)
    with pytest.raises(ShardDamagedError, match="short of its index"):
        samples(made)


def test_of_a_tar_with_a_damaged_header_what_precedes_it_is_salvaged(tars: Path) -> None:
    content = bytearray(plain_tar(GOOD))
    content[2 * BLOCK * 5 + 130] ^= 1  # in the size of 2.txt, which leads the scan astray
    (tars / "b.tar").write_bytes(content)
    made = wdsdist.index(tars, on_error="skip", salvage=True, workers=1)
    assert [key for key, _ in samples(made)] == ["z", "0", "1"]
    assert ["wrong checksum" in str(line["reason"]) for line in report(made)] == [False, True]


def test_of_a_cut_tar_with_scattered_samples_no_partial_one_is_salvaged(tars: Path) -> None:
    scattered = sorted(GOOD, key=lambda member: member[0].partition(".")[2])
    (tars / "b.tar").write_bytes(plain_tar(scattered)[: 2 * BLOCK * 9])
    made = wdsdist.index(tars, on_error="skip", salvage=True, workers=1)
    assert [key for key, _ in samples(made)] == ["z", "0", "1", "2"]
    assert [line["key"] for line in report(made)] == ["3", "4", "5", None]


def test_a_member_named_like_what_readers_add_costs_only_its_sample(tars: Path) -> None:
    (tars / "b.tar").write_bytes(plain_tar([*GOOD, ("5.__key__", b"5")]))
    made = wdsdist.index(tars, on_error="skip", workers=1)
    assert [key for key, _ in samples(made)] == ["z", *"01234"]


def test_where_nothing_is_good_there_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(plain_tar(GOOD)[:700])
    with pytest.raises(ShardDamagedError, match=r"no sample for .* is left: .*b\.tar"):
        wdsdist.index(tmp_path, on_error="skip")
    with pytest.raises(SourceError, match="holds no sample"):
        wdsdist.pack(tmp_path, tmp_path / "dest", on_error="skip")
    assert not (tmp_path / "index.json").exists()


def test_the_report_goes_when_nothing_is_left_out_any_more(tars: Path) -> None:
    (tars / "b.tar").write_bytes(plain_tar(TWICE))
    wdsdist.index(tars, on_error="skip", workers=1)
    (tars / "b.tar").write_bytes(plain_tar(GOOD))
    made = wdsdist.index(tars, on_error="skip", workers=1)
    assert "left_out" not in made.extra
    assert not (tars / "index-report.jsonl").exists()


def test_a_shard_that_was_cut_after_it_was_indexed_is_left_out_of_a_packing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.tar", 3, prefix=name)
    wdsdist.index(tmp_path, workers=1)
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:1500])
    made = packed(tmp_path, tmp_path / "dest", on_error="skip")
    assert made.num_samples == 3
    assert [line["key"] for line in report(made)] == ["a.tar"]


def test_what_is_kept_of_faults_goes_with_skip(tars: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match='keep_first says what on_error="skip"'):
        wdsdist.index(tars, keep_first=True)
    with pytest.raises(ArgumentError, match=r"on_error is 'none'"):
        wdsdist.index(tars, on_error="none")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a tar with `--from webdataset`"):
        wdsdist.pack(tars / "a.tar", tmp_path / "dest", on_error="skip", salvage=True)
    with pytest.raises(ArgumentError, match='on_error="skip"'):
        wdsdist.pack(tars, tmp_path / "dest", salvage=True)


@given(st.integers(0, len(plain_tar(GOOD))))
def test_wherever_a_tar_is_cut_what_is_salvaged_is_a_prefix_of_its_members(cut: int) -> None:
    whole = tarformat.scan(plain_tar(GOOD), label="x")
    found = tarformat.scan(plain_tar(GOOD)[:cut], label="x", salvage=True)
    count = len(found.names)
    assert found.names == whole.names[:count]
    assert found.offsets.tolist() == whole.offsets[:count].tolist()
    assert count == int((whole.offsets + whole.sizes <= cut).sum())
    assert bool(found.damage) == (cut < content_end(plain_tar(GOOD)))


def listed(path: Path, *entries: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_an_index_leaves_out_what_a_quarantine_file_lists_and_verify_agrees(tars: Path, tmp_path: Path) -> None:
    (tars / "b.tar").write_bytes(plain_tar([*GOOD, ("6.jpg", b"6")]))
    wdsdist.index(tars, workers=1)
    bad = tmp_path / "bad.jsonl"
    assert len(wdsdist.verify(tars, fields=("jpg", "txt"), quarantine=bad, workers=1)) == 1
    made = wdsdist.index(tars, exclude=bad, workers=1)
    assert [key for key, _ in samples(made)] == ["z", *"012345"]
    assert [(line["shard"], line["key"]) for line in report(made)] == [("b.tar", "6")]
    assert made.extra["left_out"] == 1
    assert wdsdist.verify(tars, fields=("jpg", "txt"), workers=1) == []
    assert wdsdist.index(tars, workers=1).num_samples == 8


@pytest.mark.parametrize("shard", ["b.tar", "PATH/b.tar"])
def test_a_listed_sample_is_left_out_of_its_own_shard_alone(tars: Path, tmp_path: Path, shard: str) -> None:
    for name in ("b.tar", "c.tar"):
        (tars / name).write_bytes(plain_tar(GOOD))
    bad = listed(tmp_path / "bad.jsonl", {"key": "3", "shard": shard.replace("PATH", str(tars))})
    made = wdsdist.index(tars, exclude=bad, output=tmp_path / "own", workers=1)
    assert [line["shard"] for line in report(made)] == ["b.tar"]
    assert made.num_samples == 12


def test_a_listed_key_without_a_shard_is_left_out_of_all(tars: Path, tmp_path: Path) -> None:
    for name in ("b.tar", "c.tar"):
        (tars / name).write_bytes(plain_tar(GOOD))
    made = wdsdist.index(tars, exclude=listed(tmp_path / "bad.jsonl", {"key": "3"}), workers=1)
    assert [line["shard"] for line in report(made)] == ["b.tar", "c.tar"]


def test_shards_of_equal_names_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for folder in ("256x256", "512x256"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shard-0.tar").write_bytes(plain_tar(GOOD))
    wdsdist.index(f"{tmp_path}/*/shard-0.tar", output=tmp_path / "own", workers=1)
    place = str(tmp_path / "512x256" / "shard-0.tar")
    either = {"key": "4", "shard": "shard-0.tar", "fingerprint": "of another index"}
    bad = listed(tmp_path / "bad.jsonl", {"key": "3", "shard": place, "fingerprint": "of the index before"}, either)
    made = wdsdist.index(f"{tmp_path}/*/shard-0.tar", output=tmp_path / "own", exclude=bad, workers=1)
    assert made.counts.tolist() == [6, 5]


def test_a_sample_with_a_member_twice_may_be_excluded(tars: Path, tmp_path: Path) -> None:
    (tars / "b.tar").write_bytes(plain_tar(TWICE))
    made = wdsdist.index(tars, exclude=listed(tmp_path / "bad.jsonl", {"key": "1"}), workers=1)
    assert [key for key, _ in samples(made)] == ["z", "0", "2", "3", "4", "5"]
    assert wdsdist.verify(tars, workers=1) == []


def test_a_list_of_other_samples_is_warned_of(tars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = listed(tmp_path / "bad.jsonl", {"key": "z", "shard": "other.tar", "fingerprint": "of other shards"})
    assert wdsdist.index(tars, exclude=bad, workers=1).num_samples == 1
    assert "bad.jsonl lists no sample that is in" in caplog.text
