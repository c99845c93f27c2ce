"""Class folders as people have them: with strays, odd names, splits, and classes that another data set numbers."""

from __future__ import annotations

import errno
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

import wdsdist
from tests.packing.sources.test_folder import extensions, fill, samples
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.packing.payloads import sample_size
from wdsdist.packing.sources import find, splits_of
from wdsdist.packing.sources.class_folders import SplitsError, known_classes
from wdsdist.packing.sources.listing import FolderEntries
from wdsdist.packing.sources.source import SourceOptions

SPLITS = ("train/cat/1.jpg", "train/dog/1.jpg", "train/owl/1.jpg", "val/cat/1.jpg", "val/owl/2.jpg")


class TestStrays:
    def test_notes_beside_the_folders_are_left_out_and_named(self, tmp_path: Path) -> None:
        source = find(fill(tmp_path, "a/1.jpg", "b/1.jpg", "README.txt", "notes.json"))
        assert source.notes["classes"] == ["a", "b"]
        assert source.notes["skipped"] == {"file beside the class folders, such as README.txt": 2}
        assert extensions(source) == {"a/1": ["cls", "jpg"], "b/1": ["cls", "jpg"]}
        assert len(source.contents.sizes) == 2

    def test_an_image_beside_the_folders_leaves_label_maps_with_their_images(self, tmp_path: Path) -> None:
        source = find(fill(tmp_path, "a/1.jpg", "a/1.seg.png", "b/2.jpg", "b/2.seg.png", "top.jpg"))
        assert extensions(source) == {"a/1": ["jpg", "seg.png"], "b/2": ["jpg", "seg.png"], "top": ["jpg"]}

    def test_an_image_beside_folders_that_are_to_be_classes_is_named_whatever_the_names(self, tmp_path: Path) -> None:
        root = fill(tmp_path, "a/p.0.jpg", "a/p.1.jpg", "b/p.0.jpg", "top.jpg")
        with pytest.raises(SourceError, match=r"holds top\.jpg beside the class folders: move it into one"):
            find(root, options=SourceOptions(class_folders=True))

    def test_clutter_is_passed_over_in_folders_and_archives(self, tmp_path: Path) -> None:
        clutter = ("Thumbs.db", "a/Thumbs.db", "desktop.ini", "a/._1.jpg", "__MACOSX/a.jpg", "@eaDir/a.jpg")
        names = ("a/1.jpg", "b/1.jpg", *clutter, ".ipynb_checkpoints/1.jpg")
        root = fill(tmp_path / "photos", *names)
        with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
            for name in names:
                archive.write(root / name, name)
        for source in (find(root), find(tmp_path / "photos.zip")):
            assert list(extensions(source)) == ["a/1", "b/1"]
            assert source.notes["classes"] == ["a", "b"]
            assert sum(source.notes["skipped"].values()) == len(clutter) + 1

    @pytest.mark.parametrize(
        ("names", "doubt"),
        [
            (("a/1.jpg", "b/1.jpg", "top.jpg"), "top.jpg beside them"),
            (("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.txt"), "b/2.txt, which has no image"),
        ],
    )
    def test_what_turns_class_folders_off_is_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], doubt: str
    ) -> None:
        assert "classes" not in find(fill(tmp_path, *names)).notes
        assert doubt in caplog.text
        assert "no classes" in caplog.text

    def test_folders_that_do_not_look_like_classes_are_no_matter_of_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        find(fill(tmp_path, "a/1.txt", "b/1.txt", "b/2.jpg"))
        assert not caplog.messages


