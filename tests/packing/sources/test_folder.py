"""Folders of files as samples."""

from __future__ import annotations

import os
import socket
import tarfile
import zipfile
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.packing import members
from tests.support.trees import fill, unpack
from wdsdist.errors import SourceError
from wdsdist.packing import pack_splits
from wdsdist.packing.members import Samples
from wdsdist.packing.options import Options
from wdsdist.packing.sources import find
from wdsdist.packing.sources.files import Files, SplitsError
from wdsdist.packing.sources.listing import Folder, list_samples
from wdsdist.packing.sources.source import Recognised, Source
from wdsdist.shards.tar.member_names import split_name
from wdsdist.shards.tar.writer import stored_size


def extensions(source: Source) -> dict[str, list[str]]:
    return {key: list(found) for key, found in members(source).items()}


def test_files_that_agree_up_to_the_first_dot_are_one_sample(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg", "a/1.json", "a/1.seg.png", "a/2.jpg", "b.v2/1.jpg", "1.cls")
    assert extensions(find(tmp_path)) == {
        "1": ["cls"],
        "a/1": ["jpg", "json", "seg.png"],
        "a/2": ["jpg"],
        "b.v2/1": ["jpg"],
    }


def test_folders_and_their_samples_come_in_byte_order(tmp_path: Path) -> None:
    fill(tmp_path, "b.txt", "a/1.txt", "B.txt", "é.txt", "a-1.txt", "a.txt", "a-1/1.txt")
    assert list(extensions(find(tmp_path))) == ["B", "a-1", "a", "b", "é", "a-1/1", "a/1"]


def test_what_belongs_to_no_sample_is_counted(tmp_path: Path) -> None:
    fill(tmp_path, "1.txt", ".DS_Store", "README", "name.", "two\nlines.txt", "__meta__/notes.json")
    fill(tmp_path, ".git/config.txt", ".git/HEAD.txt")
    source = find(tmp_path)
    assert list(extensions(source)) == ["1"]
    assert source.contents.notes == {
        "skipped": {"hidden file or folder": 2, "name with a line break": 1, "name without a key and an extension": 3}
    }


def test_pipes_and_sockets_are_counted_and_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "1.txt")
    os.mkfifo(tmp_path / "2.txt")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("3.txt")
        source = find(tmp_path)
    assert source.contents.notes == {"skipped": {"device, pipe or socket": 2}}


def test_links_that_lead_back_are_not_followed_for_ever(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.txt", "b/2.txt")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "a").symlink_to(tmp_path / "a")
    source = find(tmp_path)
    assert list(extensions(source)) == ["a/1", "a/b/2", "b/2", "b/a/1"]
    assert source.contents.notes["skipped"]["link to a folder around it"] == 4


def test_a_link_that_cannot_be_followed_is_an_error_or_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "1.txt")
    for name, target, message in (
        ("2.txt", "gone", r"/2\.txt is a link to nothing"),
        ("3.txt", "3.txt", r"/3\.txt cannot be read \(Too many levels of symbolic links\): repair it or"),
        ("owl", "owl", r"/owl cannot be read \(Too many levels of symbolic links\): "),  # perhaps a folder of samples
    ):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(SourceError, match=message):
            find(tmp_path)
        source = find(tmp_path, on_error="skip")
        assert list(extensions(source)) == ["1"]
        assert [one.key for one in source.contents.left_out] == [name.partition(".")[0]]
        (tmp_path / name).unlink()


def test_the_fingerprint_stays_with_the_files_and_leaves_with_any_change(tmp_path: Path) -> None:
    root = fill(tmp_path / "here", "1.txt", "2.txt")
    before = find(root).digest
    assert find(root).digest == before
    moved = root.rename(tmp_path / "there")
    assert find(moved).digest == before

    os.utime(moved / "1.txt", ns=(1, 1))
    retimed = find(moved).digest
    (moved / "1.txt").write_text("longer than before")
    os.utime(moved / "1.txt", ns=(1, 1))
    resized = find(moved).digest
    (moved / "2.txt").rename(moved / "3.txt")
    renamed = find(moved).digest
    assert len({before, retimed, resized, renamed}) == 4


