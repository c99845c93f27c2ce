"""Figures on the contents of data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from wdsdist.diagnostics import summary as module
from wdsdist.diagnostics.summary import summary
from wdsdist.errors import NotFoundError
from wdsdist.shards.manifest import join


def samples(count: int) -> list[dict[str, Any]]:
    """Return samples of different sizes, of which every third lacks its text."""
    return [
        {"jpg": b"x" * (7 * n % count + 1), "cls": n % 4, **({"txt": "a" * n} if n % 3 else {})} for n in range(count)
    ]


@pytest.fixture
def data(tmp_path: Path) -> wdsdist.Manifest:
    return wdsdist.pack(samples(30), tmp_path / "data", shard_samples=5, shuffle_seed=None)


def test_sizes_agree_with_the_columns_of_sizes(data: wdsdist.Manifest) -> None:
    found = summary(data)["sizes"]
    for name, sizes in [
        ("bytes", found["sample"]),
        *((f"{one}.bytes", found["fields"][one]) for one in found["fields"]),
    ]:
        column = data.column(name)
        assert sizes == {"min": np.nanmin(column), "median": np.nanmedian(column), "max": np.nanmax(column)}, name


def test_classes_are_counted_by_their_column_without_reading_members(data: wdsdist.Manifest) -> None:
    data.add_columns(fields=["cls"])
    for shard in Path(data.base).glob("*.tar"):
        shard.write_bytes(bytes(shard.stat().st_size))
    found = summary(data)
    assert (found["class_counts"], found["problems"]) == ({"0": 8, "1": 8, "2": 7, "3": 7}, [])


def test_columns_have_their_range_or_their_most_frequent_values(data: wdsdist.Manifest) -> None:
    data.add_columns(fields=["txt.length", "txt"])
    found = summary(data)["column_figures"]
    assert found["txt.length"] == {"kind": "int", "missing": 10, "min": 1, "median": 15, "max": 29}
    assert (found["txt"]["kind"], found["txt"]["missing"], found["txt"]["different"]) == ("string", 10, 20)
    assert found["txt"]["most_frequent"][0] == ["a", 1]


def test_figures_of_a_view_are_of_its_samples(data: wdsdist.Manifest) -> None:
    view = data.select('"txt.bytes" > 20')
    found = summary(view)
    assert found["field_counts"] == {"cls": 6, "jpg": 6, "txt": 6}
    assert found["sizes"]["fields"]["txt"] == {"min": 22, "median": 25.5, "max": 29}
    assert sum(found["class_counts"].values()) == 6
    assert found["payload_bytes"] == view.column("bytes").sum()


def test_of_many_shards_some_are_looked_at_and_it_says_so(
    data: wdsdist.Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, index in enumerate(sorted(Path(data.base).glob("*.wdsindex"))):
        if number in (1, 3, 4):  # which nobody asks for
            index.write_bytes(b"damaged")
    monkeypatch.setattr(module, "_SHARDS", 3)
    found = summary(data)
    assert found["looked_at"] == {"shards": 3, "samples": 15}
    assert found["field_counts"]["jpg"] == 15
    assert (found["samples"], found["payload_bytes"]) == (30, data.extra["payload_bytes"])


@pytest.mark.parametrize(
    ("limit", "value", "everything", "shards"),
    [("_SHARDS", 3, True, 6), ("_SHARDS", 3, False, 3), ("_SAMPLES", 10, False, 2), ("_FAR_SHARDS", 1, False, 6)],
)
def test_limits_decide_how_many_shards_are_looked_at(
    data: wdsdist.Manifest, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, everything: bool, shards: int
) -> None:
    monkeypatch.setattr(module, limit, value)
    looked_at = summary(data, everything=everything)["looked_at"]
    assert looked_at == {"shards": shards, "samples": 5 * shards}


def test_classes_of_many_samples_are_not_counted_without_their_column(
    data: wdsdist.Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MEMBERS", 29)
    assert summary(data)["class_counts"] is None


def test_a_packed_data_set_without_its_shards_has_what_its_packer_noted(data: wdsdist.Manifest) -> None:
    for path in [*Path(data.base).glob("*.tar"), *Path(data.base).glob("*.wdsindex")]:
        path.unlink()
    found = summary(data)
    assert (found["samples"], found["fields"], found["looked_at"]["shards"]) == (30, ["cls", "jpg", "txt"], 0)
    assert "members were not looked at: shard" in found["problems"][0]


def test_one_that_nobody_noted_anything_of_is_an_error_then(data: wdsdist.Manifest) -> None:
    index = Path(data.base, "index.json")
    content = json.loads(index.read_text())
    del content["wdsdist"]
    index.write_text(json.dumps(content))
    Path(data.base, "shard-000002.tar").unlink()
    with pytest.raises(NotFoundError, match=r"shard-000002\.tar"):
        summary(wdsdist.open(data.base))


def test_a_column_that_cannot_be_read_is_a_problem_and_hides_nothing_else(data: wdsdist.Manifest) -> None:
    data.add_columns(fields=["cls", "txt.length"])
    wdsdist.pack(samples(3), data.base, append=True)
    found = summary(wdsdist.open(data.base))
    assert any("values for 6 of the 7 shards" in problem for problem in found["problems"])
    assert (found["field_counts"]["jpg"], sum((found["class_counts"] or {}).values())) == (33, 33)


def test_an_older_generation_has_checksums_too(data: wdsdist.Manifest) -> None:
    assert summary(data.of_shards([0, 1]))["with_checksums"] == 2


def test_concatenated_data_sets_are_summed_up(data: wdsdist.Manifest, tmp_path: Path) -> None:
    other = wdsdist.pack(samples(4), tmp_path / "other", shuffle_seed=None)
    assert summary(join([data, other], ["a", "b"]))["field_counts"] == {"cls": 34, "jpg": 34, "txt": 22}


def test_an_empty_data_set_has_no_figures(tmp_path: Path) -> None:
    import tarfile

    tarfile.open(tmp_path / "a.tar", "w").close()
    found = summary(wdsdist.index(tmp_path))
    assert (found["samples"], found["field_counts"], found["sizes"]["sample"], found["class_counts"]) == (
        0,
        {},
        {},
        None,
    )
