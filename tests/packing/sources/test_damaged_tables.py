"""Tables that are damaged or odd: an error that names file and row, or all samples."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.damage import altered
from tests.support.packing import members
from tests.support.tables import WRITERS, Record
from wdsdist.errors import SourceError
from wdsdist.packing.sources import find


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", b"a,b\n", "holds no row that could be a sample: is it"),
        ("t.csv", b"a;b\n1;2\n3;4\n", r"t\.csv has a single column, 'a;b', whose fields seem to be separated by ';'"),
        ("t.tsv", b"a,b\n1,2\n3,4\n", r"t\.tsv has a single column, 'a,b', whose fields seem to be separated by ','"),
        ("t.jsonl", b'{"a;b": "1;2"}\n{"a;b": "3;4"}\n', None),
        ("t.csv", b"t.csv,1\nt.csv,2\n", r"t\.csv: the first row holds 't\.csv', a file like the rows below"),
        ("t.csv", b"label\ny\nx\n", None),
        ("t.csv", b"key,label\na,1\nb,2\n\na,3\n", r"t\.csv, row 4: the key 'a' stands in .*t\.csv, row 2 already"),
        ("t.csv", b"label,text\n1,a\n,\n", r"t\.csv, row 3: all values that could be a member are missing"),
        ("t.jsonl", b"", "holds no row that could be a sample: is it"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_row(tmp_path: Path, name: str, data: bytes, message: str | None) -> None:
    (tmp_path / name).write_bytes(data)
    if message is None:
        assert len(find(tmp_path / name)) == 2
        return
    with pytest.raises(SourceError, match=message):
        find(tmp_path / name)


ROWS: list[Record] = [
    {"key": "a", "label": 1, "text": 'x "y"\nz', "v": [1]},
    {"key": "b", "label": 2, "text": "\xfc", "v": [2, 3]},
    {"key": "c", "label": None, "text": "w", "v": [4]},
]
PIECES = [b'"', b"\n", b",", b"\0", b"\r", b"\xff", b"{", b"1e999", b"\\ud800"]


@pytest.mark.parametrize("form", WRITERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_a_table_or_a_typed_error(tmp_path: Path, form: str, data: st.DataObject) -> None:
    name, write = WRITERS[form]
    path = write(tmp_path / name, ROWS)
    path.write_bytes(data.draw(altered(path.read_bytes(), PIECES) | st.binary(max_size=200)))
    try:
        source = find(path)
        found = members(source)
    except SourceError as error:
        assert str(path) in str(error)  # noqa: PT017 - there may be no error at all
        return
    assert len(found) == len(source) > 0


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


def test_a_parquet_file_with_an_altered_bit_gives_all_its_rows_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"id": ["a", "b", "c"], "txt": ["x", "y", "z"]}), path, compression="none")
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        with contextlib.suppress(SourceError):
            assert len(find(path)) == 3
