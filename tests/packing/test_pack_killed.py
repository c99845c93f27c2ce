"""Packing that is killed, and the run that goes on where it stopped: of files, and of what Python makes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.programs import command
from wdsdist.errors import DestinationExistsError, NotFoundError, WdsdistError
from wdsdist.packing import pack
from wdsdist.shards import open as catalog

DataBytes = Callable[[Path], dict[str, bytes]]


def kill_in_the_third_shard(source: Path | str, dest: Path, workers: int) -> None:
    """Start packing, kill the parent alone in the middle of the third shard, and wait until its workers have ended."""
    stalling = command("stalling_pack", source, dest, workers)[1:]
    forked.kill(*forked.start_until_a_byte(*stalling, pipe=dest.parent / "pipe"))
    assert list(dest.glob(".tmp-*-shard-000002.tar")), "it was killed in the middle of a shard"
    assert not (dest / "index.json").exists()


def identities(paths: list[Path]) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


@pytest.mark.parametrize(
    ("kind", "workers"), [("folder", 1), ("folder", 2), ("squares", 1), ("squares", 2), ("samples", 1)]
)
def test_a_killed_run_is_continued_to_the_same_bytes(
    source: Path, tmp_path: Path, data_bytes: DataBytes, kind: str, workers: int
) -> None:
    dest, packed = tmp_path / "dest", source if kind == "folder" else f"tests.support.made:{kind}"
    pack(packed, tmp_path / "undisturbed", shard_samples=5)
    kill_in_the_third_shard(packed, dest, workers)  # the workers end with their parent, or this waits for ever
    whole = [path for path in dest.glob("*.tar") if path.with_name(path.name + ".wdsindex").exists()]
    assert whole
    before = identities(whole)

    pack(packed, dest, shard_samples=5, workers=workers)
    assert data_bytes(dest) == data_bytes(tmp_path / "undisturbed")  # hence no temporary files either
    assert identities(whole) == before or kind == "samples", "all samples of an iterable are made once more"


def test_an_unfinished_destination_is_no_data_set_and_not_for_other_options(source: Path, tmp_path: Path) -> None:
    kill_in_the_third_shard(source, tmp_path / "dest", 1)
    with pytest.raises(NotFoundError, match="not been packed to the end"):
        catalog.open(tmp_path / "dest")
    with pytest.raises(DestinationExistsError, match=r"another data set \(it has shard_samples=5, not 6\)"):
        pack(source, tmp_path / "dest", shard_samples=6)


def test_a_tar_that_lost_its_index_is_written_again(source: Path, tmp_path: Path, data_bytes: DataBytes) -> None:
    dest = tmp_path / "dest"
    pack(source, tmp_path / "undisturbed", shard_samples=5)
    kill_in_the_third_shard(source, dest, 1)
    (dest / "shard-000000.tar.wdsindex").unlink()  # as if killed between the two
    before = identities([dest / "shard-000000.tar", dest / "shard-000001.tar"])
    pack(source, dest, shard_samples=5)
    assert data_bytes(dest) == data_bytes(tmp_path / "undisturbed")
    after = identities([dest / "shard-000000.tar", dest / "shard-000001.tar"])
    assert [name for name in before if before[name] == after[name]] == ["shard-000001.tar"]


def test_a_worker_that_is_killed_is_an_error_that_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, fsync = os.getpid(), os.fsync

    def die(descriptor: int) -> None:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(WdsdistError, match="a process that was writing shards died"):
        pack(source, tmp_path / "dest", shard_samples=5, workers=2)
    assert not (tmp_path / "dest" / "index.json").exists()
