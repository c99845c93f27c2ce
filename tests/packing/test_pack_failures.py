"""Destinations that cannot be written, and sources that change while they are packed: typed errors, no data set."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from wdsdist.diagnostics.verify import verify
from wdsdist.errors import DestinationError, SourceError
from wdsdist.packing import pack


class TestUnwritable:
    def check(self, source: Path, dest: Path, message: str) -> None:
        with pytest.raises(DestinationError, match=message):
            pack(source, dest)

    def test_a_file_in_the_way_is_named(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for dest in ("file", "file/dest", "file/deep/dest"):
            self.check(source, tmp_path / dest, f"{tmp_path / dest} cannot be written: (File exists|Not a directory)")

    def test_a_full_disk_leaves_no_data_set(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sync = os.fsync

        def full(descriptor: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith("shard-000002.tar"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DestinationError, match=r"shard-000002\.tar cannot be written: No space left on device"):
            pack(source, tmp_path / "dest", shard_samples=5, workers=1)
        assert not (tmp_path / "dest" / "index.json").exists()
        monkeypatch.undo()
        pack(source, tmp_path / "dest", shard_samples=5, workers=1)
        assert verify(tmp_path / "dest") == []


@pytest.mark.parametrize("workers", [1, 2])
class TestASourceThatMoves:
    def check(self, source: Path, dest: Path, workers: int, message: str) -> None:
        with pytest.raises(SourceError, match=message):
            pack(source, dest, shard_samples=5, workers=workers)
        assert not (dest / "index.json").exists()
        assert not list(dest.glob(".tmp-*"))

    def test_a_file_that_vanishes_is_named(
        self, source: Path, tmp_path: Path, workers: int, before_writing: Callable[..., None]
    ) -> None:
        file = source / "part0" / "xxxxx" / "0003.bin"
        before_writing(file.unlink)
        self.check(source, tmp_path / "dest", workers, f"{file} has vanished since it was listed")

    @pytest.mark.parametrize("size", [0, 10, 5000])
    def test_a_file_that_changes_its_size_is_named(
        self, source: Path, tmp_path: Path, workers: int, size: int, before_writing: Callable[..., None]
    ) -> None:
        file = source / "part0" / "xxxxx" / "0003.bin"
        before_writing(lambda: file.write_bytes(bytes(size)))
        message = rf"{file} has {size:,} bytes, but had 211 when it was listed"
        self.check(source, tmp_path / "dest", workers, message)
