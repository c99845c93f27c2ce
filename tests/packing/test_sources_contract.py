"""The contract of sources, over every kind: readable, damaged, interrupted, resumed, and what is said before."""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import wdsdist
from tests.support.packing import pack_shown, packed_members
from tests.support.tars import plain_tar
from tests.support.trees import unpack, zip_bytes
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing import recognise
from wdsdist.packing.destination import Destination
from wdsdist.packing.sources import find
from wdsdist.packing.writer import write_shard
from wdsdist.shards.progress import ShardsProgress

COUNT = 24
FILES = {f"{number:03}.{kind}": f"{kind} {number}".encode() * 9 for number in range(COUNT) for kind in ("jpg", "txt")}
PAGE = b"<!DOCTYPE html><html><body>404 Not Found</body></html>"


def zipped(root: Path, files: dict[str, bytes]) -> Path:
    root.with_suffix(".zip").write_bytes(zip_bytes(files))
    return root.with_suffix(".zip")


def tarred(root: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(root.with_suffix(".tar.gz"), "w:gz") as archive:
        archive.add(unpack(root, files), ".")
    return root.with_suffix(".tar.gz")


def table(root: Path, files: dict[str, bytes]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows(files)), root.with_suffix(".parquet"), row_group_size=7)
    return root.with_suffix(".parquet")


def csv(root: Path, files: dict[str, bytes]) -> Path:
    unpack(root, files)
    keys = sorted({name[:3] for name in files})
    (root / "t.csv").write_text(
        "key,image,txt\n" + "".join(f"{k},{k}.jpg,{files[f'{k}.txt'].decode()}\n" for k in keys)
    )
    return root / "t.csv"


def rows(files: dict[str, bytes]) -> list[dict[str, Any]]:
    keys = sorted({name[:3] for name in files})
    return [{"key": key, "jpg": files[f"{key}.jpg"], "txt": files[f"{key}.txt"].decode()} for key in keys]


def made(root: Path, files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"__key__": row.pop("key"), **row} for row in rows(files)]


def shards(root: Path, files: dict[str, bytes]) -> Path:
    names = sorted(files)
    parts = names[: len(names) // 2], names[len(names) // 2 :]
    return unpack(root, {f"{n}.tar": plain_tar((name, files[name]) for name in part) for n, part in enumerate(parts)})


SOURCES: dict[str, Callable[[Path, dict[str, bytes]], Any]] = {
    "folder": unpack, "zip": zipped, "tar.gz": tarred, "parquet": table, "csv": csv, "python": made, "shards": shards,
}  # fmt: skip
each = pytest.mark.parametrize("kind", SOURCES)


def tars(dest: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in dest.glob("*.tar*")}


@each
def test_every_sample_is_packed_once_by_any_number_of_workers(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path / "source", FILES)
    for workers in (1, 2):
        wdsdist.pack(source, tmp_path / str(workers), shard_samples=5, workers=workers)
    assert packed_members(tmp_path / "1") == FILES
    assert tars(tmp_path / "1") == tars(tmp_path / "2")
    assert verify(tmp_path / "1") == []


@pytest.mark.parametrize("kind", ["folder of parquet", *sorted(SOURCES.keys() - {"python"})])
def test_packing_into_the_folder_of_the_source_is_refused_or_works_again(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind.rpartition(" ")[2]](tmp_path / "source", FILES)
    folder = source if source.is_dir() else source.parent
    source, is_searched = folder if " " in kind else source, source.is_dir() or " " in kind
    for _ in range(2):
        for call in (recognise, wdsdist.pack):
            with pytest.raises(ArgumentError, match="lies inside") if is_searched else contextlib.nullcontext():
                call(source, folder / "packed")


@each
def test_what_is_recognised_is_said_before(kind: str, tmp_path: Path) -> None:
    found = recognise(SOURCES[kind](tmp_path / "source", FILES))
    assert found.samples == COUNT
    assert f"{COUNT:,} samples" in found.lines[0]
    assert f"members: jpg in {COUNT}, txt in {COUNT}" in found.lines


@each
def test_a_page_named_as_an_image_is_an_error_or_left_out(kind: str, tmp_path: Path) -> None:
    columns = {"columns": {"jpg": "jpg"}} if kind == "parquet" else {}
    source = SOURCES[kind](tmp_path / "source", {**FILES, "007.jpg": PAGE})
    with pytest.raises(SourceError, match=r"007\.jpg begins with '<!DOCTYPE html><', .* on_error='skip', or"):
        wdsdist.pack(source, tmp_path / "raised", workers=1, **columns)
    manifest = wdsdist.pack(source, tmp_path / "left", on_error="skip", workers=1, **columns)
    assert (manifest.num_samples, manifest.extra["left_out"]) == (COUNT - 1, 1)
    assert "on_error" not in (tmp_path / "left" / "pack-report.jsonl").read_text(), "it is skipped already"
    assert packed_members(tmp_path / "left") == {
        name: data for name, data in FILES.items() if not name.startswith("007")
    }


@each
def test_an_interrupted_run_is_resumed_and_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path / "source", FILES)
    wdsdist.pack(source, tmp_path / "whole", shard_samples=5, workers=1)

    def stop(state: ShardsProgress) -> None:
        if state.shards_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_shown(source, tmp_path / "dest", shard_samples=5, workers=1, progress=stop)
    assert not (tmp_path / "dest" / "index.json").exists()
    told: list[ShardsProgress] = []
    pack_shown(source, tmp_path / "dest", shard_samples=5, workers=1, progress=told.append)
    assert told[0].samples_done >= 10
    assert tars(tmp_path / "dest") == tars(tmp_path / "whole")
    assert not [path for path in (tmp_path / "dest").iterdir() if path.name.startswith(".tmp-")]


