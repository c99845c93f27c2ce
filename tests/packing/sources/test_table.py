"""Tables as samples: what the rules make of columns, the same for every format."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import wdsdist
from tests.support.damage import altered
from tests.support.packing import members, packed_members
from tests.support.tables import WRITERS, Record, write_arrow, write_arrow_stream, write_parquet
from wdsdist.errors import SourceError
from wdsdist.packing import pack
from wdsdist.packing.plan import shuffled_in_blocks
from wdsdist.packing.sources import find
from wdsdist.packing.sources import table as tables
from wdsdist.packing.sources.source import Blocks
from wdsdist.packing.tables.table import open_table
from wdsdist.samples.sample_spec import Decoder
from wdsdist.shards import open as catalog
from wdsdist.shards.tar.writer import stored_size


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Writes records as a table in each of the formats, beside some images."""
    name, write = WRITERS[request.param]
    for number in range(7):
        (tmp_path / "img").mkdir(exist_ok=True)
        (tmp_path / "img" / f"{number}.v2.JPG").write_bytes(bytes([number]) * (number + 1))
    return lambda records: write(tmp_path / name, records)


def records() -> list[Record]:
    return [
        {
            "image": f"img/{number}.v2.JPG",
            "label": number % 3,
            "caption": f'"söt", said {number}\nand\tleft' if number != 2 else None,
            "width": number * 0.5,
            "source": "web",
        }
        for number in range(7)
    ]


def test_columns_become_members_by_the_rules(written: Any) -> None:
    source = find(written(records()))
    found = members(source)
    assert list(found) == [f"{number:09d}" for number in range(7)]
    assert found["000000003"] == {
        "cls": b"0",
        "jpg": b"\3\3\3\3",
        "json": b'{"width": 1.5, "source": "web"}',
        "txt": '"söt", said 3\nand\tleft'.encode(),
    }
    assert "txt" not in found["000000002"]
    assert source.contents.notes == {
        "columns": {"image": "*", "label": "cls", "caption": "txt", "width": "json", "source": "json"}
    }


def test_sizes_are_exact_and_rows_come_in_any_order(written: Any) -> None:
    source = find(written(records()))
    everything = members(source)
    assert source.contents.sizes.tolist() == [
        sum(stored_size(f"{key}.{extension}", len(data)) for extension, data in found.items())
        for key, found in everything.items()
    ]
    assert list(members(source, [5, 0, 6]).items()) == [
        (f"{number:09d}", everything[f"{number:09d}"]) for number in (5, 0, 6)
    ]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"image": "left.jpeg"}, {"cls", "left.jpeg", "json", "txt"}),
        ({"image": ""}, {"cls", "json", "txt"}),
        ({"label": "n.txt", "width": "", "source": ""}, {"n.txt", "jpg", "txt"}),
        ({"caption": "json", "width": "npy", "source": "source.txt"}, {"cls", "jpg", "json", "npy", "source.txt"}),
    ],
)
def test_columns_can_be_mapped(written: Any, columns: dict[str, str], wanted: set[str]) -> None:
    source = find(written(records()), columns=columns)
    assert set(members(source, [4])["000000004"]) == wanted
    assert {name: source.contents.notes["columns"][name] for name in columns} == columns


@pytest.mark.parametrize("name", ["__key__", "key", "id", "Id"])
def test_a_column_gives_the_key(written: Any, name: str) -> None:
    rows = [{name: f"a/{number}", "id2": 1, **record} for number, record in enumerate(records())]
    assert list(members(find(written(rows)))) == [f"a/{number}" for number in range(7)]


@pytest.mark.parametrize("key", ["a.b", "", "a/", "a\0b", "../a", "a/../../b", "/a", None])
def test_a_value_that_can_be_no_key_is_refused(written: Any, key: str | None) -> None:
    rows = [{"key": "first", "n": 1}, {"key": key, "n": 2}]
    with pytest.raises(SourceError, match=r"cannot be a key.*columns=\{'key': ''\}"):
        find(written(rows))