def test_files_of_a_key_come_together_whatever_stands_between_their_names(tmp_path: Path) -> None:
    fill(tmp_path, "a.b.jpg", "a.b.k.txt", "a.b.txt", "a.jpg", "a/1.txt", "a.txt")
    assert extensions(find(tmp_path, key="last-dot")) == {
        "a": ["jpg", "txt"],
        "a%2Eb": ["jpg", "txt"],
        "a%2Eb%2Ek": ["txt"],
        "a/1": ["txt"],
    }


class TestClassFolders:
    def test_folders_become_numbered_classes(self, tmp_path: Path) -> None:
        fill(tmp_path, "cat/1.jpg", "Zebra/x/2.PNG", "dog/1.jpg", "dog/1.txt", "README.md", "top.jpg")
        source = find(tmp_path, class_folders=True)
        assert source.contents.notes["classes"] == ["Zebra", "cat", "dog"]
        assert source.contents.notes["skipped"] == {"file beside the class folders, such as README.md": 2}
        assert source.contents.facts["keys"] == "such as Zebra/x/2, of Zebra/x/2.PNG"
        labels = {key: found["cls"] for key, found in members(source).items()}
        assert labels == {"Zebra/x/2": b"0", "cat/1": b"1", "dog/1": b"2"}
        assert extensions(source)["dog/1"] == ["cls", "jpg", "txt"]

    def test_nothing_is_guessed(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/1.jpg", "b/1.jpg")
        assert find(tmp_path).contents.notes == find(tmp_path, class_folders=False).contents.notes == {}
        assert find(tmp_path).contents.sizes.tolist() == [1024, 1024]
        assert find(tmp_path).digest != find(tmp_path, class_folders=True).digest
        assert find(tmp_path, class_folders=True).contents.sizes.tolist() == [2048, 2048]
        assert "class_folders=True makes them classes" in str(Recognised.of(find(tmp_path)))

    def test_images_whose_names_hold_a_number_behind_a_dot_are_a_sample_each(self, tmp_path: Path) -> None:
        files = ("cat/cat.0.jpg", "cat/cat.1.jpg", "dog/dog.0.jpg")
        source = find(fill(tmp_path, *files), class_folders=True)
        fill(tmp_path, "cat/notes.v2.txt", "dog/list.csv")
        assert members(find(tmp_path, class_folders=True)) == members(source)
        skipped = {"file without an image beside it, such as cat/notes.v2.txt": 2}
        assert find(tmp_path, class_folders=True).contents.notes["skipped"] == skipped
        assert extensions(source) == {f"{one[:7]}%2E{one[8]}": ["cls", "jpg"] for one in files}
        assert len(find(tmp_path, key="first-dot")) == 4


def test_empty_files_are_said(tmp_path: Path) -> None:
    lines = Recognised.of(find(unpack(tmp_path, {"1.jpg": b"x", "2.jpg": b"", "3.txt": b""}))).lines
    assert "empty files: 2, such as 2.jpg" in lines


SPLITS = ("train/cat/1.jpg", "train/dog/1.jpg", "train/owl/1.jpg", "val/cat/1.jpg", "val/owl/2.jpg")


def test_splits_are_refused_with_the_ways_to_pack_them(tmp_path: Path) -> None:
    root = fill(tmp_path, *SPLITS)
    with pytest.raises(SplitsError, match=r"holds the splits train, val: .* --splits` or .*class_folders=False"):
        find(root)
    assert len(find(root, class_folders=False)) == 5


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


# Compact listings against what sorting and grouping Python strings gives


names = st.text("ab.-/é", min_size=1, max_size=8)
paths = st.sets(st.lists(names, min_size=1, max_size=3).map("/".join), max_size=30)


def opened(files: dict[str, int]) -> dict[str, Folder]:
    """Return the folders of a file tree, by path."""
    tree = {"": Folder()}
    for number, (path, size) in enumerate(files.items()):
        *above, name = path.split("/")
        folder = "".join(f"{part}/" for part in above)
        tree.setdefault(folder, Folder()).add(name, size, mtime_ns=number, position=number)
    return tree


@given(paths, st.randoms())
def test_samples_are_those_of_sorted_folders(found: set[str], random: object) -> None:
    valid = [path for path in sorted(found) if split_name(path) and "//" not in path and path[0] != "/"]
    random.shuffle(valid)  # type: ignore[attr-defined]
    files = {path: 100 * number for number, path in enumerate(valid)}
    samples: dict[str, list[str]] = {}
    for path in sorted(files, key=lambda path: (path[: path.rfind("/") + 1].encode(), path.encode())):
        samples.setdefault(split_name(path)[0], []).append(path)  # type: ignore[index]
    result = list_samples(opened(files))
    assert [result.key(sample) for sample in range(result.index.num_samples)] == list(samples)
    in_order = [path for members in samples.values() for path in members]
    assert [result.path(file) for file in range(len(result.index.sizes))] == in_order
    assert np.diff(result.index.sample_starts).tolist() == [len(members) for members in samples.values()]
    assert result.index.sizes.tolist() == [files[path] for path in in_order]
    assert result.index.offsets.tolist() == [valid.index(path) for path in in_order]
    stored = [sum(stored_size(path, files[path]) for path in members) for members in samples.values()]
    assert not stored or result.stored_sizes().tolist() == stored


@pytest.mark.parametrize("length", [90, 99, 100, 101, 150, 255, 256, 300])
def test_stored_sizes_know_long_paths(length: int) -> None:
    for folder in ("f", "f" * 60, "é" * 30):
        name = "n" * (length - len(folder.encode()) - 5) + ".bin"
        result = list_samples(opened({f"{folder}/{name}": 8**11 if length == 90 else 5}))
        assert result.stored_sizes().tolist() == [stored_size(f"{folder}/{name}", int(result.index.sizes[0]))]


def test_a_listing_takes_few_bytes_beside_the_names() -> None:
    import tracemalloc

    def listed(count: int) -> Source:
        tree = Files("a.zip")
        for number in range(count):
            tree.add_name(f"{number % 20:03}/{number:08}.jpg", 70_000, number)
        return tree.source("zip", Options(), lambda listed: Samples(iter, (listed,)), state="")

    listed(100)  # numpy imports some of its modules when they are first needed
    tracemalloc.start()
    try:
        result = listed(10_000)
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(result) == 10_000
    assert size / 10_000 < 12 + 50
    assert peak / 10_000 < 12 + 70


@given(st.sets(st.text("ab.", min_size=1, max_size=6).map(lambda name: f"k{name}.x"), min_size=1, max_size=12))
def test_another_rule_groups_files_by_the_keys_that_it_finds(names: set[str]) -> None:
    result = list_samples(opened(dict.fromkeys(names, 1)), rule="last-dot")
    keys = [result.key(sample) for sample in range(result.index.num_samples)]
    assert keys == sorted({name.rpartition(".")[0].replace(".", "%2E") for name in names}, key=lambda key: unquote(key))
    assert sorted(f"{key}.{extension}" for key, members in result for extension, _ in members) == sorted(
        f"{name[:-2].replace('.', '%2E')}.x" for name in names
    )


def test_processes_that_help_list_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        folder = tmp_path / "files" / f"{number % 4}" / f"{number}"
        folder.mkdir(parents=True)
        for name in ("a.jpg", "b.jpg", ".hidden", "README"):
            (folder / name).write_bytes(bytes(number))
    (tmp_path / "files" / "3" / "lost.jpg").symlink_to("nothing")
    (tmp_path / "files" / "3" / "around").symlink_to("..")
    found = []
    for alone in (10_000, 6):
        monkeypatch.setattr("wdsdist.packing.sources.files._ALONE", alone)
        source = find(tmp_path / "files", Options(on_error="skip", class_folders=False, workers=2))
        found.append((source.digest, source.contents.notes, source.contents.left_out, len(source)))
    assert found[0] == found[1]
    assert found[0][1]["skipped"] == {
        "hidden file or folder": 40,
        "link to a folder around it": 1,
        "name without a key and an extension": 40,
    }
