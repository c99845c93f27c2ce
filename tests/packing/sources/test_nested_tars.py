"""Tars among files, which are no members of samples, and tars that were split."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packing.sources.test_folder import fill
from tests.support.tars import plain_tar
from tests.support.trees import zip_bytes
from wdsdist.errors import SourceError
from wdsdist.packing.sources import find

MEMBERS = {
    f"{number}.{extension}": f"{number} {extension}".encode() * 50
    for number in range(9)
    for extension in ("jpg", "txt")
}
TAR = plain_tar(MEMBERS.items())


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


PARTS = ["x.tar.part.aa", "x.tar.partab", "x.tar.ab", "x.tar.003", "x.tar.part1", "x.tar.part00"]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_tar_that_was_split_are_refused_with_what_joins_them(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "README.md", name, name.replace("x.", "y."))
    message = rf"such as {name}: they are parts of x\.tar: .* as by `cat x\.tar\?\* > x\.tar`$"
    for given in (tmp_path, tmp_path / name):
        with pytest.raises(SourceError, match=message):
            find(given)
    with pytest.raises(SourceError, match=message):
        find(tmp_path / name, kind="tar")


def test_what_joins_parts_of_a_compressed_tar_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"as by `cat x\.tar\.gz\?\* > x\.tar\.gz`$"):
        find(fill(tmp_path, "x.tar.gz.00"))


@pytest.mark.parametrize("name", ["x.tar.md", "x.tar.idx", "x.tar.json", "x.tar.txt", "x.tar.bz"])
def test_other_files_beside_tars_are_no_parts(tmp_path: Path, name: str) -> None:
    assert find(fill(tmp_path, name), kind="folder").kind == "folder"