def test_paths_of_files_that_lie_elsewhere_are_not_packed_as_texts(written: Any) -> None:
    rows = [{"image": f"else where/{number}.jpg", "label": 1} for number in range(3)]
    with pytest.raises(SourceError, match=r"looks like paths, but 'else where/0\.jpg' is not a file beside it"):
        find(written(rows))
    assert members(find(written(rows), columns={"image": "txt"}))["000000000"]["txt"] == b"else where/0.jpg"
    with pytest.raises(SourceError, match=r"else where/0\.jpg does not exist"):
        find(written(rows), columns={"image": "jpg"})


def test_a_file_that_a_row_names_belongs_to_the_fingerprint(written: Any, tmp_path: Path) -> None:
    path = written(records())
    before = find(path).digest
    assert find(path).digest == before
    assert find(path, columns={"image": "jpg"}).digest != before
    (tmp_path / "img" / "3.v2.JPG").write_bytes(b"other")
    assert find(path).digest != before


def broken_records() -> list[Record]:
    """Six rows: the image of the second is not there, the fifth has the key of the first, the last has a bad key."""
    found = [{"key": f"k{number}", "image": f"img/{number}.v2.JPG", "label": number % 3} for number in range(6)]
    found[1]["image"] = "img/gone.jpg"
    found[4]["key"] = "k0"
    found[5]["key"] = "k.5"
    return found


def test_rows_that_cannot_be_packed_are_left_out_and_listed(written: Any, tmp_path: Path) -> None:
    table = written(broken_records())
    with pytest.raises(SourceError, match=r"img/gone\.jpg does not exist: leave such samples out with on_error='skip'"):
        find(table)
    source = find(table, on_error="skip")
    assert {key: found["jpg"] for key, found in members(source).items()} == {
        "k0": b"\0", "k2": b"\2\2\2", "k3": b"\3\3\3\3"
    }  # fmt: skip
    assert members(source, [2]) == {"k3": {"jpg": b"\3\3\3\3", "cls": b"0"}}
    assert source.contents.sizes.tolist() == [2048] * 3
    blocks = source.contents.blocks
    assert blocks is None or blocks.cuts.tolist() == [0, 2, 3]

    for _ in range(2):  # the second time, all is there already
        manifest = pack(table, tmp_path / "out", on_error="skip", shard_samples=2, workers=2)
        assert (manifest.num_samples, manifest.extra["left_out"]) == (3, 3)
    report = [json.loads(line) for line in (tmp_path / "out" / "pack-report.jsonl").read_text().splitlines()]
    assert [(one["key"], one["shard"]) for one in report] == [("k1", None), ("k0", None), ("k.5", None)]
    assert "img/gone.jpg does not exist" in report[0]["reason"]
    assert "the key 'k0' stands in" in report[1]["reason"]
    assert not any(str(tmp_path) in one["reason"] for one in report)
    assert catalog.open(tmp_path / "out").num_samples == 3


def test_a_file_that_vanishes_after_the_listing_costs_its_sample_only(tmp_path: Path) -> None:
    """Of bytes or paths in Parquet, the files are looked at when they are written."""
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(b"x")
    image = pa.array([{"bytes": b"y" if number == 0 else None, "path": f"{number}.jpg"} for number in range(4)])
    pq.write_table(pa.table({"image": image}), tmp_path / "t.parquet")
    (tmp_path / "2.jpg").unlink()
    with pytest.raises(SourceError, match=r"t\.parquet, row 2: .*2\.jpg does not exist"):
        pack(tmp_path / "t.parquet", tmp_path / "raised", workers=1)
    manifest = pack(tmp_path / "t.parquet", tmp_path / "out", workers=1, on_error="skip")
    assert (manifest.num_samples, manifest.extra["left_out"]) == (3, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "a,label\nx,1\ny,2,3\nz,3\nw\nlast,5\n"),
        ("a.tsv", "a\tlabel\nx\t1\ny\t2\t3\nz\t3\nw\nlast\t5\n"),
        ("a.jsonl", '{"a":"x","label":1}\n{"a":\n{"a":"z","label":3}\n[]\n{"a":"last","label":5}\n'),
    ],
)
def test_rows_that_cannot_be_parsed_are_left_out_on_request(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=r"[Rr]ow #?\d: (Expected 2 columns, got 3|it is not a JSON object)"):
        find(tmp_path / name)
    manifest = pack(tmp_path / name, tmp_path / "dest", on_error="skip", shuffle_seed=None, workers=1)
    assert manifest.num_samples == 3
    lines = (tmp_path / "dest" / "pack-report.jsonl").read_text().splitlines()
    first = 1 if name == "a.jsonl" else 2
    assert open_table(tmp_path / name, skips=True).row_name(1) == f"{tmp_path / name}, row {first + 2}"
    assert [json.loads(line)["key"] for line in lines] == [f"row {first + 1}", f"row {first + 3}"]
    members = packed_members(tmp_path / "dest")
    assert [data for name, data in members.items() if name.endswith(".txt")] == [b"x", b"z", b"last"]