class TestParallelFolders:
    @pytest.mark.parametrize(
        "folders",
        [
            {"images": "jpg", "masks": "png"},
            {"JPEGImages": "jpg", "SegmentationClass": "png"},
            {"img": "png", "labels": "txt"},
            {"images/train": "png", "annotations/train": "png"},
            {"wav": "wav", "text": "txt"},
        ],
    )
    def test_parts_of_samples_in_folders_of_their_own_are_refused(
        self, tmp_path: Path, folders: dict[str, str]
    ) -> None:
        (one, first), (other, second) = folders.items()
        fill(tmp_path, *(f"{one}/{number}.{first}" for number in range(40)))
        fill(tmp_path, *(f"{other}/{number}.{second}" for number in range(0, 40, 3)), "README.txt")
        with pytest.raises(SourceError, match=rf"such as {other if other < one else one}/0\.\w+ and .*table") as raised:
            find(tmp_path)
        assert f"{one}/0.{first}" in str(raised.value)
        assert f"{other}/0.{second}" in str(raised.value)
        assert len(find(tmp_path, options=SourceOptions(class_folders=False))) >= 54

    @pytest.mark.parametrize(
        "names",
        [
            ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg"),
            ("cat/1.jpg", "cat/2.jpg", "dog/1.png", "dog/2.png"),
            ("gloves/1.jpg", "gloves/2.jpg", "masks/1.jpg", "masks/2.jpg"),
            ("images/1.jpg", "images/2.jpg", "masks/3.png", "masks/4.png"),
        ],
    )
    def test_class_folders_may_hold_files_of_the_same_names(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        assert len(find(fill(tmp_path, *names)).notes["classes"]) == 2


class TestNames:
    def test_each_image_is_a_sample_whatever_its_name(self, tmp_path: Path) -> None:
        names = [f"{folder}/IMG.2021.{number:02}.jpg" for folder in "ab" for number in range(4)]
        names += ["a/john.smith.jpg", "a/john.doe.jpg", "b/IMG.jpg", "b/IMG.1.jpg", "b/1.jpg", "b/100%.jpg"]
        source = find(fill(tmp_path, *names))
        assert len(source) == len(names)
        assert source.notes["source_key_rule"] == "last-dot"
        found = {key for key, _ in samples(source)}
        assert {"a/IMG%2E2021%2E00", "a/john%2Edoe", "b/IMG", "b/IMG%2E1", "b/100%25"} <= found

    def test_sizes_count_the_escapes(self, tmp_path: Path) -> None:
        fill(tmp_path, *(f"{folder}/{'x' * 60}{'.1' * 12}.jpg" for folder in "ab"))
        source = find(tmp_path)
        assert source.contents.sizes.tolist() == [sample_size(sample) for sample in samples(source)]

    def test_names_without_further_dots_change_nothing(self, tmp_path: Path) -> None:
        source = find(fill(tmp_path, "a/1%.jpg", "b/1.jpg"))
        assert list(extensions(source)) == ["a/1%", "b/1"]
        assert source.notes == {"classes": ["a", "b"]}

    def test_a_sample_of_several_images_is_a_warning_that_names_two(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        find(fill(tmp_path, "1.json", "1.1.jpg", "1.2.jpg", "2.png", "2.jpg"))
        assert len(caplog.messages) == 1
        assert "1.1.jpg and 1.2.jpg are one sample, by their names, as in 1 of 2 samples" in caplog.text


class TestSplits:
    @pytest.mark.parametrize("second", ["val", "validation", "test", "val2017"])
    def test_a_root_of_splits_is_refused_with_the_commands_to_run(self, tmp_path: Path, second: str) -> None:
        fill(tmp_path, "train/a/1.jpg", f"{second}/a/1.jpg", "notes/1.txt")
        with pytest.raises(SplitsError) as raised:
            find(tmp_path)
        for command in (
            f"`wdsdist pack {tmp_path} DEST/train --split train`",
            f"`wdsdist pack {tmp_path} DEST/{second} --split {second} --classes-from DEST/train`",
        ):
            assert command in str(raised.value)

    def test_they_are_data_when_the_user_says_so(self, tmp_path: Path) -> None:
        fill(tmp_path, "train/1.jpg", "val/1.jpg")
        assert find(tmp_path, class_folders=True).notes["classes"] == ["train", "val"]
        assert len(find(tmp_path, class_folders=False)) == 2

    def test_a_class_that_is_called_train_is_none(self, tmp_path: Path) -> None:
        assert find(fill(tmp_path, "train/1.jpg", "bus/1.jpg")).notes["classes"] == ["bus", "train"]

    @pytest.mark.parametrize("kind", ["folder", "zip", "tgz", "store"])
    def test_each_can_be_packed_out_of_any_source(self, tmp_path: Path, kind: str) -> None:
        root = fill(tmp_path / "photos", *SPLITS)
        given: str | Path = root
        if kind == "zip":
            given = tmp_path / "photos.zip"
            with zipfile.ZipFile(given, "w") as archive:
                for name in SPLITS:
                    archive.write(root / name, f"photos/{name}")
        elif kind == "tgz":
            given = tmp_path / "photos.tgz"
            with tarfile.open(given, "w:gz") as tar:
                tar.add(root, "photos")
        elif kind == "store":
            given = "memory://splits/photos"
            fsspec.filesystem("memory").put(str(root), "/splits/photos", recursive=True)
        assert splits_of(given) == ("train", "val")
        source = find(given, split="val", classes=("cat", "dog", "owl"))
        labels = {key: dict(members)["cls"] for key, members in samples(source)}
        assert labels == {"cat/1": b"0", "owl/2": b"2"}
        with pytest.raises((SourceError, NotFoundError), match=r"holds no folder 'nosuch'|does not exist"):
            len(find(given, split="nosuch"))
        with pytest.raises(ArgumentError, match=r"split is '\.\./val'"):
            find(given, split="../val")

    def test_splits_of_a_source_without_any_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="holds no folders such as train and val"):
            splits_of(fill(tmp_path, "a/1.jpg", "b/1.jpg"))


class TestClassesFrom:
    def test_numbers_are_those_of_the_data_set_or_folder_given(self, tmp_path: Path) -> None:
        root = fill(tmp_path / "photos", *SPLITS)
        wdsdist.pack(root / "train", tmp_path / "train")
        for given in (root / "train", tmp_path / "train"):
            assert known_classes(given) == ("cat", "dog", "owl")
        packed = wdsdist.pack(root / "val", tmp_path / "val", classes_from=tmp_path / "train")
        assert packed.extra["classes"] == ["cat", "dog", "owl"]

    def test_an_unknown_class_is_an_error(self, tmp_path: Path) -> None:
        root = fill(tmp_path / "photos", *SPLITS, "val/zebra/1.jpg")
        with pytest.raises(SourceError, match=r"val/zebra is none of the 3 classes given, cat to owl"):
            wdsdist.pack(root / "val", tmp_path / "val", classes_from=root / "train")

    def test_what_has_no_classes_gives_none(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(ArgumentError, match="empty, which has no classes"):
            wdsdist.pack(fill(tmp_path / "a", "a/1.jpg"), tmp_path / "b", classes_from=tmp_path / "empty")

    def test_other_kinds_of_sources_refuse_them(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("id,n\n1,2\n")
        with pytest.raises(ArgumentError, match="split is 'train', but"):
            find(tmp_path / "a.csv", split="train")
        assert SourceOptions(key="last-dot").given() == ["key"]


@pytest.mark.parametrize("look", [lambda train: find(train.parent, split="train"), known_classes])
def test_a_folder_that_cannot_be_listed_is_named(
    look: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos" / "train").mkdir(parents=True)
    (tmp_path / "photos" / "train" / "1.jpg").touch()
    known = FolderEntries.of

    def of(folder: bytes) -> FolderEntries:
        if folder.endswith(b"/train"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return known(folder)

    monkeypatch.setattr(FolderEntries, "of", staticmethod(of))
    with pytest.raises(SourceError, match=r"/train cannot be listed \(Permission denied\): mend it"):
        look(tmp_path / "photos" / "train")
