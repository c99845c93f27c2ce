"""Names of files that are easily overlooked: parts of one sample under two keys, and what programs leave behind."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.trees import unpack, zip_bytes
from wdsdist.packing.sources import find

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))


def folder(root: Path, files: dict[str, bytes]) -> Path:
    return unpack(root / "source", files)


def archive(root: Path, files: dict[str, bytes]) -> Path:
    (root / "source.zip").write_bytes(zip_bytes(files))
    return root / "source.zip"


@pytest.mark.parametrize("make", [folder, archive])
@pytest.mark.parametrize(
    ("names", "difference"),
    [
        (("IMG_1.jpg", "img_1.txt"), "upper and lower case"),
        (("A/1.jpg", "a/1.txt"), "upper and lower case"),
        ((f"{COMPOSED}.jpg", f"{DECOMPOSED}.txt"), "Unicode normal form"),
        ((f"{COMPOSED}/1.jpg", f"{DECOMPOSED}/1.txt"), "Unicode normal form"),
        (("1 .jpg", "1.txt"), "blanks"),
    ],
)
def test_files_whose_keys_look_alike_are_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path, dict[str, bytes]], Path],
    names: tuple[str, str],
    difference: str,
) -> None:
    source = find(make(tmp_path, {"0.jpg": b"", "0.txt": b"", **dict.fromkeys(names, b"x")}), class_folders=False)
    assert len(source) == 3
    (message,) = (record.getMessage() for record in caplog.records)
    assert f"which are two samples, for their names differ in {difference}: rename one" in message
    assert message.endswith("(pairs of this kind: 1)")
    assert all(name in message for name in names)


@pytest.mark.parametrize(
    "names",
    [
        ("A.jpg", "a.jpg", "A.txt", "a.txt"),  # two whole samples
        ("A.jpg", "a.jpg", "b.txt"),  # two images
        ("A.jpg", "b.txt"),
        ("A.jpg", "A.txt"),
    ],
)
def test_samples_that_are_two_are_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    find(folder(tmp_path, dict.fromkeys(names, b"")))
    assert not caplog.records


@pytest.mark.parametrize("make", [folder, archive])
@pytest.mark.parametrize("clutter", ["$Recycle.Bin", "$RECYCLE.BIN", "#recycle", "@Recycle", "#snapshot", "@eaDir"])
def test_deleted_files_and_snapshots_of_network_drives_are_passed_over(
    tmp_path: Path, make: Callable[[Path, dict[str, bytes]], Path], clutter: str
) -> None:
    assert len(find(make(tmp_path, {"1.jpg": b"", f"{clutter}/1.jpg": b"", f"{clutter}/2.jpg": b""}))) == 1


@pytest.mark.parametrize("make", [folder, archive])
@pytest.mark.parametrize("name", ["1.jpg.crdownload", "2.jpg.part", "1.txt~", "1.txt.bak", "2.PART"])
def test_unfinished_downloads_and_copies_of_editors_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path, dict[str, bytes]], Path], name: str
) -> None:
    find(make(tmp_path, {"1.jpg": b"", "1.txt": b"", name: b""}))
    (message,) = (record.getMessage() for record in caplog.records)
    assert f"copies of an editor, such as {name} (1 in all), which are packed" in message