@pytest.mark.parametrize("kind", sorted(SOURCES.keys() - {"python"}))
def test_a_source_that_changes_after_it_was_listed_is_an_error_that_names_it(kind: str, tmp_path: Path) -> None:
    path = SOURCES[kind](tmp_path / "source", FILES)
    source = find(path)
    assert len(source) == COUNT
    numbers = np.arange(COUNT)
    changed = {"folder": path / "007.jpg", "csv": path.parent / "007.jpg", "shards": path / "0.tar"}.get(kind, path)
    taken = source.take(numbers)
    changed.write_bytes(b"other than before")
    (tmp_path / "dest").mkdir()
    with pytest.raises(SourceError, match=re.escape(changed.name)):
        write_shard(
            Destination(str(tmp_path / "dest")), "x.tar", taken if kind != "tar.gz" else find(path).take(numbers)
        )
    assert list((tmp_path / "dest").iterdir()) == []


def test_arrays_need_no_dtype_to_be_read(tmp_path: Path) -> None:
    samples = [
        {
            "input_ids": np.arange(n + 1, dtype=">i4"),
            "box": np.full((2, 4), n, "f4"),
            "scale": torch.tensor(n),
            "cls": n,
        }
        for n in range(9)
    ]
    manifest = wdsdist.pack(samples, tmp_path / "dest", workers=1, shuffle_seed=None)
    assert manifest.extra["arrays"] == {
        "input_ids": {"dtype": "<i4", "shape": [None]}, "box": {"dtype": "<f4", "shape": [None, 4]},
        "scale": {"dtype": "<i8", "shape": [None]},
    }  # fmt: skip
    data = wdsdist.StreamingDataset(tmp_path / "dest", decode=True)
    assert data[5]["input_ids"].tolist() == [0, 1, 2, 3, 4, 5]
    assert data[5]["box"].tolist() == [[5.0] * 4] * 2
    assert data[5]["scale"].tolist() == [5]
    shards = wdsdist.pack(tmp_path / "dest", tmp_path / "again")
    assert shards.extra["arrays"] == manifest.extra["arrays"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([np.arange(3), np.arange(3.0)], r"field 'x' holds float64 \[None\], but int64 \[None\] in the first samples"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], r"holds float64 \[None, 4\], but float64 \[None, 3\] in the first"),
        ([np.array(["a"])], r"an array of <U1 \[1\] cannot be stored: give numbers"),
    ],
)
def test_arrays_of_one_field_are_of_one_type(tmp_path: Path, values: list[Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        wdsdist.pack([{"x": value} for value in values], tmp_path / "dest")
