"""The directory of a zip, read in pieces, against what `zipfile` reads at once."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.packing.sources import zipdirectory
from wdsdist.packing.sources.zipdirectory import Directory

FIELDS = ("filename", "header_offset", "compress_size", "file_size", "compress_type", "CRC", "flag_bits", "extra")
ERRORS = (zipfile.BadZipFile, struct.error, NotImplementedError, ValueError, OverflowError, IndexError)


@pytest.fixture(autouse=True)
def a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipdirectory, "_TOGETHER", 3)


def entries(path: Path) -> list[zipfile.ZipInfo]:
    with Directory(str(path)) as directory:
        found = list(directory)
        places = [place for place, _ in found[::-2]]
        assert fields(directory.at(places)) == fields([info for _, info in found[::-2]])
        return [info for _, info in found]


def fields(infos: list[zipfile.ZipInfo]) -> list[tuple[object, ...]]:
    return [tuple(getattr(info, name) for name in FIELDS) for info in infos]


def archive(path: Path, *, count: int = 10, comment: bytes = b"", before: bytes = b"", zip64: bool = False) -> Path:
    with pytest.MonkeyPatch.context() as patch, zipfile.ZipFile(path, "w") as made:
        if zip64:
            patch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 0)
        made.comment = comment
        for number in range(count):
            info = zipfile.ZipInfo(f"é{number}.txt" if number % 2 else f"{number}.txt")
            info.comment = b"c" * number
            made.writestr(info, bytes(number))
    path.write_bytes(before + path.read_bytes())
    return path


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\n"])
@pytest.mark.parametrize("comment", [b"", b"a comment", b"PK\5\6" + bytes(18) + b"x"])
@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_entries_are_those_of_zipfile(tmp_path: Path, count: int, comment: bytes, before: bytes, zip64: bool) -> None:
    path = archive(tmp_path / "a.zip", count=count, comment=comment, before=before, zip64=zip64)
    with zipfile.ZipFile(path) as opened:
        assert fields(entries(path)) == fields(opened.infolist())
        assert len(opened.infolist()) == count or comment.startswith(b"PK")


@given(st.booleans(), st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), max_size=4), st.integers(0, 60))
def test_a_damaged_directory_is_what_zipfile_reads_or_an_error(
    zip64: bool, changes: list[tuple[int, int]], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = archive(Path(folder) / "a.zip", zip64=zip64)
        data = bytearray(path.read_bytes())
        for place, value in changes:
            data[-1 - place % len(data)] = value
        path.write_bytes(bytes(data[: len(data) - cut]))
        try:
            found = entries(path)
        except ERRORS:
            return
        with zipfile.ZipFile(path) as opened:  # what it refuses, so must we
            assert fields(found) == fields(opened.infolist())
