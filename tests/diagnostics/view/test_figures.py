"""Counts of columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import wdsdist
from wdsdist.curation.query import is_true
from wdsdist.diagnostics.view import figures
from wdsdist.shards.manifest import Manifest


def test_many_numbers_become_bins_that_hold_them_all(tmp_path: Path) -> None:
    made = ({"json": {"n": n / 7}, "txt": str(n)} for n in range(100))
    manifest = wdsdist.pack(made, tmp_path / "shards").add_columns(fields=["json.n"])
    found = figures.of_column(manifest, "json.n", None)
    assert (sum(found["counts"]), found["least"], found["most"]) == (100, 0.0, 99 / 7)
    assert len(found["edges"]) == len(found["counts"]) + 1
    chosen = [is_true(manifest, where).sum() for where in found["wheres"]]
    assert chosen == found["counts"], "each bar chooses its samples"


def test_few_integers_have_a_bar_each_and_classes_their_names(data: Manifest) -> None:
    found = figures.of_column(data, "cls", None, ("ant", "bee", "cat"))
    assert found["bars"] == [["0 ant", 4, '"cls" = 0'], ["1 bee", 4, '"cls" = 1'], ["2 cat", 4, '"cls" = 2']]
    assert [bar[0] for bar in figures.of_column(data, "cls", None)["bars"]] == ["0", "1", "2"]


def test_counts_are_of_the_chosen_samples(data: Manifest) -> None:
    chosen = np.flatnonzero(is_true(data, '"cls" = 1'))
    assert chosen.tolist() == [1, 4, 7, 10]
    found = figures.of_column(data, "json.width", chosen)
    assert (found["samples"], found["least"], found["most"], found["median"]) == (4, 101, 110, 105.5)


def test_of_very_many_values_some_are_counted(data: Manifest) -> None:
    found = figures.of_column(data, "json.width", None, most=4)
    assert (found["samples"], found["of"], found["least"], found["most"]) == (4, 12, 100, 111)


def test_missing_values_and_values_beyond_the_most_frequent_are_counted(tmp_path: Path) -> None:
    made = ({"txt": f"word {n % 30}", **({"json": {"x": float("nan")}} if n < 5 else {})} for n in range(60))
    manifest = wdsdist.pack(made, tmp_path / "shards").add_columns(fields=["txt", "json.x"])
    found = figures.of_column(manifest, "txt", None)
    assert (len(found["bars"]), found["others"], found["different"]) == (20, 20, 30)
    assert [is_true(manifest, where).sum() for _, _, where in found["bars"]] == [2] * 20
    assert figures.of_column(manifest, "json.x", None)["missing"] == 55
    assert figures.of_column(manifest, "json.x", np.array([59]))["bars"] == []


def test_a_quote_in_a_value_is_quoted_in_its_filter(tmp_path: Path) -> None:
    for name in ("it's", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").write_bytes(b"x")
    photos = wdsdist.pack(tmp_path / "photos", tmp_path / "shards", class_folders=True)
    assert is_true(photos, figures.equals("cls.name", "it's")).sum() == 1
