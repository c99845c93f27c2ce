"""`wdsdist pack my_module:name DEST`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.programs import PROGRAMS


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(PROGRAMS / "my_module.py", tmp_path)
    monkeypatch.chdir(tmp_path)


def test_a_data_set_in_the_current_folder(wdsdist: Run, tmp_path: Path) -> None:
    run = wdsdist("pack", "my_module:Squares", "dest", "--encode", "my_module:encode", "--shard-samples", 10)
    assert run.stdout.splitlines()[0] == f"packed: 30 samples in 3 shards, 63.0 KiB, in {tmp_path / 'dest'}"
    assert run.stderr.splitlines()[-1].startswith("packing: 100%, 30 of 30 samples, 3 of 3 shards")


def test_an_iterable(wdsdist: Run, tmp_path: Path) -> None:
    recognised = ["recognised: iterable, my_module:lines", "members: txt in 30"]
    for word, said in (("packed", [*recognised, "packing: 30 samples, 3 shards, "]), ("packed already", [])):
        run = wdsdist("pack", "my_module:lines", "dest", "--shard-samples", 10)
        assert run.stdout.splitlines()[0] == f"{word}: 30 samples in 3 shards, 33.0 KiB, in {tmp_path / 'dest'}"
        for line, beginning in zip(run.stderr.splitlines(), said, strict=True):
            assert line.startswith(beginning)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my_module:lines", "--seed", "0"], "--seed is 0, but my_module:lines can be read in one order only"),
        (["my_module:Squares"], "item 0 of my_module:Squares is a tuple, not a sample"),
        (["my_module:Circles"], "has no attribute 'Circles'"),
        (["my_modul:Squares"], "No module named 'my_modul'"),
        (["my_module:Broken"], "my_module:Broken failed at sample 20: OSError: no more"),
    ],
)
def test_what_goes_wrong_is_one_line(wdsdist: Run, arguments: list[str], message: str) -> None:
    run = wdsdist("pack", arguments[0], "dest", *arguments[1:])
    assert run.returncode == 2
    [line] = run.stderr.splitlines()
    assert line.startswith("wdsdist: error: ")
    assert message in line


def test_advice_names_options_as_they_are_typed(wdsdist: Run, tmp_path: Path) -> None:
    for name in ("train/1.jpg", "val/1.jpg", "v1.5_1.jpg", "v1.5_2.jpg"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_text("<html> is no image")
    for options, advice in (
        ([], "or all into one by --no-class-folders"),
        (["--no-class-folders"], """say where keys end by --key "last-dot", --key "first-dot" or"""),
        (["--no-class-folders", "--key", "last-dot"], "leave such samples out with --on-error skip, or"),
    ):
        run = wdsdist("pack", "photos", "dest", *options)
        assert (run.returncode, advice in run.stderr) == (2, True), run.stderr


def test_an_empty_place_is_not_the_working_directory(wdsdist: Run, tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("one")
    before = sorted(tmp_path.iterdir())
    for places in (("", "dest"), (".", "file://")):
        run = wdsdist("pack", *places)
        assert (run.returncode, "a path or URL is empty: name a place" in run.stderr) == (2, True)
    assert sorted(tmp_path.iterdir()) == before
