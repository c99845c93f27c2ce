"""`wdsdist pack SOURCE DEST`: what it advises, and what it says before it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_advice_names_options_as_they_are_typed(wdsdist: Run, tmp_path: Path) -> None:
    for name in ("train/1.jpg", "val/1.jpg", "v1.5_1.jpg", "v1.5_2.jpg"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_text("<html> is not an image")
    for options, advice in (
        ([], "or all into one by --no-class-folders"),
        (["--no-class-folders"], "say where keys end by --key last-dot, --key first-dot or"),
        (["--no-class-folders", "--key", "last-dot"], "leave such samples out with --on-error skip, or"),
    ):
        run = wdsdist("pack", "photos", "dest", *options)
        assert (run.returncode, advice in run.stderr) == (2, True), run.stderr


def test_a_dry_run_says_what_each_split_is(wdsdist: Run, tmp_path: Path) -> None:
    for name in ("train/cat/1.jpg", "train/dog/2.jpg", "val/dog/3.jpg"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).touch()
    run = wdsdist("pack", "photos", "dest", "--splits", "--class-folders", "--dry-run")
    assert [line for line in run.stdout.splitlines() if line.startswith(("split", "recognised", "classes"))] == [
        f"{line}{tmp_path}/photos/{split}, {samples}" if line[0] == "r" else f"{line}"
        for split, samples in (("train", "2 samples"), ("val", "1 sample"))
        for line in (f"split {split}:", "recognised: folder, ", "classes: 2, from cat to dog, as cls members")
    ]
    assert not (tmp_path / "dest").exists()


def test_advice_on_columns_is_typed_as_an_option(wdsdist: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,image\na.b,gone/1.jpg\n")
    for options, advice in (
        ([], "by --root, or map the column, as in --column image=txt, if it is to be a string"),
        (["--column", "image=txt"], "or leave out the column with --column id="),
        (["--column", "image=jpg"], "leave such samples out with --on-error skip, or fetch it"),
    ):
        run = wdsdist("pack", "t.csv", "dest", *options)
        assert (run.returncode, advice in run.stderr) == (2, True), run.stderr


def test_an_empty_place_is_not_the_working_directory(wdsdist: Run, tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("one")
    before = sorted(tmp_path.iterdir())
    for places in (("", "dest"), (".", "file://")):
        run = wdsdist("pack", *places)
        assert (run.returncode, "a path or URL is empty: name a place" in run.stderr) == (2, True)
    assert sorted(tmp_path.iterdir()) == before
