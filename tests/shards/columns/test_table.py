"""Tables that people have, against what was written."""

from __future__ import annotations

import gzip
import json
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
from tests.support.memory_store import MemoryStore
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.shards.columns import table
from wdsdist.shards.columns.column import Column

ROWS = [
    {"key": "000000012", "score": 0.5, "n": 1, "when": "2020-01-01 10:00", "ok": True},
    {"key": "000000003", "score": None, "n": 2, "when": "2020-01-02 10:00", "ok": False},
]


def written(folder: Path, form: str, rows: list[dict[str, Any]] = ROWS) -> str:
    path = folder / f"meta{form}"
    if form == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form in (".csv", ".tsv"):
        options = pyarrow.csv.WriteOptions(delimiter="," if form == ".csv" else "\t")
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), path, options)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if form.endswith(".gz") else text)
    return str(path)


def listed(column: Column) -> list[Any]:
    values = column.array().tolist()
    return [None if gone else value for value, gone in zip(values, column.missing.tolist(), strict=True)]


def columns(location: str, on: str, only: list[str] | None = None) -> tuple[Column, dict[str, Column]]:
    """Return the column of a table that its rows are matched by, and the others by their names."""
    found = list(table.parts(location, on, only))
    return Column.joined([keys for keys, _ in found]), table.joined([(len(keys), others) for keys, others in found])


@pytest.mark.parametrize("form", [".parquet", ".csv", ".tsv", ".jsonl", ".jsonl.gz"])
def test_a_table_gives_its_values_whatever_its_form(tmp_path: Path, form: str) -> None:
    keys, others = columns(written(tmp_path, form), "key")
    assert listed(keys) == [row["key"] for row in ROWS]
    assert {name: listed(column) for name, column in others.items()} == {
        name: [row[name] for row in ROWS] for name in ("score", "n", "when", "ok")
    }


@pytest.mark.parametrize("form", [".parquet", ".csv", ".jsonl"])
def test_only_the_columns_that_are_wanted_are_read(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    assert list(columns(path, "json.key", ["n"])[1]) == ["n"]
    with pytest.raises(ArgumentError, match=r"has no column 'm': it has"):
        columns(path, "key", ["m"])
    with pytest.raises(ArgumentError, match=r"has no column 'uid' to match samples by: it has .*key"):
        columns(path, "uid")


def test_nested_values_have_names_with_dots_and_lists_are_left_out(tmp_path: Path) -> None:
    rows = [{"key": "a", "size": {"w": 3, "deep": {"x": "y"}}, "tags": [1]}]
    for form in (".parquet", ".jsonl"):
        _, others = columns(written(tmp_path, form, rows), "key")
        assert {name: listed(column) for name, column in others.items()} == {"size.w": [3], "size.deep.x": ["y"]}
        _, others = columns(written(tmp_path, form, rows), "key", ["size.deep.x"])
        assert list(others) == ["size.deep.x"]


@fewer(2)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"key": st.text("ab1", min_size=1, max_size=3)},
            optional={"v": st.one_of(st.none(), st.integers(-9, 9), st.sampled_from([1.5, "x", "2020-01-01", True]))},
        ),
        min_size=1,
    )
)
def test_json_lines_may_mix_types_and_lack_values(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    keys, others = columns(written(tmp_path_factory.mktemp("table"), ".jsonl", rows), "key")
    assert listed(keys) == [row["key"] for row in rows]
    expected = Column.of([row.get("v") for row in rows])
    assert others.get("v", expected).texts() == expected.texts()
    assert others.get("v", expected).missing.tolist() == expected.missing.tolist()


def test_parts_of_a_table_are_one_after_another(tmp_path: Path) -> None:
    rows = [{"key": str(number), "v": {"w": number if number % 3 else None}} for number in range(7)]
    path = written(tmp_path, ".parquet", rows)
    found = list(table._parquet(Path(path), path, "key", None, rows=2))
    assert [len(part["key"]) for part in found] == [2, 2, 2, 1]
    assert listed(Column.joined([part["key"] for part in found])) == [row["key"] for row in rows]
    assert [gone for part in found for gone in part["v.w"].missing.tolist()] == [1, 0, 0, 1, 0, 0, 1]


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": pa.array([], pa.string()), "v": pa.array([], pa.int64())}), tmp_path / "t.parquet")
    keys, others = columns(str(tmp_path / "t.parquet"), "key")
    assert (len(keys), list(others)) == (0, ["v"])


def test_columns_that_a_table_lacks_are_missing_there() -> None:
    joined = table.joined([(2, {"v": Column.of([1, 2])}), (1, {"w": Column.of(["x"])})])
    assert {name: listed(column) for name, column in joined.items()} == {"v": [1, 2, None], "w": [None, None, "x"]}


def test_arrow_types_become_kinds_or_are_left_out() -> None:
    def of(values: list[Any], kind: Any = None) -> Any:
        found = table.of_arrow(pa.chunked_array([pa.array(values[:1], kind), pa.array(values[1:], kind)]))
        return found and (found.kind, listed(found))

    assert of([1, None], pa.int8()) == ("int", [1, None])
    assert of([2**64 - 1, 1], pa.uint64()) == ("text", [str(2**64 - 1), "1"])
    assert of([0.5, 2], pa.float32()) == ("float", [0.5, 2])
    assert of([True, None], pa.bool_()) == ("bool", [True, None])
    assert of([None, None], pa.null()) == ("float", [None, None])
    assert of(["ä", None], pa.string()) == ("text", ["ä", None])
    assert of(["ä", "b"], pa.dictionary(pa.int8(), pa.string())) == ("text", ["ä", "b"])
    assert of([[1], [2]]) is None
    assert of([b"1", b"2"]) is None
    assert of(["ä", None], pa.string_view()) == ("text", ["ä", None])
    assert of([b"1", b"2"], pa.binary_view()) is None


def test_structured_arrays_are_tables(tmp_path: Path) -> None:
    array = np.array([(b"a", 1, 0.5, True), (b"b", 2, 1.5, False)], "S3,u4,f4,?")
    array.dtype.names = ("key", "n", "x", "ok")
    np.save(tmp_path / "t.npy", array)
    keys, others = columns(str(tmp_path / "t.npy"), "key")
    assert listed(keys) == ["a", "b"]
    assert {name: listed(one) for name, one in others.items()} == {"n": [1, 2], "x": [0.5, 1.5], "ok": [True, False]}
    np.save(tmp_path / "plain.npy", np.arange(3))
    with pytest.raises(ArgumentError, match="no named fields"):
        columns(str(tmp_path / "plain.npy"), "key")


def test_a_table_at_a_url_is_read(tmp_path: Path) -> None:
    with MemoryStore({"t.parquet": Path(written(tmp_path, ".parquet")).read_bytes()}) as store:
        assert listed(columns(f"{store.url}/t.parquet", "key", ["n"])[1]["n"]) == [1, 2]
        with pytest.raises(NotFoundError, match=r"faulty://.*u.parquet does not exist"):
            columns(f"{store.url}/u.parquet", "key")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", b"junk", "cannot be read as parquet"),
        ("t.csv", b"a,b\n1\n", "cannot be read as csv"),
        ("t.jsonl", b'{"a": 1}\n{', "is no JSON in line 2"),
        ("t.jsonl", b"[1]\n", "has no object in line 1"),
        ("t.jsonl", b"[" * 100_000, "is no JSON in line 1"),
        ("t.jsonl.gz", gzip.compress(b"{}", mtime=0)[:-4], "is not whole gzip data"),
        ("t.npy", b"\x93NUMPY", "is not an array without objects"),
        ("t.csv", b"key,cap\na,caf\xe9\n", "is not UTF-8 in its column 'cap'"),
        ("t.csv", b"key,v,v\na,1,2\n", "has two columns with the name 'v'"),
        ("t.csv", b"key,v,v\na,007,2\n", "has two columns with the name 'v'"),
    ],
)
def test_a_damaged_table_is_one_clear_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        columns(str(tmp_path / name), "key")


