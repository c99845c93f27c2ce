"""Tables as disks hold them: of other systems and encodings, with columns that are not quite what their names say."""

from __future__ import annotations

import contextlib
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from tests.support.tables import members
from tests.support.trees import unpack
from wdsdist.errors import SourceError
from wdsdist.packing.sources import find

DECOMPOSED = unicodedata.normalize("NFD", "caf\u00e9")


def table(folder: Path, content: str | bytes, name: str = "t.csv", files: dict[str, bytes] | None = None) -> Path:
    unpack(folder, {name: content.encode() if isinstance(content, str) else content, **(files or {})})
    return folder / name


# Paths


# Encodings


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_wide_encoding_without_a_mark_is_refused(tmp_path: Path, encoding: str, name: str) -> None:
    with pytest.raises(SourceError, match=r"t\.\w+ is in UTF-16"):
        find(table(tmp_path, '{"id": 1}\n'.encode(encoding), name))


def test_a_json_list_is_refused_with_how_to_make_lines_of_it(tmp_path: Path) -> None:
    path = table(tmp_path, json.dumps([{"id": 1, "txt": "a"}], indent=1), "t.jsonl")
    with pytest.raises(
        SourceError,
        match=r"t\.jsonl, row 1: it is not a JSON object: .*write one object on each line, as `jq -c '\.\[\]'`",
    ):
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
