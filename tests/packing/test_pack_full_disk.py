"""A disk that fills while packing, by a limit on the size of files that the system keeps."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wdsdist.diagnostics.verify import verify
from wdsdist.packing import pack

DataBytes = Callable[[Path], dict[str, bytes]]


@pytest.mark.parametrize(
    ("limit", "workers"),  # in bytes: of the first record, and within some shard
    [(0, 1), (30_000, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((4096, 2), (60_000, 1)))],
)
def test_what_is_whole_stays_and_the_rest_follows_once_there_is_room(
    source: Path, tmp_path: Path, data_bytes: DataBytes, workers: int, limit: int
) -> None:
    (source / "part1" / "large.bin").write_bytes(bytes(70_000))
    options = ["--shard-samples", "5", "--workers", str(workers)]
    run = subprocess.run(
        [sys.executable, "-m", "wdsdist", "pack", str(source), str(tmp_path / "dest"), *options],
        capture_output=True, text=True, check=False, timeout=580,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith("wdsdist: error: ")
    assert "cannot be written: File too large" in run.stderr
    left = {path.name for path in (tmp_path / "dest").iterdir()}
    assert "index.json" not in left
    assert not [name for name in left if name.startswith(".tmp-")]
    whole = {path: path.stat().st_ino for path in (tmp_path / "dest").glob("*.wdsindex")}

    pack(source, tmp_path / "dest", shard_samples=5)
    pack(source, tmp_path / "undisturbed", shard_samples=5)
    assert data_bytes(tmp_path / "dest") == data_bytes(tmp_path / "undisturbed")
    assert {path: path.stat().st_ino for path in whole} == whole
    assert verify(tmp_path / "dest") == []