# Tables packed into shards: by several processes, to the same bytes, and with what was chosen in the manifest


def test_parquet_beyond_the_memory_is_shuffled_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"key": [f"{n:04}" for n in range(400)], "raw": [bytes([n % 256]) * 5000 for n in range(400)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 300_000)
    pack(tmp_path / "t.parquet", tmp_path / "out", shard_samples=20, workers=2)
    found = packed_members(tmp_path / "out")
    assert sorted(found) == [f"{number:04}.raw" for number in range(400)]
    groups = [int(name[:4]) // 10 for name in found]
    assert groups != sorted(groups)
    shards = [set(groups[start : start + 20]) for start in range(0, 400, 20)]
    assert max(map(len, shards)) <= 2 * 300_000 // 50_000


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("columns", [None, {"label": "cls"}])
def test_texts_of_classes_become_numbers_with_a_list_of_classes(
    columns: dict[str, str] | None, form: str, tmp_path: Path
) -> None:
    labels = ["dog", "cat", None, "söt dog", "cat"]
    table = WRITERS[form][1](
        tmp_path / WRITERS[form][0],
        [{"key": f"k{number}", "caption": "x", "label": label} for number, label in enumerate(labels)],
    )
    manifest = pack(table, tmp_path / "dest", columns=columns, workers=1)
    assert manifest.extra["classes"] == ["cat", "dog", "söt dog"]
    members = packed_members(tmp_path / "dest")
    assert {key: data for key, data in members.items() if key.endswith(".cls")} == {
        "k0.cls": b"1",
        "k1.cls": b"0",
        "k3.cls": b"2",
        "k4.cls": b"0",
    }
    assert members["k0.txt"] == b"x"


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        (("0", "1", "2"), False),
        (("2", "10", "1"), True),
        (("1", "2"), True),
        (("a", "2"), True),
        (("7", "NaN", "12"), True),
    ],
)
def test_integers_as_texts_that_would_become_other_classes_are_refused_unless_they_are_mapped(
    labels: tuple[str, ...], refused: bool, tmp_path: Path
) -> None:
    source = tmp_path / "t.jsonl"
    source.write_text("\n".join(json.dumps({"caption": "x", "label": label}) for label in labels))
    if refused:
        with pytest.raises(SourceError, match=r"columns={'label': 'index'}"):
            pack(source, tmp_path / "dest", workers=1)
    manifest = pack(source, tmp_path / "dest", columns={"label": "cls"} if refused else None, workers=1)
    assert manifest.extra["classes"] == sorted(labels)
    if not {"a", "NaN"} & set(labels):
        manifest = pack(source, tmp_path / "as-they-are", columns={"label": "index"}, workers=1)
        data = wdsdist.StreamingDataset(manifest, decode=True, shuffle=False)
        assert {data[number]["index"] for number in range(len(labels))} == set(map(int, labels))


# Tables that are damaged or odd: an error that names file and row, or all samples


