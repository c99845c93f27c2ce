"""Tables as disks hold them: of other systems and encodings, with columns that are not quite what their names say."""

from __future__ import annotations

import contextlib
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from wdsdist.packing.sources.similar_paths import similar

from tests.support.tables import members
from tests.support.trees import contents, unpack
from wdsdist.errors import SourceError
from wdsdist.packing.sources import find, table_rows

DECOMPOSED = unicodedata.normalize("NFD", "caf\u00e9")


def table(folder: Path, content: str | bytes, name: str = "t.csv", files: dict[str, bytes] | None = None) -> Path:
    unpack(folder, {name: content.encode() if isinstance(content, str) else content, **(files or {})})
    return folder / name


# Paths


@pytest.mark.parametrize(
    ("written", "stored", "difference"),
    [
        ("images\\1.jpg", "images/1.jpg", "separators"),
        ("images/caf\u00e9.jpg", f"images/{DECOMPOSED}.jpg", "Unicode normal form"),
        ("images/1.JPG", "images/1.jpg", "upper and lower case"),
        ("Images/1.jpg", "images/1.jpg", "upper and lower case"),
        (" images/1.jpg ", "images/1.jpg", "blanks"),
        (
            "images/ CAF\u00c9.jpg",
            f"images/{DECOMPOSED}.jpg",
            "blanks and Unicode normal form and upper and lower case",
        ),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_a_path_that_looks_like_that_of_a_file_is_an_error_that_names_it(
    tmp_path: Path, written: str, stored: str, difference: str, is_first: bool
) -> None:
    rows = [f"{written},a", *(["right.jpg,b"] if not is_first else [])]
    path = table(tmp_path, "\n".join(["image,txt", *rows]), files={stored: b"1", "right.jpg": b"2"})
    what = f"{tmp_path / stored}, which differs in {difference}, (is|does): name"
    with pytest.raises(SourceError, match=what):
        find(path)


def test_nothing_is_similar_to_a_path_that_leads_elsewhere_or_to_a_folder(tmp_path: Path) -> None:
    unpack(tmp_path, {"a/1.jpg": b"", "a/b.jpg/c.txt": b""})
    assert similar(f"{tmp_path}/a/1.JPG").startswith(f"{tmp_path}/a/1.jpg, ")
    for none in ("a/2.JPG", "a/../a/1.JPG", "x/1.JPG", "a/B.jpg"):
        assert similar(f"{tmp_path}/{none}") == ""


def test_files_of_similar_names_are_looked_for_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def recorded(path: str) -> str:
        looked.append(path)
        return similar(path)

    monkeypatch.setattr(table_rows, "similar", recorded)
    rows = ["image,txt", "there.jpg,a", *(f"{number}.JPG,a" for number in range(100))]
    files = {f"{number}.jpg": b"" for number in range(100)} | {"there.jpg": b""}
    source = find(table(tmp_path, "\n".join(rows), files=files), on_error="skip")
    reasons = [one.reason for one in source.left_out]
    assert len(reasons) == 100
    assert "0.jpg, which differs in upper and lower case, does: name it so" in reasons[0]
    assert reasons[-1].endswith("99.JPG does not exist: leave such rows out with on_error='skip'")
    assert len(looked) < 50


# Encodings


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_wide_encoding_without_a_mark_is_refused(tmp_path: Path, encoding: str, name: str) -> None:
    with pytest.raises(SourceError, match=r"t\.\w+ begins with zero bytes between its letters, as UTF-16"):
        find(table(tmp_path, '{"id": 1}\n'.encode(encoding), name))


def test_a_json_list_is_refused_with_how_to_make_lines_of_it(tmp_path: Path) -> None:
    path = table(tmp_path, json.dumps([{"id": 1, "txt": "a"}], indent=1), "t.jsonl")
    with pytest.raises(SourceError, match=r"t\.jsonl, row 1: no JSON: .*seems to be one list.* `jq -c '\.\[\]'`"):
        find(path)


# Types of Polars


@pytest.mark.parametrize("form", ["file", "stream", "compressed", "parquet"])
def test_views_of_texts_and_bytes_are_texts_and_bytes(tmp_path: Path, form: str) -> None:
    pictures = [b"\xff\xd8\xff" + bytes(100), None, b"short"]
    columns = pa.table(
        {
            "id": pa.array(["a", "b", "c"], pa.string_view()),
            "image": pa.array(pictures, pa.binary_view()),
            "txt": pa.array(["x", "longer than twelve letters", "y"], pa.string_view()),
        }
    )
    path = tmp_path / ("t.parquet" if form == "parquet" else "t.arrow")
    if form == "parquet":
        pa.parquet.write_table(columns, path)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "compressed" else None)
        open_file = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
        with open_file(path, columns.schema, options=options) as writer:
            writer.write_table(columns)
    source = find(path)
    assert members(source) == {
        "a": {"jpg": pictures[0], "txt": b"x"},
        "b": {"txt": b"longer than twelve letters"},
        "c": {"jpg": b"short", "txt": b"y"},
    }
    assert form == "parquet" or source.contents.sizes.tolist() == [2048, 1024, 2048]


@pytest.mark.parametrize("bit", [1, 3])
def test_a_parquet_file_with_an_altered_bit_gives_all_its_rows_or_is_refused(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"id": ["a", "b", "c"], "txt": ["x", "y", "z"]}), path, compression="none")
    content = path.read_bytes()
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1 << bit
        path.write_bytes(altered)
        with contextlib.suppress(SourceError):
            assert len(find(path)) == 3


# Columns that are not what their names say


@pytest.mark.parametrize(
    ("name", "content", "warning"),
    [
        ("t.csv", "id,txt\n1.0,a\n2.0,b\n", "column 'id' of .* gives no keys"),
        ("t.jsonl", '{"id": 1, "txt": "a"}\n{"id": "1", "txt": "b"}\n', "column 'id' of .* gives no keys"),
        ("t.csv", "txt,label\na,1.0\nb,\n", "column 'label' of .* becomes a part of json, not cls"),
        ("t.jsonl", '{"label": true, "txt": "a"}\n', "column 'label' of .* becomes a part of json, not cls"),
        ("t.csv", "txt, label\na, 1\nb, 2\n", "the name of column ' label' of .* begins or ends with a blank"),
    ],
)
def test_a_column_that_does_not_become_what_its_name_says_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str, warning: str
) -> None:
    path = table(tmp_path, content, name)
    find(path)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(warning, record.getMessage())


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("id,txt\n1.0,a\n", {"id": ""}),
        ("id,key,txt\n1.0,k,a\n", {}),
        ("label,txt\n1.0,a\n", {"label": "label.json"}),
        ("label,cls,txt\n1.0,1,a\n", {}),
        (" id,txt\n1,a\n", {" id": "__key__"}),
    ],
)
def test_a_column_that_is_mapped_or_that_another_one_stands_for_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str, columns: dict[str, Any]
) -> None:
    assert contents(find(table(tmp_path, content), columns=columns))
    assert not caplog.records
