"""Packing into a URL, in one process: what appears there, in which order, and what never does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from wdsdist.errors import DestinationError, DestinationExistsError, SourceError, StorageError
from wdsdist.packing import PackProgress, pack, run
from wdsdist.shards import open as catalog
from wdsdist.storage import deadline


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for number in range(20):
        (root / f"{number:04}.bin").write_bytes(bytes(number % 7 for _ in range(100 + 37 * number)))
    return root


@pytest.fixture
def alone(source: Path, tmp_path: Path) -> dict[str, bytes]:
    pack(source, tmp_path / "alone", shard_samples=5, workers=1)
    return contents(tmp_path / "alone")


def contents(folder: Path | MemoryFileSystem) -> dict[str, bytes]:
    if isinstance(folder, Path):
        found = {path.name: path.read_bytes() for path in folder.iterdir()}
    else:
        found = {entry.rpartition("/")[2]: folder.cat_file(entry) for entry in folder.find("/dest")}
    return {name: data for name, data in found.items() if not name.startswith(".wdsdist-pack")}


def pack_there(source: Path, **options: Any) -> Any:
    return pack(source, "memory://dest", **{"shard_samples": 5, "workers": 1, **options})


def test_a_url_gets_the_bytes_that_a_folder_gets(
    source: Path, memory: MemoryFileSystem, alone: dict[str, bytes]
) -> None:
    manifest = pack_there(source)
    assert contents(memory) == alone
    assert manifest.fingerprint == catalog.open("memory://dest").fingerprint
    told: list[PackProgress] = []
    assert pack_there(source, progress=told.append).fingerprint == manifest.fingerprint
    assert told == []


class Puts:
    """Every upload in order; fails from one on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.refuse_from = 10**9
        sound = MemoryFileSystem.put_file

        def put_file(filesystem: Any, local: str, remote: str, *args: Any, **options: Any) -> None:
            if len(self.names) >= self.refuse_from:
                raise PermissionError("access denied")
            self.names.append(remote.rpartition("/")[2])
            sound(filesystem, local, remote, *args, **options)

        monkeypatch.setattr(MemoryFileSystem, "put_file", put_file)
        monkeypatch.setattr(deadline, "_FIRST_PAUSE", 0.0)


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch, memory: MemoryFileSystem) -> Puts:
    return Puts(monkeypatch)


def test_the_record_comes_first_each_index_after_its_shard_and_index_json_last(source: Path, puts: Puts) -> None:
    pack_there(source)
    assert puts.names[0] == ".wdsdist-pack.json"
    assert puts.names[-1] == "index.json"
    shards = [f"shard-00000{number}.tar" for number in range(4)]
    assert sorted(puts.names[1:-1]) == [name for shard in shards for name in (shard, f"{shard}.wdsindex")]
    assert all(puts.names.index(shard) < puts.names.index(f"{shard}.wdsindex") for shard in shards)


@pytest.mark.parametrize("refuse_from", range(10))
def test_wherever_uploads_begin_to_fail_the_next_run_finishes_the_rest(
    source: Path, memory: MemoryFileSystem, puts: Puts, alone: dict[str, bytes], refuse_from: int
) -> None:
    puts.refuse_from = refuse_from
    with pytest.raises(DestinationError, match=r"memory://dest/.* cannot be written: PermissionError: access denied"):
        pack_there(source)
    assert "index.json" not in contents(memory)
    done, puts.refuse_from = set(puts.names), 10**9
    puts.names.clear()
    pack_there(source)
    assert contents(memory) == alone
    whole = {name for name in done if f"{name}.wdsindex" in done}
    assert not whole & set(puts.names)


def test_a_failure_in_the_middle_of_a_shard_shows_nothing_of_it(
    source: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run.make_plan

    def make_plan(*args: Any, **options: Any) -> Any:
        (source / "0019.bin").unlink()
        return real(*args, **options)

    monkeypatch.setattr(run, "make_plan", make_plan)
    with pytest.raises(SourceError, match="vanished"):
        pack_there(source, shuffle_seed=None)
    assert "shard-000003.tar" not in contents(memory)


def test_other_data_sets_are_refused_and_replaced_only_when_asked(
    source: Path, memory: MemoryFileSystem, alone: dict[str, bytes]
) -> None:
    pack_there(source, shard_samples=2)
    memory.pipe_file("/dest/mine.tar", b"precious")
    with pytest.raises(DestinationExistsError, match="memory://dest holds another data set"):
        pack_there(source)
    pack_there(source, overwrite=True)
    assert contents(memory) == {**alone, "mine.tar": b"precious"}


def test_foreign_shards_are_never_replaced(source: Path, memory: MemoryFileSystem) -> None:
    memory.pipe_file("/dest/shard-000000.tar", b"precious")
    with pytest.raises(DestinationExistsError, match="no record"):
        pack_there(source)
    with pytest.raises(DestinationExistsError, match="did not write"):
        pack_there(source, overwrite=True)


def test_a_url_that_workers_do_not_share_is_no_data_set(source: Path, memory: MemoryFileSystem) -> None:
    with pytest.raises(DestinationError, match=r"does not hold shard-00000\d\.tar, which a worker has written"):
        pack_there(source, workers=2)
    assert "index.json" not in contents(memory)


def test_a_missing_back_end_is_named_with_its_extra(source: Path) -> None:
    with pytest.raises(StorageError, match=r'pip install "wdsdist\[gcs\]"'):
        pack(source, "gs://bucket/dest")
