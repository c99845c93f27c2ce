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

from tests.support.tables import members
from wdsdist.errors import SourceError
from wdsdist.packing.sources import find

GOOD = {
    "csv": b'key,label,text\na,1,"x ""y""\nz"\nb,2,\xc3\xbc\n\nc,,w\n',
    "tsv": b"key\tlabel\ttext\na\t1\tx y\nb\t2\t\xc3\xbc\nc\t\tw\n",
    "jsonl": b'{"key": "a", "label": 1, "text": "x"}\n\n{"key": "b", "text": "\xc3\xbc", "more": [1, {"c": null}]}\n',
}


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


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    def change(edits: list[tuple[int, int, bytes]]) -> bytes:
        changed = data
        for start, length, piece in edits:
            at = start % (len(changed) + 1)
            changed = changed[:at] + piece + changed[at + length :]
        return changed

    piece = st.binary(max_size=3) | st.sampled_from(
        [b'"', b"\n", b",", b"\0", b"\r", b"\xff", b"{", b"1e999", b"\\ud800"]
    )
    return st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5), piece), min_size=1, max_size=4).map(change)


@pytest.mark.parametrize("kind", sorted(GOOD))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_a_table_or_a_typed_error(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    content = data.draw(mutated(GOOD[kind]) | st.binary(max_size=200))
    path = tmp_path / f"t.{kind}"
    path.write_bytes(content)
    try:
        source = find(path)
    except SourceError as error:
        assert str(path) in str(error)  # noqa: PT017 - there may be no error at all
        return
    assert len(members(source)) == len(source) > 0


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


@pytest.mark.parametrize("bit", [3])
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
