"""What a destination may hold already."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, SoftFileLock

from tests.support.packing import DataBytes, pack_shown
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import DestinationError, DestinationExistsError
from wdsdist.packing import pack
from wdsdist.packing.destination import Destination, locked, records
from wdsdist.shards import build_index as indexing
from wdsdist.shards.manifest import PACK_RECORD


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """What tells a file that was left alone from one that was written anew."""
    statuses = {path.name: path.stat() for path in folder.iterdir() if path.suffix != ".lock"}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in statuses.items()}


class TestTheSameAgain:
    def test_it_returns_at_once_and_touches_nothing(self, source: Path, tmp_path: Path) -> None:
        first = pack(source, tmp_path / "dest", shard_samples=10)
        before = identities(tmp_path / "dest")
        told: list[Any] = []
        again = pack_shown(source, tmp_path / "dest", shard_samples=10, workers=3, overwrite=True, progress=told.append)
        assert again.fingerprint == first.fingerprint
        assert again.extra == first.extra
        assert identities(tmp_path / "dest") == before
        assert told == []

    def test_a_finished_data_set_is_found_where_no_lock_can_be_taken(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pack(source, tmp_path / "dest")

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(FileLock, "acquire", refuse)
        assert pack(source, tmp_path / "dest").num_samples == 40

    @pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000001.tar.wdsindex", "index.json"])
    @pytest.mark.parametrize("damage", ["missing", "cut"])
    def test_what_is_missing_or_cut_is_written_again(
        self, source: Path, tmp_path: Path, data_bytes: DataBytes, name: str, damage: str
    ) -> None:
        pack(source, tmp_path / "dest", shard_samples=10)
        wanted, before = data_bytes(tmp_path / "dest"), identities(tmp_path / "dest")
        if damage == "missing":
            (tmp_path / "dest" / name).unlink()
        else:
            (tmp_path / "dest" / name).write_bytes(wanted[name][:100])
        if damage == "cut" and name.endswith(".wdsindex"):
            # The shard is still found whole by its size; its index shows only when it is read.
            assert [found.shard for found in verify(tmp_path / "dest")] == ["shard-000001.tar"]
            (tmp_path / "dest" / "index.json").unlink()
        pack(source, tmp_path / "dest", shard_samples=10)
        assert data_bytes(tmp_path / "dest") == wanted
        kept = {"shard-000000.tar", "shard-000002.tar", "shard-000003.tar.wdsindex"}
        assert {key: identities(tmp_path / "dest")[key] for key in kept} == {key: before[key] for key in kept}


class TestAnotherDataSet:
    @pytest.mark.parametrize(
        ("options", "difference"),
        [
            ({"shard_samples": 11}, "it has shard_samples=10, not 11"),
            ({"shard_samples": None}, "it has shard_samples=10, not None"),
            ({"shuffle_seed": None}, "it has shuffle_seed=0, not None"),
            ({"shard_bytes": 4096}, "it has shard_bytes=67108864, not 4096"),
        ],
    )
    def test_other_options_are_refused_by_name(
        self, source: Path, tmp_path: Path, data_bytes: DataBytes, options: dict[str, Any], difference: str
    ) -> None:
        pack(source, tmp_path / "dest", shard_samples=10)
        before = data_bytes(tmp_path / "dest")
        with pytest.raises(DestinationExistsError, match=rf"another data set \({difference}\): choose another folder"):
            pack(source, tmp_path / "dest", **{"shard_samples": 10, **options})
        assert data_bytes(tmp_path / "dest") == before

    def test_a_file_in_the_way_is_named(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for dest in (tmp_path / name for name in ("file", "file/dest", "file/deep/dest")):
            with pytest.raises(DestinationError, match=f"{dest} cannot be written: (File exists|Not a directory)"):
                pack(source, dest)

    @pytest.mark.parametrize("name", ["train-0.tar", "index.json"])
    def test_what_has_no_record_is_refused(self, source: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / "dest").mkdir()
        (tmp_path / "dest" / name).write_bytes(b"precious")
        with pytest.raises(
            DestinationExistsError, match=f"holds {name}, which is not on record there: choose another folder"
        ):
            pack(source, tmp_path / "dest")


class TestOverwrite:
    def test_it_leaves_what_a_fresh_folder_would_hold(
        self, source: Path, tmp_path: Path, data_bytes: DataBytes
    ) -> None:
        pack(source, tmp_path / "fresh", shard_samples=30)
        pack(source, tmp_path / "dest", shard_samples=3)
        pack(source, tmp_path / "dest", shard_samples=30, overwrite=True)
        assert data_bytes(tmp_path / "dest") == data_bytes(tmp_path / "fresh")

    def test_it_removes_only_what_was_packed(self, source: Path, tmp_path: Path) -> None:
        pack(source, tmp_path / "dest", shard_samples=3)
        strange = {"notes.txt", "mine.tar", "shard-000099.tar", "mine.tar.wdsindex", ".tmp-my-index.json"}
        for name in strange:
            (tmp_path / "dest" / name).write_text("precious")
        manifest = pack(source, tmp_path / "dest", shard_samples=30, overwrite=True)
        assert {path.name for path in (tmp_path / "dest").iterdir() if path.read_bytes() == b"precious"} == strange
        assert [shard.name for shard in manifest.shards] == ["shard-000000.tar", "shard-000001.tar"]

    def test_it_never_replaces_tars_that_were_only_indexed(self, source: Path, tmp_path: Path) -> None:
        pack(source, tmp_path / "dest", shard_samples=20)
        (tmp_path / "dest" / ".wdsdist-pack.json").unlink()
        indexing.index(tmp_path / "dest")
        before = identities(tmp_path / "dest")
        with pytest.raises(DestinationExistsError, match=r"holds .*, which is not on record there"):
            pack(source, tmp_path / "dest", overwrite=True)
        assert identities(tmp_path / "dest") == before

    @pytest.mark.parametrize("has_record", [False, True])
    def test_it_never_replaces_an_index_of_another_tool(self, source: Path, tmp_path: Path, has_record: bool) -> None:
        (tmp_path / "dest").mkdir()
        if has_record:
            pack(source, tmp_path / "dest", shard_samples=3)
            for shard in (tmp_path / "dest").glob("*.tar*"):
                shard.unlink()
        (tmp_path / "dest" / "index.json").write_text('{"wids_version": 1, "shardlist": []}')
        with pytest.raises(DestinationExistsError, match=r"holds index\.json, which is not on record there"):
            pack(source, tmp_path / "dest", overwrite=True)

    def test_names_in_an_index_never_lead_out_of_the_folder(self, source: Path, tmp_path: Path) -> None:
        pack(source, tmp_path / "dest")
        (tmp_path / "dest" / ".wdsdist-pack.json").unlink()
        index = tmp_path / "dest" / "index.json"
        index.write_text(index.read_text().replace('"shard-000000.tar"', '"../outside.tar"'))
        (tmp_path / "dest" / "shard-000000.tar").unlink()
        (tmp_path / "outside.tar").write_text("precious")
        with pytest.raises(DestinationExistsError, match=r"holds index\.json, which is not on record there"):
            pack(source, tmp_path / "dest", overwrite=True)
        assert (tmp_path / "outside.tar").read_text() == "precious"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_no_packer_waits_for_one_that_was_killed_on_another_machine(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        SoftFileLock(tmp_path / ".wdsdist-pack.lock"),
        locked(Destination.of(tmp_path, None)),
    ):  # a file is the first one
        (record,) = caplog.records
    expected = f"{tmp_path} is on a file system without locks (flock): let one process at a time write there"
    assert record.getMessage() == expected


def test_a_record_of_another_version_is_none(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "dest", workers=1)
    target = Destination.of(tmp_path / "dest", None)
    content = json.loads(target.read(PACK_RECORD))
    assert [job.location for job in records(target)] == [str(source)]
    (tmp_path / "dest" / PACK_RECORD).write_text(json.dumps({**content, "version": content["version"] + 1}))
    assert records(target) == []
