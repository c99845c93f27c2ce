"""Sources behind URLs: an object store in memory, and a web server for several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec
import pytest

from tests.support.memory_store import Fault, MemoryStore
from tests.support.packing import members
from tests.support.tables import write_arrow, write_parquet
from tests.support.tars import plain_tar
from tests.support.trees import PHOTOS, unpack, zip_bytes
from tests.support.web import Web, served
from wdsdist.errors import NotFoundError, SourceError, StorageError
from wdsdist.packing import pack
from wdsdist.packing.sources import find
from wdsdist.storage import engine


@pytest.fixture
def store() -> Iterator[str]:
    """The URL of an empty object store."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield "memory://bucket/photos"
    memory.store.clear()


def upload(url: str, files: Mapping[str, bytes]) -> None:
    memory = fsspec.filesystem("memory")
    for name, data in files.items():
        memory.pipe(f"{url}/{name}", data)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as web:
        yield web


def test_a_remote_folder_packs_to_the_same_shards_as_a_local_one(store: str, tmp_path: Path) -> None:
    upload(store, PHOTOS)
    expected = pack(unpack(tmp_path / "photos", PHOTOS), tmp_path / "local", shard_samples=5, class_folders=True)
    found = pack(store, tmp_path / "remote", shard_samples=5, workers=1, class_folders=True)
    assert found.fingerprint == expected.fingerprint
    assert found.extra["classes"] == ["Zebra", "cat", "dog"]


def test_a_folder_on_the_web_is_refused(server: Web, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is on the web, which is read only and lists no folders"):
        pack(f"{server.url}/photos", tmp_path / "shards")


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar"])
def test_a_remote_archive_is_fetched_once_and_leaves_nothing(server: Web, tmp_path: Path, name: str) -> None:
    (server.folder / name).write_bytes(zip_bytes(PHOTOS) if name.endswith("zip") else plain_tar(PHOTOS.items()))
    expected = pack(unpack(tmp_path / "photos", PHOTOS), tmp_path / "local", shard_samples=5)
    dest = tmp_path / "remote"
    for most in (4, 1):  # the second time, all is there already: only the size is asked for
        server.asked.clear()
        found = pack(f"{server.url}/{name}", dest, shard_samples=5, workers=1)
        assert found.fingerprint == expected.fingerprint
        assert 1 <= server.asked.count(f"/{name}") <= most
    assert not [path for path in dest.iterdir() if path.name.startswith(".tmp-")]


def test_a_remote_table_that_changes_while_it_is_fetched_is_an_error(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(store, {"t.csv": b"txt\nold\n"})
    fetch, new = engine.fetch, {"t.csv": b"txt\nnew\n"}
    monkeypatch.setattr(engine, "fetch", lambda *args, **options: (upload(store, new), fetch(*args, **options)))
    with pytest.raises(SourceError, match=r"t\.csv has changed since it was listed"):
        pack(f"{store}/t.csv", tmp_path / "out")


def test_options_of_one_store_are_not_given_to_another(server: Web, store: str) -> None:
    (server.folder / "photos.zip").write_bytes(zip_bytes(PHOTOS))
    private = {"token": "hidden"}  # which the store in memory ignores, and the web refuses
    assert pack(f"{server.url}/photos.zip", store, workers=1, storage_options=private).num_samples == 36


def test_a_remote_table_of_files_beside_it_is_refused_by_its_url(store: str) -> None:
    upload("/bucket", {"train.csv": b"image\n1.jpg\n", "1.jpg": b"photo"})
    for columns in (None, {"image": "jpg"}):
        with pytest.raises(
            SourceError, match=r"^memory://bucket/train\.csv \(nothing but train\.csv was fetched\)"
        ) as one:
            len(find("memory://bucket/train.csv", columns=columns))
        assert ".tmp-" not in str(one.value)


@pytest.mark.parametrize("extension", ["parquet", "arrow"])
def test_the_tables_of_a_remote_folder_are_packed_together(store: str, extension: str, tmp_path: Path) -> None:
    write = {"parquet": write_parquet, "arrow": write_arrow}[extension]
    for number, split in enumerate(["train", "train", "test"]):
        path = write(tmp_path / f"{split}-{number}.{extension}", [{"label": 3 * number + row} for row in range(3)])
        upload(store, {path.name: path.read_bytes(), "README.md": b"notes"})
    with pytest.raises(SourceError, match=rf"files of test and train: name .* '{store}/\*test\*\.{extension}'"):
        find(store)
    source = find(f"{store}/train-*.{extension}", columns={"label": "txt"})
    assert sorted(found["txt"] for found in members(source).values()) == [b"%d" % number for number in range(6)]
    fsspec.filesystem("memory").rm(f"{store}/test-2.{extension}")
    assert pack(store, tmp_path / "out", workers=1).num_samples == 6
    assert [path.name for path in (tmp_path / "out").glob(".tmp-*")] == []
    assert find(store).digest == find(store).digest != source.digest
    with pytest.raises(NotFoundError, match="matches no file"):
        find(f"{store}/val-*.{extension}")


def test_a_store_that_fails_stops_packing_and_leaves_no_sample_out(tmp_path: Path) -> None:
    with MemoryStore({"photos/a.txt": b"a", "photos/b.txt": b"b"}) as store:
        store.plant(Fault("*.txt", "error", verb="read", error=PermissionError("the store is down")))
        for dest in (str(tmp_path / "out"), f"{store.url}/out"):
            with pytest.raises(StorageError, match="the store is down"):
                pack(f"{store.url}/photos", dest, workers=1, on_error="skip")
        assert "out/index.json" not in store.files
    assert not (tmp_path / "out" / "index.json").exists()


def test_what_does_not_exist_is_said_without_secrets(store: str, server: Web) -> None:
    with pytest.raises(NotFoundError, match=r"^memory://bucket/photos does not exist"):
        find(store)
    host = server.url.removeprefix("http://")
    with pytest.raises(NotFoundError, match=rf"^http://{host}/none\.zip does not exist$"):
        find(f"http://user:secret@{host}/none.zip?token=secret")