@pytest.mark.parametrize(("name", "text"), [("t.jsonl", '{"a;b": "1;2"}\n' * 2), ("t.csv", "label\ny\nx\n")])
def test_a_single_column_is_a_table(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(find(tmp_path / name)) == 2


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


# Parquet and Arrow files with bytes in them


def png(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (number, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def table(rows: int = 20) -> pa.Table:
    return pa.table(
        {
            "image": pa.array([{"bytes": png(number), "path": None} for number in range(rows)]),
            "raw data": pa.array([bytes(number) if number % 4 else None for number in range(rows)]),
            "embedding": pa.array([[number, 0.5] for number in range(rows)], pa.list_(pa.float32())),
            "label": pa.array([number % 2 for number in range(rows)], pa.int8()),
            "split": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
            "when": pa.array([number * 86_400_000 for number in range(rows)], pa.timestamp("ms")),
        }
    )


def write(path: Path, content: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(content, path, row_group_size=6)
        return path
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=6)
    return path


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_bytes_and_lists_become_members(tmp_path: Path, name: str) -> None:
    source = find(write(tmp_path / name, table()))
    found = members(source, [7, 4])
    assert source.contents.notes["columns"] == {
        "image": "png", "raw data": "raw_data", "embedding": "embedding.npy", "label": "cls", "split": "txt",
        "when": "json",
    }  # fmt: skip
    assert "raw_data" not in found["000000004"]
    seven = found["000000007"]
    assert seven["png"] == png(7)
    assert seven["raw_data"] == bytes(7)
    array = Decoder(True)("npy", seven["embedding.npy"])
    assert (array.dtype, array.tolist()) == (np.float32, [7.0, 0.5])
    assert json.loads(seven["json"]) == {"when": "1970-01-08T00:00:00"}
    assert (seven["cls"], seven["txt"]) == (b"1", b"b")


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_whole_numbers_of_which_some_are_missing_stay_whole(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, pa.table({"ids": pa.array([[1, 2**60 + 1], [None, 2**60 + 1]])}))
    with pytest.raises(SourceError, match=r"'ids'.*columns={'ids': 'ids.json'}"):
        find(path)
    found = members(find(path, columns={"ids": "ids.json"}))
    assert json.loads(found["000000001"]["ids.json"]) == [None, 2**60 + 1]


def test_a_struct_without_bytes_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "0.flac").write_bytes(b"sound")
    rows = [
        {"audio": {"bytes": None, "path": "0.flac"}, "n": 0},
        {"audio": {"bytes": b"OggS", "path": "1.flac"}, "n": 1},
    ]
    for path in (write_parquet(tmp_path / "t.parquet", rows), write_arrow(tmp_path / "t.arrow", rows)):
        assert [found["flac"] for found in members(find(path)).values()] == [b"sound", b"OggS"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_folder_or_a_pattern_of_files_is_one_table(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "README.md").write_text("notes")
    for number in range(3):
        write(folder / f"train-{number}{suffix}", table(10).slice(number))
    everything = members(find(folder))
    assert list(everything) == [f"{number:09d}" for number in range(27)]
    assert members(find(folder / f"train-[12]*{suffix}")) == {
        f"{number - 10:09d}": found for number, found in enumerate(everything.values()) if number >= 10
    }
    write(folder / f"test-0{suffix}", table(2))
    with pytest.raises(SourceError, match=r"holds files of test and train: name one split, as in '.*/\*test\*"):
        find(folder)


def test_a_source_of_nothing_but_tables_in_folders_and_notes_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    (root / "data").mkdir(parents=True)
    for number in range(20):
        write_parquet(root / "data" / f"{number}.parquet", [{"label": number}])
    (root / "README.md").write_text("notes")
    message = rf"holds 20 files of many samples each, such as data/0\.parquet: .* '{root}/data'; .* kind='folder'"
    with pytest.raises(SourceError, match=message):
        find(root)
    assert len(find(f"{root}/data/*.parquet")) == len(find(root / "data")) == 20
    assert len(find(root, kind="folder")) == 21
    shutil.make_archive(str(tmp_path / "a"), "zip", root)
    with pytest.raises(SourceError, match=r"holds 20 files of many samples each, such as data/0\.parquet"):
        find(tmp_path / "a.zip")


def test_offsets_that_point_out_of_the_file_are_not_followed(tmp_path: Path) -> None:
    path = write_arrow_stream(tmp_path / "t.arrow", [{"data": b"x" * number} for number in (1, 2, 3)])
    offsets = np.array([0, 1, 3, 6], np.int32).tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 1, 10**6, 6], np.int32).tobytes()))
    with pytest.raises(SourceError, match=r"t\.arrow is not a table that can be read: .*offset"):
        find(path)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100)), min_size=1, max_size=30), st.integers(0, 200))
def test_blocks_are_shuffled_with_each_sample_once(blocks: list[tuple[int, int]], limit: int) -> None:
    cuts = np.concatenate(([0], np.cumsum([rows for rows, _ in blocks])))
    order = shuffled_in_blocks(Blocks(cuts, np.array([weight for _, weight in blocks]), limit), 1)
    assert sorted(order.tolist()) == list(range(cuts[-1]))
