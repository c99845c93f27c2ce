"""Tars among files, which are no members of samples, and tars that were split."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.packing.sources.test_folder import fill
from tests.support.tars import plain_tar
from tests.support.trees import contents, zip_bytes
from wdsdist.errors import SourceError
from wdsdist.packing import pack
from wdsdist.packing.sources import find
from wdsdist.packing.sources.source import Source

MEMBERS = {
    f"{number}.{extension}": f"{number} {extension}".encode() * 50
    for number in range(9)
    for extension in ("jpg", "txt")
}
TAR = plain_tar(MEMBERS.items())


def split(root: Path, *names: str, content: bytes = TAR) -> Path:
    root.mkdir(exist_ok=True)
    size = -(-len(content) // len(names))
    for number, name in enumerate(names):
        (root / name).write_bytes(content[number * size : (number + 1) * size])
    return root


@pytest.mark.parametrize("path", ["x.tar", "sub/x.tar", "sub/deep/x.tar.gz", "sub/x.tgz", "sub/x.tar.part.ab"])
def test_a_folder_that_holds_a_tar_at_any_depth_is_refused(tmp_path: Path, path: str) -> None:
    fill(tmp_path, "1.txt", "sub/2.txt", path)
    with pytest.raises(SourceError, match=rf"holds 1 tar file, such as {path}: ") as raised:
        find(tmp_path, kind="folder")
    if "part" not in path:
        where = str((tmp_path / path).parent)
        assert f"run `wdsdist pack {where} DEST` or `wdsdist index {where}`" in str(raised.value)


def test_an_archive_that_holds_a_tar_among_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zip_bytes({"1.txt": b"", "a/b.tar": TAR}))
    with pytest.raises(SourceError, match=r"holds 1 tar file, such as a/b\.tar: unpack it"):
        find(tmp_path / "x.zip")


PARTS = [
    ("x.tar.part.aa", "x.tar.part.ab", "x.tar.part.ac"),
    ("x.tar.partaa", "x.tar.partab"),
    ("x.tar.aa", "x.tar.ab"),
    ("x.tar.001", "x.tar.002", "x.tar.003"),
    ("x.tar.part0", "x.tar.part1"),
    ("x.tar.part00",),
]


@pytest.mark.parametrize("names", PARTS, ids=" ".join)
def test_parts_are_joined_from_their_folder_or_from_one_of_them(tmp_path: Path, names: tuple[str, ...]) -> None:
    root = split(tmp_path / "parts", *names)
    fill(root, "README.md", "x.tar.sha256")
    for given in (root, root / names[-1]):
        source = find(given)
        assert isinstance(source, Source)
        assert contents(source) == MEMBERS


def test_a_part_that_cannot_be_read_is_an_error_of_the_source(tmp_path: Path) -> None:
    root = split(tmp_path / "parts", "x.tar.aa", "x.tar.ab")
    (root / "x.tar.ab").unlink()
    (root / "x.tar.ab").mkdir()
    with pytest.raises(SourceError, match=r"x\.tar\.ab cannot be read: Is a directory"):
        pack(root, tmp_path / "dest")


def test_parts_of_a_compressed_tar_are_joined(tmp_path: Path) -> None:
    root = split(tmp_path / "parts", "x.tar.gz.00", "x.tar.gz.01", content=gzip.compress(TAR))
    assert contents(find(root)) == MEMBERS


@pytest.mark.parametrize("names", PARTS[:4], ids=" ".join)
def test_a_part_that_is_missing_is_named(tmp_path: Path, names: tuple[str, ...]) -> None:
    names = (*names, names[-1][:-1] + chr(ord(names[-1][-1]) + 1))
    root = split(tmp_path / "parts", *names)
    (root / names[1]).unlink()
    with pytest.raises(SourceError, match=r"parts of x\.tar, .* but not number 2 of them"):
        find(root)


def test_the_first_part_is_missed(tmp_path: Path) -> None:
    root = split(tmp_path / "parts", "x.tar.part.aa", "x.tar.part.ab", "x.tar.part.ac")
    (root / "x.tar.part.aa").unlink()
    with pytest.raises(SourceError, match="but not number 1 of them"):
        find(root)


def test_the_last_part_is_missed_where_the_tar_ends(tmp_path: Path) -> None:
    root = split(tmp_path / "parts", "x.tar.part.aa", "x.tar.part.ab")
    (root / "x.tar.part.ab").unlink()
    with pytest.raises(SourceError, match=r"/x\.tar\.part\.aa to x\.tar\.part\.aa(?! to).*is the last part missing\?"):
        len(find(root))


def test_parts_of_several_tars_are_packed_one_by_one(tmp_path: Path) -> None:
    root = split(tmp_path / "parts", "x.tar.aa", "x.tar.ab")
    split(root, "y.tar.aa", "y.tar.ab")
    with pytest.raises(SourceError, match=r"holds 4 tar files, such as x\.tar\.aa: they are parts of x\.tar"):
        find(root)
    assert contents(find(root / "y.tar.aa")) == MEMBERS


@pytest.mark.parametrize("name", ["x.tar.md", "x.tar.idx", "x.tar.json", "x.tar.txt", "x.tar.bz"])
def test_other_files_beside_tars_are_no_parts(tmp_path: Path, name: str) -> None:
    assert find(fill(tmp_path, name), kind="folder").kind == "folder"


def test_two_parts_of_one_number_are_refused(tmp_path: Path) -> None:
    root = split(tmp_path / "parts", "x.tar.001", "x.tar.01", "x.tar.002")
    with pytest.raises(SourceError, match=r"holds x\.tar\.0?01 and x\.tar\.0?01, both of one number"):
        find(root)
