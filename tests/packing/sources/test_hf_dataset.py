"""A ``Dataset`` object of ``datasets``, and the folder that its ``save_to_disk`` writes: the rows that it has."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.packing import members
from wdsdist.errors import SourceError
from wdsdist.packing import pack_splits
from wdsdist.packing.sources import find

pytestmark = pytest.mark.filterwarnings("ignore")  # of datasets' own dependencies


@pytest.fixture(autouse=True, scope="module")
def library() -> None:
    """Import `datasets` where its tests run: it takes a second, which every process that collects them would pay."""
    pytest.importorskip("datasets").disable_progress_bars()


def photos(rows: int = 12) -> Any:
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "note": datasets.Value("string"),
            "ids": datasets.Sequence(datasets.Value("int32")),
            "size": {"width": datasets.Value("int64")},
        }
    )
    images = [Image.new("RGB", (4, 4), (number, 0, 0)) for number in range(rows)]
    columns = {
        "image": images,
        "label": [number % 2 for number in range(rows)],
        "note": [f"n{number}" if number % 5 else None for number in range(rows)],
        "ids": [list(range(number)) for number in range(rows)],
        "size": [{"width": 2**60 + number} for number in range(rows)],
    }
    return datasets.Dataset.from_dict(columns, features=features)


CHOICES = {
    "all": lambda dataset: dataset,
    "select": lambda dataset: dataset.select([7, 2, 3]),
    "shuffle": lambda dataset: dataset.shuffle(seed=1),
    "filter": lambda dataset: dataset.filter(lambda row: row["label"] == 1),
    "map": lambda dataset: dataset.map(lambda row: {"note": "x"}).select(range(2, 6)),
    "format": lambda dataset: dataset.with_format("numpy", columns=["ids"]),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_are_those_of_the_folder_that_it_is_saved_to(choice: str, tmp_path: Path) -> None:
    dataset = CHOICES[choice](photos())
    dataset.with_format(None).flatten_indices().save_to_disk(tmp_path / "saved")
    source, saved = find(dataset), find(tmp_path / "saved")
    assert (saved.kind, saved.contents.notes["classes"]) == ("arrow", ["cat", "dog"])
    for row, found in zip(dataset.with_format(None), members(saved).values(), strict=True):
        assert (int(found["cls"]), found.get("txt", b"").decode()) == (row["label"], row["note"] or "")
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["png"]))), np.asarray(row["image"]))
    assert (source.kind, len(source), source.contents.notes) == ("arrow", len(dataset), saved.contents.notes)
    assert members(source) == members(saved)
    assert source.contents.sizes.tolist() == saved.contents.sizes.tolist()


def test_splits_are_packed_as_those_of_any_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        photos().save_to_disk(tmp_path / "d" / split)
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SourceError, match=r"holds the splits train, test: pack each .* --splits`"):
        find(tmp_path / "d")
    assert [data.num_samples for data in pack_splits(tmp_path / "d", tmp_path / "out").values()] == [12, 12]


def test_all_rows_tell_one_from_another() -> None:
    digest = find(photos()).digest
    assert find(photos()).digest == digest
    assert find(photos().shuffle(seed=1)).digest == find(photos().shuffle(seed=1).flatten_indices()).digest != digest
    changed = photos().map(lambda row, number: {"note": "y"} if number == 5 else row, with_indices=True)
    assert find(changed).digest != digest
    larger = photos().map(lambda row, at: {"image": Image.new("RGB", (9, 9))} if at == 5 else row, with_indices=True)
    assert find(larger).digest != digest


def test_with_encode_or_a_transform_its_items_are_taken() -> None:
    encoded = find(photos(), encode=lambda item: {"cls": item["label"], "png": item["image"]})
    transformed = find(photos().with_transform(lambda rows: {"cls": rows["label"]}))
    assert (encoded.kind, transformed.kind) == ("dataset", "dataset")


def test_a_text_that_names_a_file_here_stays_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.py").write_text("secret")
    dataset = datasets.Dataset.from_dict({"path": ["setup.py", "main.py"]})
    assert members(find(dataset))["000000000"] == {"txt": b"setup.py"}
    (tmp_path / "main.py").write_text("more")
    assert members(find(dataset, root=tmp_path))["000000001"] == {"py": b"more"}


def test_a_file_outside_of_it_is_read_where_that_is_allowed(tmp_path: Path) -> None:
    import datasets

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    dataset = datasets.Dataset.from_dict({"image": [str(tmp_path / name / "1.png") for name in ("cat", "dog")]})
    dataset = dataset.cast_column("image", datasets.Image())
    with pytest.raises(SourceError, match=r"cat/1\.png', which lies outside .* with root="):
        find(dataset)
    found = members(find(dataset, root=tmp_path))["000000001"]
    assert found == {"png": (tmp_path / "dog" / "1.png").read_bytes()}
