"""Pipes where a data set should have files: an error, or what is there without the file, and never a wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import wdsdist
from wdsdist.errors import NotFoundError, SourceError, StorageError, WdsdistError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set with a column and a view."""
    data = wdsdist.pack([{"txt": "a", "cls": 1}, {"txt": "b", "cls": 2}], tmp_path / "data", workers=1)
    data.add_columns(fields=["cls"], workers=1).select("cls > 1").save(tmp_path / "data" / "view")
    return tmp_path / "data"


def pipe(path: Path) -> Path:
    """Replace a file by a named pipe (FIFO), which blocks whoever opens it until the time limit of the test."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_a_pipe_in_the_place_of_an_index_is_an_error_or_passed_over(folder: Path) -> None:
    pipe(folder / "shard-000000.tar.wdsindex")
    assert wdsdist.StreamingDataset(folder, decode=True)[1]["txt"] in ("a", "b")
    pipe(folder / "index.json")
    with pytest.raises(StorageError, match=r"index\.json cannot be read: it is a pipe"):
        wdsdist.open(folder)


def test_a_pipe_in_the_place_of_a_column_or_view_is_an_error(folder: Path) -> None:
    pipe(folder / "columns" / "cls.parquet")
    with pytest.raises(StorageError, match=r"cls\.parquet cannot be read: it is a pipe"):
        wdsdist.open(folder).column("cls")
    with pytest.raises(NotFoundError, match="view holds neither tars nor an index"):
        wdsdist.open(pipe(folder / "view"))


@pytest.mark.parametrize("name", ["_info.json", "wids-meta.json", "sizes.json", ".nv-meta/.info.yaml"])
def test_a_pipe_in_the_place_of_counts_is_never_waited_for(folder: Path, name: str) -> None:
    (folder / "index.json").unlink()
    pipe(folder / name)
    with pytest.raises(WdsdistError):
        wdsdist.open(folder)


@pytest.mark.parametrize("name", ["index.json", "state.json", "dataset_dict.json", "t.parquet"])
def test_a_pipe_in_a_folder_to_pack_is_never_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "source").mkdir()
    pipe(tmp_path / "source" / name)
    with pytest.raises((SourceError, StorageError)):
        wdsdist.pack(tmp_path / "source", tmp_path / "out", workers=1)


@pytest.mark.parametrize("name", [".wdsdist-pack.json", "index.json"])
def test_a_pipe_in_the_place_of_a_record_of_packing_is_an_error(folder: Path, name: str) -> None:
    pipe(folder / name)
    with pytest.raises(WdsdistError, match="it is a pipe"):
        wdsdist.pack([{"txt": "c"}], folder, workers=1, overwrite=True)
