"""``index`` and ``verify`` on shards that others made, as people run them."""

from __future__ import annotations

from pathlib import Path

import pytest

import wdsdist as library
from tests.cli.conftest import Run
from tests.support.tars import plain_tar, write_shard
from tests.support.web import served


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    (tmp_path / "tars").mkdir()
    for name in ("a", "b"):
        write_shard(tmp_path / "tars" / f"{name}.tar", 3, prefix=name, extensions=("jpg", "cls"))
    return tmp_path / "tars"


def test_remote_tars_are_indexed_into_a_folder(wdsdist: Run, tars: Path, tmp_path: Path) -> None:
    with served(tars) as web:
        urls = f"{web.url}/{{a..b}}.tar"
        run = wdsdist("index", urls)
        assert run.returncode == 2
        assert f"{web.url} cannot be written: name a local folder for the indexes as output" in run.stderr
        assert web.sent == 0
        run = wdsdist("index", urls, "--output", tmp_path / "own", "--workers", 2)
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines() == [f"indexed: 6 samples in 2 shards, 20.0 KiB, in {tmp_path / 'own'}"]
        assert run.stderr.splitlines()[-1].startswith("indexing: 100%, 6 samples, 2 of 2 shards")
        run = wdsdist("verify", tmp_path / "own", "--allow-elsewhere")
        assert run.stdout.splitlines()[-1].endswith("no damage"), run.stdout + run.stderr


def test_what_is_skipped_is_reported(wdsdist: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(plain_tar([("README", b"1"), ("a.jpg", b"1")]))
    run = wdsdist("index", tmp_path / "x.tar")
    assert run.stdout.splitlines()[1:] == ["skipped: 1 x name without a key and an extension"]


def test_keys_that_are_renamed_are_counted(wdsdist: Run, tars: Path, tmp_path: Path) -> None:
    (tars / "b.tar").write_bytes((tars / "a.tar").read_bytes())
    run = wdsdist("pack", tars, tmp_path / "dest")
    assert run.returncode == 0
    assert (
        run.stderr.splitlines()[-2]
        == "wdsdist: renamed: 3 keys that an earlier shard has too, by a number, such as 01~2"
    )


def test_indexes_of_other_tools_are_written_for_what_is_indexed_and_what_is_not(wdsdist: Run, tars: Path) -> None:
    run = wdsdist("index", tars, "--export", "dali", "--export", "timm", "--split", "val")
    assert run.stdout.splitlines() == [
        f"indexed: 6 samples in 2 shards, 20.0 KiB, in {tars}",
        f"exported for dali: 2 files, such as {tars}/a.idx",
        f"exported for timm: 1 file, such as {tars}/_info.json",
    ]
    before = (tars / "index.json").stat().st_mtime_ns
    run = wdsdist("index", tars, "--export", "energon")
    assert run.stdout.splitlines() == [f"exported for energon: 4 files, such as {tars}/a.tar.idx"]
    assert (tars / "index.json").stat().st_mtime_ns == before
    assert wdsdist("index", tars, "--export", "none").returncode == 2


def test_repair_says_what_it_did_and_what_it_could_not(wdsdist: Run, tars: Path) -> None:
    library.index(tars)
    (tars / "a.tar.wdsindex").unlink()
    content = (tars / "b.tar").read_bytes()
    (tars / "b.tar").write_bytes(content[:-512])
    run = wdsdist("verify", tars, "--repair", "--quiet")
    assert run.returncode == 1
    assert run.stdout.splitlines()[0].startswith("a.tar: has no index a.tar.wdsindex beside it")
    assert run.stdout.splitlines()[-2] == "repaired: a.tar: indexed again"
    assert run.stdout.splitlines()[-1].startswith("not repaired: b.tar: there is nothing to fetch it from")
    (tars / "whole").mkdir()
    (tars / "whole" / "b.tar").write_bytes(content)
    run = wdsdist("verify", tars, "--repair", "--source", tars / "whole")
    assert run.returncode == 0, run.stdout
    assert run.stdout.splitlines()[-2:] == [
        f"repaired: b.tar: replaced by {tars}/whole/b.tar",
        "verified: 6 samples in 2 shards, 20.0 KiB, all damage repaired",
    ]
    assert wdsdist("verify", tars, "--source", tars).returncode == 2


def test_what_is_left_out_is_counted_and_listed_and_the_advice_of_the_error_works(wdsdist: Run, tars: Path) -> None:
    (tars / "b.tar").write_bytes(plain_tar([("x.jpg", b"1"), ("x.jpg", b"2"), ("y.jpg", b"3")]))
    run = wdsdist("index", tars)
    assert run.returncode == 2
    assert "index with --on-error skip to leave its sample out" in run.stderr
    run = wdsdist("index", tars, "--on-error", "skip")
    assert run.stdout.splitlines()[-1] == f"left out: 1, listed in {tars}/index-report.jsonl"
    run = wdsdist("index", tars, "--on-error", "skip", "--quiet")
    assert (run.returncode, run.stdout, library.open(tars).num_samples) == (0, "", 4)
    run = wdsdist("pack", tars, tars / "packed", "--dry-run")
    assert "left out by their indexes: 1 sample, such as x: " in run.stdout


def test_splits_of_a_folder_become_data_sets_of_their_own(wdsdist: Run, process: Run, tars: Path) -> None:
    (tars / "a.tar").rename(tars / "x-train.tar")
    (tars / "b.tar").rename(tars / "x-val.tar")
    run = process("index", tars)
    assert f"`wdsdist index {tars} --splits` makes one each" in run.stderr
    run = wdsdist("index", tars, "--splits")
    assert run.stdout.splitlines() == [
        f"indexed: 3 samples in 1 shard, 10.0 KiB, in {tars}/index-train.json",
        f"indexed: 3 samples in 1 shard, 10.0 KiB, in {tars}/index-val.json",
    ]
    assert wdsdist("index", tars, "--splits", "--name", "x").returncode == 2
