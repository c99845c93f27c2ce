"""Tables of every kind, against what was written into them."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import fewer
from wdsdist.errors import SourceError
from wdsdist.packing.tables.table import Table, open_table
from wdsdist.packing.tables.text import JSON_TEXT

ROWS = [
    {"key": "000000012", "score": 0.5, "n": 1, "when": "2020-01-01 10:00", "ok": True},
    {"key": "000000003", "score": None, "n": 2, "when": "2020-01-02 10:00", "ok": False},
]
FORMS = [".parquet", ".arrow", ".csv", ".tsv", ".csv.gz", ".jsonl", ".jsonl.gz", "dataset"]


def written(folder: Path, form: str, rows: list[dict[str, Any]] = ROWS, group: int = 100) -> Any:
    """Write a table, and return what `open_table` takes."""
    path, table = folder / f"meta{form}", None if "json" in form else pa.Table.from_pylist(rows)
    if form == "dataset":
        import datasets

        return datasets.Dataset.from_list(rows)
    if form == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    elif form == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, group)
    else:
        if "json" in form:
            content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        else:
            sink = pa.BufferOutputStream()
            pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(delimiter="," if "c" in form else "\t"))
            content = sink.getvalue().to_pybytes()
        path.write_bytes(gzip.compress(content) if form.endswith(".gz") else content)
    return path


def rows_of(table: Table, **more: Any) -> list[dict[str, Any]]:
    return [row for batch in table.batches(**more) for row in batch.to_pylist()]


def cut_stream() -> bytes:
    """Return an Arrow stream that is cut between two batches."""
    table, sink = pa.Table.from_pylist(ROWS), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, 1)
    return sink.getvalue().to_pybytes()[:-8]


@pytest.mark.parametrize("form", FORMS)
def test_a_table_gives_its_values_whatever_its_form(tmp_path: Path, form: str) -> None:
    table = open_table(written(tmp_path, form))
    assert (table.num_rows, rows_of(table)) == (2, ROWS)
    assert rows_of(table, columns=["n", "key"]) == [{"n": row["n"], "key": row["key"]} for row in ROWS]


@pytest.mark.parametrize("form", FORMS)
@fewer(4)
@given(st.lists(st.integers(0, 22), max_size=30), st.integers(1, 9))
def test_any_rows_are_taken_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, form: str, numbers: list[int], group: int
) -> None:
    rows = [{"key": f"k{number}", "n": number * number} for number in range(23)]
    table = open_table(written(tmp_path_factory.mktemp("table"), form, rows, group))
    assert table.take(np.array(numbers, np.int64), ["n"]).column(0).to_pylist() == [n * n for n in numbers]
    assert rows_of(table, rows=group) == rows


VALUES = st.one_of(
    st.none(), st.integers(-(2**70), 2**70), st.sampled_from([1.5, "x", "2020-01-01", True, [1], {"a": 1}])
)


@fewer(3)
@given(st.lists(st.fixed_dictionaries({"key": st.text("ab1", min_size=1)}, optional={"v": VALUES}), min_size=1))
def test_json_lines_keep_every_value(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    path = written(tmp_path_factory.mktemp("table"), ".jsonl", rows)
    table = open_table(path)
    assert [row["key"] for row in rows_of(table)] == [row["key"] for row in rows]
    if "v" in table.schema.names:
        is_json = table.schema.field("v").metadata == JSON_TEXT
        for row, found in zip(rows, rows_of(table), strict=True):
            value = json.loads(found["v"]) if is_json and found["v"] is not None else found["v"]
            assert (value, type(value)) == (row.get("v"), type(row.get("v")))


def test_codes_and_long_numbers_of_a_csv_stay_strings(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "key,code,hash,n,x,zero,time,na,,big\n"
        "a,007,18446744073709551615,9223372036854775807,1.05,0,10:05,NA,1,12345678901234567.5\n"
        "b,12,3,-10,100,0.50,11:00,2,2,12345678901234567\n"
    )
    expected = {
        "key": ["a", "b"], "code": ["007", "12"], "hash": ["18446744073709551615", "3"], "n": [2**63 - 1, -10],
        "x": [1.05, 100], "zero": [0, 0.5], "time": ["10:05", "11:00"], "na": ["NA", "2"],
        "big": ["12345678901234567.5", "12345678901234567"],
    }  # fmt: skip
    found = rows_of(open_table(tmp_path / "t.csv"))
    assert {name: [row[name] for row in found] for name in found[0]} == expected


@fewer(4)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=5), min_size=1))
def test_strings_of_a_csv_are_what_the_standard_library_wrote(
    tmp_path_factory: pytest.TempPathFactory, strings: list[str]
) -> None:
    path = tmp_path_factory.mktemp("table") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([("a", "b"), *((string, "-") for string in strings)])
    assert [str(row["b"]) for row in rows_of(open_table(path))] == ["-"] * len(strings)
    are_booleans = {string.lower() for string in strings} <= {"true", "false"}
    if all(re.search("[^-0-9.eE]", string) for string in strings) and not are_booleans:  # which no number has
        assert [row["a"] for row in rows_of(open_table(path))] == strings


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", b"junk", "is not a table that can be read"),
        ("t.parquet", b"PAR1" + bytes(90) + b"PAR1", "cannot be read|is not a table"),
        ("t.arrow", b"ARROW1 not", "is not a table that can be read"),
        ("t.arrow", b"", "cannot be read|is not a table|lacks the end"),
        ("t.arrow", cut_stream(), "lacks the end of an Arrow stream, so rows are missing"),
        ("t.csv", b"", "is not a table that can be read: Empty CSV file"),
        ("t.csv", b"a,b\n1\n", "Row #2: Expected 2 columns"),
        ("t.csv", b'a,b\n1,"x\n', "ends within quotes, or is cut"),
        ("t.csv", b"key,cap\na,caf\xe9\n", "Row #2: .* invalid UTF8"),
        ("t.csv", b"key,v,v\na,1,2\n", "has two columns with the name 'v'"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16"), "is not a table that can be read"),
        ("t.jsonl", b'{"a": 1}\n{', "row 2: it is not a JSON object"),
        ("t.jsonl", b"[1]\n", "row 1: it is not a JSON object: it holds a list"),
        ("t.jsonl", b"[\n{}\n]", "row 1: .*write one object on each line"),
        ("t.jsonl", b"[" * 100_000, "row 1: it is not a JSON object"),
        ("t.jsonl", b'{"\\ud800": 1}\n', "row 1: it is not a JSON object"),
        ("t.jsonl", b'{"a": "\xff"}\n', "row 1: it is not a JSON object"),
        ("t.jsonl.gz", gzip.compress(b"{}\n" * 999, mtime=0)[:-4], "is not a table that can be read: .*end"),
        ("t.txt", b"a", "is not a table: its name must end in .parquet"),
    ],
)
def test_a_damaged_table_is_one_clear_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        rows_of(open_table(tmp_path / name))


def test_several_files_are_one_table_if_they_have_the_same_columns(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"n": [number, number]}), tmp_path / f"{number}.parquet")
    paths = sorted(tmp_path.iterdir())
    assert [row["n"] for row in rows_of(open_table(paths))] == [0, 0, 1, 1, 2, 2]
    pq.write_table(pa.table({"m": [1]}), tmp_path / "3.parquet")
    with pytest.raises(SourceError, match=r"3\.parquet has other columns than .*0\.parquet: m int64, not n int64"):
        open_table([*paths, tmp_path / "3.parquet"])


@pytest.mark.parametrize("form", [".parquet", ".csv"])
def test_a_table_without_rows_has_its_columns(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"t{form}"
    path.write_text("key\n")
    if form == ".parquet":
        pq.write_table(pa.table({"key": pa.array([], pa.string())}), path)
    table = open_table(path)
    assert (table.schema.names, table.num_rows, rows_of(table)) == (["key"], 0, [])
