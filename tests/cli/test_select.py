"""``wdsdist select`` and ``split``, and the other commands on the views that they make."""

from __future__ import annotations

import json
from pathlib import Path

import wdsdist as library
from tests.cli.conftest import Run


def lines(run: Run, *args: object) -> list[str]:
    done = run(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_view_is_made_shown_listed_checked_and_packed(wdsdist: Run, shards: Path, tmp_path: Path) -> None:
    view = tmp_path / "views" / "noted"
    (tmp_path / "optout.txt").write_text("cat/002\n")
    told = lines(wdsdist, "select", shards, view, "--where", '"txt.bytes" > 0', "--exclude", tmp_path / "optout.txt")
    assert told == [f'{view}: where "txt.bytes" > 0, exclude {tmp_path}/optout.txt (1 sample): 2 of 6 samples']
    shown = lines(wdsdist, "info", view)
    assert "samples:     2" in shown
    assert any(line.startswith("view:") and "2 of 6 samples" in line for line in shown)
    assert json.loads("".join(lines(wdsdist, "info", view, "--json")))["view"][0]["samples_after"] == 2
    assert [line.split("\t")[:3] for line in lines(wdsdist, "ls", view, "--samples")] == [
        ["0", "cat/000", "shard-000000.tar"],
        ["1", "dog/001", "shard-000001.tar"],
    ]
    assert lines(wdsdist, "cat", view, "1", "txt") == ["note 1"] == lines(wdsdist, "cat", view, "dog/001", "txt")
    assert wdsdist("cat", view, "cat/002").returncode == 2  # it is left out
    assert lines(wdsdist, "plan", view, "--ranks", 2, "--batch-size", 1)[0].startswith("data:          2 samples in")
    assert "no damage" in lines(wdsdist, "verify", view)[0]
    assert lines(wdsdist, "pack", view, tmp_path / "packed")[0].startswith("packed: 2 samples in 1 shard")
    assert [line.split("\t")[1] for line in lines(wdsdist, "ls", tmp_path / "packed", "--samples")] != []
    refused = wdsdist("index", view, "--export", "wids")
    assert refused.returncode == 2


def test_samples_are_split_and_repeated(wdsdist: Run, shards: Path, tmp_path: Path) -> None:
    told = lines(wdsdist, "split", shards, tmp_path / "views", "train=0.5", "seed=0.5")
    assert [line.partition(": part ")[0] for line in told] == [
        str(tmp_path / "views" / name) for name in ("train", "seed")
    ]
    listed = [lines(wdsdist, "ls", tmp_path / "views" / name, "--samples") for name in ("train", "seed")]
    keys = [line.split("\t")[1] for part in listed for line in part]
    assert sorted(keys) == ["cat/000", "cat/002", "cat/004", "dog/001", "dog/003", "dog/005"]
    assert lines(wdsdist, "select", shards, tmp_path / "twice", "--repeat", 2) == [
        f"{tmp_path}/twice: repeat 2: 12 from 6 samples"
    ]
    refused = wdsdist("pack", tmp_path / "twice", tmp_path / "packed")
    assert "the view repeats or explodes samples, such as 'cat/000'" in refused.stderr
    assert not (tmp_path / "packed" / "index.json").exists()


def test_a_view_of_parts_is_listed_and_shown(wdsdist: Run, shards: Path, tmp_path: Path) -> None:
    view = library.open(shards).select('"txt.bytes" > 0').explode("txt.bytes", per=4).save(tmp_path / "parts")
    listed = [line.split("\t")[1] for line in lines(wdsdist, "ls", view, "--samples")]
    assert listed[:2] == ["cat/000 (part 0 of 2)", "cat/000 (part 1 of 2)"]
    assert len(listed) == 6
    shown = lines(wdsdist, "info", view)
    assert any(line.endswith("explode txt.bytes, per 4: 6 from 3 samples") for line in shown)
    assert any("__part__" in line for line in shown)


def test_a_view_is_refreshed_and_an_empty_one_is_saved_on_request(wdsdist: Run, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "optout.txt").write_text("cat/002\n")
    lines(wdsdist, "select", shards, tmp_path / "some", "--exclude", tmp_path / "optout.txt")
    (tmp_path / "optout.txt").write_text("cat/002\ncat/004\n")
    assert lines(wdsdist, "select", "--refresh", tmp_path / "some") == [f"{tmp_path}/some: 4 samples"]
    none = ("select", shards, tmp_path / "none", "--where", "false")
    refused = wdsdist(*none)
    assert (refused.returncode, "would have no sample of 6" in refused.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
    assert lines(wdsdist, *none, "--allow-empty") == [f"{tmp_path}/none: where false: 0 of 6 samples"]
