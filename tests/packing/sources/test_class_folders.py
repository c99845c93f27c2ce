"""Class folders and splits as people have them: with strays, odd names, and in every kind of source."""

from __future__ import annotations

import errno
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

import wdsdist
from tests.packing.sources.test_folder import extensions, fill
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing import pack_splits
from wdsdist.packing.payloads import sample_size
from wdsdist.packing.sources import find, splits_of
from wdsdist.packing.sources.class_folders import SplitsError
from wdsdist.packing.sources.listing import FolderEntries

SPLITS = ("train/cat/1.jpg", "train/dog/1.jpg", "train/owl/1.jpg", "val/cat/1.jpg", "val/owl/2.jpg")


def test_clutter_is_passed_over_in_folders_and_archives(tmp_path: Path) -> None:
    clutter = ("Thumbs.db", "a/Thumbs.db", "desktop.ini", "a/._1.jpg", "__MACOSX/a.jpg", "@eaDir/a.jpg")
    names = ("a/1.jpg", "b/1.jpg", *clutter, ".ipynb_checkpoints/1.jpg")
    root = fill(tmp_path / "photos", *names)
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name in names:
            archive.write(root / name, name)
    for source in (find(root, class_folders=True), find(tmp_path / "photos.zip", class_folders=True)):
        assert list(extensions(source)) == ["a/1", "b/1"]
        assert source.notes["classes"] == ["a", "b"]
        assert sum(source.notes["skipped"].values()) == len(clutter) + 1


def test_sizes_count_the_escapes(tmp_path: Path) -> None:
    root = fill(tmp_path, *(f"{name}/{'x' * 85}.{number}.jpg" for name in "ab" for number in range(3)))
    source = find(root, class_folders=True)
    taken = list(source.take(__import__("numpy").arange(len(source))))
    assert source.contents.sizes.tolist() == [sample_size(one) for one in taken]


def test_splits_are_refused_with_the_ways_to_pack_them(tmp_path: Path) -> None:
    root = fill(tmp_path, *SPLITS)
    with pytest.raises(SplitsError, match=r"holds the splits train, val: .* --splits` or .*class_folders=False"):
        find(root)
    assert splits_of(root) == ("train", "val")
    assert len(find(root, class_folders=False)) == 5
    with pytest.raises(SourceError, match="holds no folders such as train and val"):
        splits_of(fill(tmp_path / "flat", "1.jpg"))


@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
def test_splits_share_the_numbers_of_their_classes(tmp_path: Path, kind: str) -> None:
    source = root = fill(tmp_path / "photos", *SPLITS)
    if kind == "zip":
        source = tmp_path / "photos.zip"
        with zipfile.ZipFile(source, "w") as archive:
            for name in SPLITS:
                archive.write(root / name, f"photos/{name}")
    elif kind == "tar.gz":
        source = tmp_path / "photos.tar.gz"
        with tarfile.open(source, "w:gz") as tar:
            tar.add(root, "photos")
    found = pack_splits(source, tmp_path / "out", class_folders=True, workers=1)
    assert [found[name].num_samples for name in ("train", "val")] == [3, 2]
    assert [one.extra["classes"] for one in found.values()] == [["cat", "dog", "owl"]] * 2
    val = wdsdist.StreamingDataset(tmp_path / "out" / "val", decode=True, fields=("cls",), shuffle=False)
    assert sorted((val[number]["__key__"], val[number]["cls"]) for number in range(2)) == [("cat/1", 0), ("owl/2", 2)]


def test_other_kinds_of_sources_refuse_class_folders(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label\n3\n")
    with pytest.raises(ArgumentError, match="only sources of the kind zip or tar or folder take it") as caught:
        find(tmp_path / "t.csv", class_folders=True)
    assert caught.value.argument == "class_folders"


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: bytes) -> FolderEntries:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(FolderEntries, "of", refuse)
    with pytest.raises(SourceError, match=r"cannot be listed .*Permission denied"):
        find(tmp_path)
