"""Joins against a dict of Python: rows in any order, without samples, samples without rows, keys that repeat."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from tests.support.memory_store import MemoryStore
from tests.support.web import Answer, Asked, answering
from wdsdist.curation import add, columns, join
from wdsdist.errors import ArgumentError, NotFoundError
from wdsdist.shards.manifest import Manifest

KEYS = [f"{number:09}" for number in range(12)]
UIDS = [f"{number % 9:032x}" for number in range(12)]  # of which three come twice


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    samples = ({"__key__": KEYS[n], "json": {"uid": UIDS[n], "n": n}} for n in range(12))
    return wdsdist.pack(samples, tmp_path_factory.mktemp("data") / "shards", shuffle_seed=None, shard_samples=4)


def values(data: Manifest, name: str) -> list[Any]:
    found: list[Any] = columns.column(data, name).to_pylist()
    return found


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@fewer(5)
@given(
    st.lists(
        st.tuples(st.sampled_from([*KEYS, None, "nobody", "12"]), st.one_of(st.none(), st.integers(0, 9))), min_size=1
    ),
    st.integers(1, 3),
)
def test_rows_and_samples_are_matched_as_a_dict_does(
    data: Manifest, tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[Any, Any]], parts: int
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    rows = [{"key": KEYS[5], "v": 7}, *({"key": key, "v": value} for key, value in pairs)]
    schema = pa.schema([("key", pa.string()), ("v", pa.int64())])
    cut = -(-len(rows) // parts)
    for part in range(0, len(rows), cut):
        pq.write_table(pa.Table.from_pylist(rows[part : part + cut], schema), folder / f"{part:05}.parquet")
    data.add_columns(join=folder / "*.parquet", output=folder / "columns", workers=1)
    first: dict[str, Any] = {}
    for row in rows:
        if row["key"] is not None:
            first.setdefault(row["key"], row["v"])
    assert values(data, "v") == [first.get(key) for key in KEYS]
    own = [row["key"] for row in rows]
    matched = join.match(data, "key", columns.column(data, "key").chunks, [pa.array(own)], "rows")
    assert matched.tolist() == [own.index(key) if key in own else -1 for key in KEYS]


def test_rows_belong_to_all_samples_with_their_value_of_another_column(
    data: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"uid": f"{number:032x}", "text": f"<{number}>", "x": number / 2} for number in (8, 3, 77, 0)]
    path = table(tmp_path / "t.parquet", rows)
    with caplog.at_level(logging.INFO, logger="wdsdist"):
        data.add_columns(join=path, on="json.uid", output=tmp_path / "columns", workers=1)
    assert values(data, "text") == [f"<{n % 9}>" if n % 9 in (8, 3, 0) else None for n in range(12)]
    assert values(data, "x") == [n % 9 / 2 if n % 9 in (8, 3, 0) else None for n in range(12)]
    assert values(data, "json.uid") == UIDS  # the column that was matched by is there now
    assert "of 4 rows, 3 give values; of 12 samples, 8 have no row" in caplog.text


def test_columns_of_other_names_are_matched_and_numbers_as_texts(data: Manifest, tmp_path: Path) -> None:
    lines = [f"{n},{n}.5,{KEYS[n]}\n" for n in reversed(range(12))]
    (tmp_path / "t.csv").write_text("".join(["number,weight,code\n", *lines]))
    data.add_columns(join=tmp_path / "t.csv", on={"json.n": "number"}, output=tmp_path / "columns", workers=1)
    assert values(data, "weight") == [n + 0.5 for n in range(12)]
    data.add_columns(join=tmp_path / "t.csv", on={"key": "code"}, only=["number"], workers=1)  # 007 keeps its zeros
    assert values(data, "number") == [*range(12)]
    (tmp_path / "t.csv").write_text(f"code,number\n{KEYS[3]},3.5\n{KEYS[4]},four\n")
    data.add_columns(join=tmp_path / "t.csv", on={"key": "code"}, replace=True, workers=1)
    assert values(data, "number")[2:5] == ["2", "3.5", "four"]


def test_a_table_that_matches_nothing_is_refused_and_shows_why(data: Manifest, tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", [{"key": 3, "v": 1}])
    message = r"no sample's key is in .*, which has '3'; samples have key '000000000', .*json\.n '0'"
    with pytest.raises(ArgumentError, match=message):
        data.add_columns(join=path, output=tmp_path / "columns")
    assert not list((tmp_path / "columns").glob("*.parquet"))


@pytest.mark.parametrize(("on", "meant"), [("jsn.uid", "json"), ("kye", "key"), ({"key": "udi"}, "uid")])
def test_the_column_that_was_meant_by_on_is_named(data: Manifest, tmp_path: Path, on: Any, meant: str) -> None:
    path = table(tmp_path / "t.parquet", [{"uid": "3", "v": 1}])
    with pytest.raises(ArgumentError, match=f"did you mean '{meant}'"):
        data.add_columns(join=path, on=on, output=tmp_path / "columns")


def test_names_of_what_the_shards_say_are_left_out(
    data: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = table(tmp_path / "t.parquet", [{"uid": UIDS[0], "key": "mine", "bytes": 0, "v": 1}])
    added = add.add_columns(data, join=path, on={"json.uid": "uid"}, output=tmp_path / "columns", workers=1)
    assert [name for name in added if name != "json.uid"] == ["v"]
    assert "the column 'key' of" in caplog.text
    assert data.column("key").tolist() == KEYS


def test_only_some_columns_are_joined_from_several_tables_at_urls(data: Manifest, tmp_path: Path) -> None:
    one = table(tmp_path / "a.parquet", [{"key": KEYS[0], "v": 1, "w": "x"}]).read_bytes()
    other = table(tmp_path / "b.parquet", [{"key": KEYS[1], "v": 2.5}]).read_bytes()
    with MemoryStore({"m/a.parquet": one, "m/b.parquet": other}) as store:
        data.add_columns(join=f"{store.url}/m/*.parquet", only=["v"], output=tmp_path / "columns")
        assert values(data, "v") == [1, 2.5, *[None] * 10]
        assert "w" not in data.columns
        with pytest.raises(NotFoundError, match=r"nothing matches .*m/\*.csv"):
            data.add_columns(join=f"{store.url}/m/*.csv", output=tmp_path / "columns")
        with pytest.raises(NotFoundError, match=r"gone\.parquet does not exist"):
            data.add_columns(join="gone.parquet", output=tmp_path / "columns")


# Values that are there


def joined(data: Manifest, folder: Path, values_of: dict[str, Any], **more: Any) -> list[Any]:
    rows = [{"key": key, "v": value} for key, value in values_of.items()]
    data.add_columns(join=table(folder / "t.parquet", rows), output=folder / "columns", workers=1, **more)
    return values(data, "v")


@fewer(4)
@given(
    st.lists(st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 2), min_size=1), min_size=2, max_size=3)
)
def test_tables_fill_gaps_and_never_drop_values(
    data: Manifest, tmp_path_factory: pytest.TempPathFactory, tables: list[dict[str, Any]]
) -> None:
    folder, known = tmp_path_factory.mktemp("fill"), dict[str, Any]()
    for number, values_of in enumerate(tables):
        differing = sum(known.get(key, value) != value for key, value in values_of.items() if value is not None)
        replace = number == 2
        if differing and not replace:
            noun = "1 sample has" if differing == 1 else f"{differing} samples have"
            with pytest.raises(ArgumentError, match=f"{noun} another 'v' already .*nothing was written.*replace=True"):
                joined(data, folder, values_of)
        else:
            joined(data, folder, values_of, replace=replace)
            known |= {key: value for key, value in values_of.items() if value is not None}
        if (folder / "columns" / "v.parquet").exists():
            assert values(data, "v") == [known.get(key) for key in KEYS]


def packed(folder: Path, numbers: range) -> Manifest:
    samples = ({"__key__": f"{n:03}", "txt": "x" * n} for n in numbers)
    append = (folder / "data").exists()
    return wdsdist.pack(samples, folder / "data", shuffle_seed=None, shard_samples=4, append=append)


def csv(path: Path, header: str, rows: dict[str, Any]) -> Path:
    path.write_text(f"{header}\n" + "".join(f"{key},{value}\n" for key, value in rows.items()))
    return path


def test_an_appended_data_set_gets_its_rows_from_tables_that_are_joined_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, a, b = packed(tmp_path, range(8)), tmp_path / "a.csv", tmp_path / "b.csv"
    data.add_columns(join=csv(a, "key,v", {"000": 1, "009": 9}))
    data.add_columns(join=csv(b, "key,v", {"001": 2, "010": 10, "009": 99}), replace=True)
    data.add_columns(fields=["txt.length"])
    before = values(data, "v")
    grown = packed(tmp_path, range(8, 12))
    content = (tmp_path / "data" / "columns" / "v.parquet").read_bytes()
    a.unlink()
    os.mkfifo(a)  # to open it would block
    assert add.add_columns(grown, workers=1) == ["txt.length"]
    assert f"new shards lack the values of joined columns (v): join their tables again ({a}, {b})" in caplog.text
    assert (tmp_path / "data" / "columns" / "v.parquet").read_bytes() == content
    with pytest.raises(ArgumentError, match=rf"'v' has values for 2 of the 3 shards .*: join {a}, {b} again"):
        values(grown, "v")
    a.unlink()
    grown.add_columns(join=csv(a, "key,v", {"009": 9, "011": 11}))
    assert values(grown, "v") == [*before, None, 9, None, 11]
    grown.add_columns(join=csv(b, "key,v", {"010": 10}))
    assert values(grown, "v") == [*before, None, 9, 10, 11]
    assert values(grown, "txt.length") == list(range(12))
    assert add.add_columns(grown) == []


def test_columns_that_were_joined_by_each_other_are_named_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = packed(tmp_path, range(8))
    data.add_columns(join=csv(tmp_path / "a.csv", "key,a", {f"{n:03}": f"a{n}" for n in range(12)}))
    data.add_columns(join=csv(tmp_path / "b.csv", "a,b", {f"a{n}": f"b{n}" for n in range(12)}), on="a")
    data.add_columns(join=csv(tmp_path / "c.csv", "b,a", {f"b{n}": f"a{n}" for n in range(12)}), on="b")
    grown = packed(tmp_path, range(8, 12))
    assert add.add_columns(grown) == []
    paths = ", ".join(str(tmp_path / f"{name}.csv") for name in "abc")
    assert f"joined columns (a, b): join their tables again ({paths})" in caplog.text
    with pytest.raises(ArgumentError, match=r"the column 'a' has values for 2 of the 3 shards .*: join .*a\.csv"):
        grown.add_columns(join=tmp_path / "b.csv", on="a")
    grown.add_columns(join=tmp_path / "a.csv").add_columns(join=tmp_path / "b.csv", on="a")
    assert values(grown, "b") == [f"b{n}" for n in range(12)]


def test_a_field_does_not_drop_what_was_joined(data: Manifest, tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", [{"key": KEYS[0], "json.n": 5}])
    data.add_columns(join=path, output=tmp_path / "columns", workers=1)
    with pytest.raises(ArgumentError, match=r"1 sample has another 'json\.n' already than the members; nothing was"):
        data.add_columns(fields=["json.n"], workers=1)
    data.add_columns(fields=["json.n"], replace=True, workers=1)
    assert values(data, "json.n") == list(range(12))


def test_a_table_at_a_signed_url_completes_a_stale_column_and_its_signature_is_not_kept(tmp_path: Path) -> None:
    def packed_json(numbers: range, *, append: bool) -> Manifest:
        samples = ({"__key__": f"{n:03}", "json": {"n": n if n % 2 else None}} for n in numbers)
        return wdsdist.pack(samples, tmp_path / "data", shuffle_seed=None, shard_samples=2, append=append)

    packed_json(range(4), append=False).add_columns(fields=["json.n"], workers=1)
    data = packed_json(range(4, 6), append=True)
    content = table(tmp_path / "t.parquet", [{"key": f"{n:03}", "json.n": n} for n in range(6)]).read_bytes()

    def answer(asked: Asked) -> Answer:
        if asked.method == "HEAD" or not asked.path.endswith("?signature=secret"):
            return 403, {}, b""
        if "range" in asked.headers:
            return 206, {"Content-Range": f"bytes 0-0/{len(content)}"}, content[:1]
        return 200, {}, content

    with answering(answer) as (url, _):
        data.add_columns(join=f"{url}/t.parquet?signature=secret", workers=1)
    assert values(data, "json.n") == list(range(6))
    assert b"secret" not in (tmp_path / "data" / "columns" / "json.n.parquet").read_bytes()