def test_an_array_that_claims_more_than_it_has_takes_no_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.zeros(10, [("key", "S3"), ("n", "u4")]))
    content = (tmp_path / "t.npy").read_bytes()
    (tmp_path / "t.npy").write_bytes(content.replace(b"(10,), }            ", b"(1000000000000000,)}"))
    with pytest.raises(SourceError, match=r"shape \(1000000000000000,\) of 7,000,000,000,000,000 bytes, but 70 follow"):
        columns(str(tmp_path / "t.npy"), "key")


def test_codes_and_long_numbers_of_a_csv_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "key,code,hash,n,x,zero,time\n"
        "a,007,18446744073709551615,9223372036854775807,1.05,0,10:05\n"
        "b,12,3,-10,100,0.50,11:00\n"
    )
    _, others = columns(str(tmp_path / "t.csv"), "key")
    assert {name: listed(one) for name, one in others.items()} == {
        "code": ["007", "12"],
        "hash": ["18446744073709551615", "3"],
        "n": [2**63 - 1, -10],
        "x": [1.05, 100],
        "zero": [0, 0.5],
        "time": ["10:05", "11:00"],
    }


def test_bytes_of_a_csv_that_nobody_asked_for_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"key,cap,n\na,caf\xe9,1\n")
    assert listed(columns(str(tmp_path / "t.csv"), "key", ["n"])[1]["n"]) == [1]


def test_pickled_arrays_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(SourceError, match="without objects"):
        columns(str(tmp_path / "t.npy"), "key")


def test_what_is_no_table_cannot_be_joined(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no table that can be joined: it must end in \.parquet"):
        columns(str(tmp_path / "keys.txt"), "key")


def test_a_list_of_lines_is_cut_at_line_breaks_alone_and_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    keys = ["a\u2028b", "c\x0bd", "e\x85f", "g h"]
    (tmp_path / "keys.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(keys).encode() + b"\n\n")
    assert table.values(str(tmp_path / "keys.txt"), "key").array().tolist() == keys
