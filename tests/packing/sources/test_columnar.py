"""Parquet and Arrow files with bytes in them."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.packing import members
from tests.support.tables import write_arrow, write_arrow_stream, write_parquet
from wdsdist.errors import SourceError
from wdsdist.packing.plan import shuffled_in_blocks
from wdsdist.packing.sources import find
from wdsdist.packing.sources.source import Blocks
from wdsdist.samples.sample_spec import Decoder


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
    with pytest.raises(SourceError, match=r"holds files of test and train: name one split, as in '.*/test\*"):
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
