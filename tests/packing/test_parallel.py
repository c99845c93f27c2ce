"""Workers that pack: their progress, also within a single shard."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from wdsdist.packing import PackProgress


def test_one_large_shard_shows_progress_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    for number in range(40):
        (tmp_path / "files" / f"{number:02}.bin").write_bytes(b"x" * 300_000)
    seen: list[PackProgress] = []
    under_way = threading.Event()

    def show(progress: PackProgress) -> None:
        seen.append(progress)
        if 0 < progress.bytes_done < (progress.bytes or 0):
            under_way.set()

    def held(descriptor: int, data: Any) -> int:
        if len(data) > 300_000 and next(calls) == 7:  # of 14 buffers
            assert under_way.wait(60)
        return write(descriptor, data)

    calls, write = count(), os.write
    monkeypatch.setattr(os, "write", held)
    with ThreadPoolExecutor(1) as executor:
        wdsdist.pack(tmp_path / "files", tmp_path / "shards", executor=executor, progress=show)
    assert [progress.shards_done for progress in (seen[0], seen[-1])] == [0, 1]
    assert seen[-1].bytes_done == seen[-1].bytes
    assert [one.bytes_done for one in seen] == sorted(one.bytes_done for one in seen)
