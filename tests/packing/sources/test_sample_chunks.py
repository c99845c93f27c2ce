"""Folders of MosaicML Streaming and LitData, as their libraries wrote them (`data`): bytes, order and labels are kept.

Made by mosaicml-streaming 0.13.0 and litdata 0.2.76 from 12 samples: a JPEG in the grey ``20 n``, the label ``n % 3``,
the caption ``picture n``, the weight ``n / 4``, and for MDS arrays and JSON; ``litdata_rows`` has lists and objects in
place of the JPEG.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

import wdsdist
from tests.support.trees import unpack
from wdsdist.errors import SourceError

DATA = Path(__file__).parent / "data"
KINDS = ("mds", "mds_zstd", "litdata")


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """Copies one of the folders, to be damaged."""
    return lambda name: Path(shutil.copytree(DATA / name, tmp_path / name))


def change(folder: Path, act: Callable[[Any], None]) -> None:
    index = json.loads((folder / "index.json").read_text())
    act(index)
    (folder / "index.json").write_text(json.dumps(index))


def packed(source: Path, dest: Path, **options: Any) -> wdsdist.StreamingDataset:
    wdsdist.pack(source, dest, **{"shuffle_seed": None, "shard_samples": 5, "workers": 2, **options})
    return wdsdist.StreamingDataset(dest)


@pytest.mark.parametrize("name", KINDS)
def test_samples_keep_their_order_labels_and_bytes(name: str, tmp_path: Path) -> None:
    dataset = packed(DATA / name, tmp_path / "dest")
    stored = b"".join(path.read_bytes() for path in (DATA / name.removesuffix("_zstd")).glob("*-*.bin"))
    stored += b"".join(path.read_bytes() for path in (DATA / name.removesuffix("_zstd")).glob("*.mds"))
    assert dataset.num_samples == 12
    for number in range(12):
        sample = dataset[number]
        assert sample["cls"] == str(number % 3).encode()
        assert sample["txt"] == f"picture {number}".encode()
        assert sample["jpg"] in stored
        assert np.asarray(Image.open(io.BytesIO(sample["jpg"]))).mean() == pytest.approx(20 * number, abs=2)
        assert json.loads(sample["json"])["weight"] == number / 4


def test_arrays_and_json_of_mds_are_read_in_each_of_their_forms(tmp_path: Path) -> None:
    dataset = packed(DATA / "mds", tmp_path / "dest")
    for number in range(12):
        sample = dataset[number]
        box, tokens = (np.load(io.BytesIO(sample[name])) for name in ("box.npy", "tokens.npy"))
        assert (box.dtype, box.tolist()) == (np.float32, [number, number + 1, number + 2, number + 3])
        assert (tokens.dtype, tokens.tolist()) == (np.uint16, list(range(number + 1)))
        assert json.loads(sample["json"])["meta"] == {"n": number}


def test_samples_that_litdata_stores_as_arrow_rows_are_read(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("litdata_rows")
    dataset = packed(folder, tmp_path / "dest")
    for number in range(12):
        sample = dataset[number]
        assert (int(sample["cls"]), sample["txt"].decode()) == (number % 3, f"picture {number}")
        assert json.loads(sample["json"]) == {
            "weight": number / 4,
            "tags": [f"t{number}"] * (number % 3),
            "size": {"width": 2**60 + number, "depth": None if number % 2 else 1},
        }
    chunk = folder / "chunk-0-1.bin"
    chunk.write_bytes(chunk.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"chunk-0-1\.bin does not end as other files"):
        wdsdist.pack(folder, tmp_path / "other")


@pytest.mark.parametrize("name", KINDS)
def test_columns_can_be_mapped_and_shuffled_in_parallel(name: str, tmp_path: Path) -> None:
    columns = {"caption": "", "label": "cls", "weight": "weight.json"}
    dataset = packed(DATA / name, tmp_path / "dest", columns=columns, shuffle_seed=3)
    assert sorted(float(dataset[number]["weight.json"]) for number in range(12)) == [n / 4 for n in range(12)]
    assert all("txt" not in dataset[number] for number in range(12))


@pytest.mark.parametrize(("name", "file"), [("mds", r"shard\.00000\.mds"), ("litdata", r"chunk-0-0\.bin")])
def test_a_folder_of_such_folders_and_files_without_their_index_are_refused(
    name: str, file: str, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "all").mkdir()
    copied(name).rename(tmp_path / "all" / "a")
    with pytest.raises(SourceError, match=rf"all/a/{file} is one of the files of .*: pack the folder that has their"):
        packed(tmp_path / "all", tmp_path / "dest")
    (tmp_path / "all" / "a" / "index.json").unlink()
    with pytest.raises(SourceError, match=rf"all/a/{file} is one of the files of"):
        packed(tmp_path / "all" / "a", tmp_path / "dest")
    assert not (tmp_path / "dest" / "index.json").exists()


def test_compressed_files_of_litdata_among_others_are_refused(tmp_path: Path) -> None:
    unpack(tmp_path / "all", {"a/chunk-0-0.zstd.bin": b"x", "a/chunk-0-1.zstd.bin": b"x", "1.bin": b"x"})
    with pytest.raises(SourceError, match=r"all/a/chunk-0-0\.zstd\.bin is one of the files of .* or LitData"):
        packed(tmp_path / "all", tmp_path / "dest")


@pytest.mark.parametrize("name", KINDS)
def test_a_remote_folder_is_refused(name: str, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in (DATA / name).iterdir():
        memory.pipe(f"memory://chunks/{name}/{path.name}", path.read_bytes())
    with pytest.raises(SourceError, match=r"is one of the files of .* index\.json, once .* on this machine"):
        wdsdist.pack(f"memory://chunks/{name}", tmp_path / "dest")


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_a_cut_and_a_damaged_file_are_errors_that_name_it(
    name: str, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied(name)
    file = sorted(path for path in folder.iterdir() if path.name != "index.json")[1]
    whole = file.read_bytes()
    for damaged in (whole[:-1], b"\xff" * len(whole), b""):
        file.write_bytes(damaged)
        with pytest.raises(wdsdist.errors.WdsdistError, match=file.name):
            packed(folder, tmp_path / "dest")
    file.unlink()
    with pytest.raises(SourceError, match=rf"{file.name} does not exist, but .*index.json names it: fetch it again"):
        packed(folder, tmp_path / "dest")


def test_a_count_beyond_a_file_whose_size_no_four_divide_is_an_error(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("mds")
    file = folder / "shard.00002.mds"
    content = file.read_bytes()
    assert len(content) % 4
    file.write_bytes(b"\xff\xff\xff\x7f" + content[4:])
    with pytest.raises(SourceError, match=r"shard.00002.mds is damaged: its head tells of 2,147,483,647 samples"):
        packed(folder, tmp_path / "dest")


def test_sizes_that_do_not_add_up_are_an_error(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("litdata")
    file = folder / "chunk-0-0.bin"
    content = bytearray(file.read_bytes())
    first = int.from_bytes(content[4:8], "little")
    content[first] ^= 1
    file.write_bytes(content)
    with pytest.raises(SourceError, match=r"chunk-0-0.bin, sample 0: has \d+ bytes, and its fields take \d+"):
        packed(folder, tmp_path / "dest")


@pytest.mark.parametrize(
    ("name", "act", "message"),
    [
        ("mds", lambda index: index["shards"][1].update(samples=4), r"tells of 3 samples, its index of 4"),
        ("mds", lambda index: index["shards"][1].update(format="json"), r"the format 'json', version 2, are not read"),
        ("mds", lambda index: index["shards"][1].update(compression="br"), r"compression 'br' is not read here"),
        ("mds", lambda index: index["shards"][1].pop("column_names"), r"cannot be read as that of mds \(KeyError"),
        (
            "mds",
            lambda index: index["shards"][1]["raw_data"].update(basename="../../secret"),
            r"names '../../secret', which lies outside its folder",
        ),
        (
            "mds",
            lambda index: [shard["column_encodings"].__setitem__(2, "pkl") for shard in index["shards"]],
            r"stores 'image' as 'pkl', which is not read here: leave it out with .*--column image=.*encode=f",
        ),
        (
            "mds",
            lambda index: [shard["column_encodings"].__setitem__(0, "ndarray:none:1") for shard in index["shards"]],
            r"sample 0: '\w+' does not decode as 'ndarray:none:1'",
        ),
        ("litdata", lambda index: index["config"].update(compression="zstd"), r"compression is 'zstd'.*encode=f"),
        ("litdata", lambda index: index["config"].update(item_loader="TokensLoader"), r"item_loader is 'TokensLoader'"),
        ("litdata", lambda index: index["config"]["data_format"].__setitem__(0, "pickle"), r"'image' as 'pickle'"),
        ("litdata", lambda index: index["config"]["data_format"].pop(), r"cannot be read as that of litdata"),
    ],
)
def test_what_cannot_be_read_is_one_error_with_what_to_do(
    name: str, act: Callable[[Any], None], message: str, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied(name)
    change(folder, act)
    with pytest.raises(SourceError, match=message):
        packed(folder, tmp_path / "dest")


def test_a_field_that_cannot_be_read_may_be_left_out(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("mds")
    change(folder, lambda index: [one["column_encodings"].__setitem__(2, "pil") for one in index["shards"]])
    assert "jpg" not in packed(folder, tmp_path / "dest", columns={"image": ""})[0]
