"""Manifests in text that are damaged or odd: an error that names file and row, or all samples."""

from __future__ import annotations

import csv
from pathlib import Path

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
        ("t.csv", b"", r"t\.csv is empty"),
        ("t.csv", b"\xef\xbb\xbf", r"t\.csv is empty"),
        ("t.csv", b"a,b\n", "holds no row that could be a sample: is it"),
        (
            "t.csv",
            b"a,label\n1,2\n3\n",
            r"t\.csv, row 3: Expected 2 columns, got 1: 3: quote fields",
        ),
        ("t.csv", b'a,label\n"1\n\n",2\n3,4,5\n', r"t\.csv, row 3: Expected 2 columns, got 3"),
        ("t.csv", b'a,b\n1,2\n"3,4\n5,6\n', r"t\.csv, row 3: Expected 2 columns, got 1"),
        ("t.csv", b'a,b\n1,2\n3,"4\n5,6\n', r"t\.csv ends within quotes, or is cut: fetch it again"),
        ("t.csv", b'a,b\n1,2\n3,"4', r"t\.csv ends within quotes, or is cut: fetch it again"),
        ("t.csv", b"a,b\n1,2\n3,\xff\n", r"t\.csv, row 3, column 'b': byte 0, 0xff, is not UTF-8"),
        ("t.csv", "a,b\n".encode("utf-16"), r"t\.csv is in UTF-16"),
        ("t.csv", b"a,a\n1,2\n", "two columns with the name 'a'"),
        ("t.csv", b"a,b\n1," + b"x" * (17 << 20), r"t\.csv has a row of more than 16,777,216 bytes"),
        ("t.csv", b"a;b\n1;2\n3;4\n", r"t\.csv has a single column, 'a;b', whose fields seem to be separated by ';'"),
        ("t.csv", b"a;b\n1;2\n34\n", None),
        ("t.tsv", b"a,b\n1,2\n3,4\n", r"t\.tsv has a single column, 'a,b', whose fields seem to be separated by ','"),
        ("t.jsonl", b'{"a;b": "1;2"}\n{"a;b": "3;4"}\n', None),
        ("t.csv", b"t.csv,1\nt.csv,2\n", r"t\.csv: the first row holds 't\.csv', a file like those of the rows below"),
        ("t.csv", b"label\ny\nx\n", None),
        ("t.csv", b"key,label\na,1\nb,2\n\na,3\n", r"t\.csv, row 4: the key 'a' stands in .*t\.csv, row 2 already"),
        ("t.csv", b"label,text\n1,a\n,\n", r"t\.csv, row 3: all values that could be a member are missing"),
        ("t.jsonl", b"", "holds no row that could be a sample: is it"),
        ("t.jsonl", b'{"a": 1}\n{"a": 1\n', r"t\.jsonl, row 2: it is not JSON"),
        ("t.jsonl", b'{"a": 1}\n\n[1]\n', r"t\.jsonl, row 2: it holds a list, not an object"),
        ("t.jsonl", b'{"a": ' + b"[" * 200_000, r"t\.jsonl, row 1: it is not JSON"),
        ("t.jsonl", b'{"text": "\\ud800"}\n', r"t\.jsonl, row 1: .*surrogates not allowed"),
        ("t.jsonl", b'{"key": "\\ud800", "n": 1}\n', r"t\.jsonl, row 1: .*surrogates not allowed"),
        ("t.jsonl", b'{"\\ud800": 1}\n', r"t\.jsonl, row 1: .*surrogates not allowed"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_row(tmp_path: Path, name: str, data: bytes, message: str | None) -> None:
    (tmp_path / name).write_bytes(data)
    if message is None:
        assert len(find(tmp_path / name)) == 2
        return
    with pytest.raises(SourceError, match=message):
        find(tmp_path / name)


def test_of_a_table_all_of_whose_rows_are_bad_the_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1\n2\n")
    reason = r"holds no row that could be a sample, such as row 2: it has 1 fields, .*: is it the right file\?"
    with pytest.raises(SourceError, match=reason):
        find(tmp_path / "t.csv", on_error="skip")


def test_a_field_of_a_csv_may_be_long(tmp_path: Path) -> None:
    before = csv.field_size_limit(1000)  # as another library may have it
    try:
        (tmp_path / "t.csv").write_text(f"key,text\na,{'x' * 200_000}\n")
        assert members(find(tmp_path / "t.csv")) == {"a": {"txt": b"x" * 200_000}}
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_marks_and_line_ends_of_other_systems_change_nothing(tmp_path: Path, start: bytes, end: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(start + b"key,text" + end + b'a,"x"' + end + end + b"b,y")
    assert members(find(tmp_path / "t.csv"), [1, 0]) == {"a": {"txt": b"x"}, "b": {"txt": b"y"}}


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",text,\n0,x,9\n1,y,9\n")
    source = find(tmp_path / "t.csv")
    assert members(source) == {"000000000": {"txt": b"x"}, "000000001": {"txt": b"y"}}
    assert source.notes == {"columns": {"text": "txt"}}


@pytest.mark.parametrize(
    ("values", "stored"),
    [(["1", "2"], "[1, 2]"), (["1", "2.5"], "[1.0, 2.5]"), (["007", "1"], '["007", "1"]'), (["1", "x"], '["1", "x"]')],
)
def test_numbers_of_a_csv_are_told_by_all_values(tmp_path: Path, values: list[str], stored: str) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n" + "".join(f"{value},p,q\n" for value in values))
    found = [sample["json"].decode() for sample in members(find(tmp_path / "t.csv")).values()]
    assert "[" + ", ".join(text.partition('"a": ')[2].partition(",")[0] for text in found) + "]" == stored


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


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_the_tables_that_are_changed_are_whole(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"t.{kind}").write_bytes(GOOD[kind])
    assert len(find(tmp_path / f"t.{kind}")) == (2 if kind == "jsonl" else 3)
