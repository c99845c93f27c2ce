"""A disk that fills while packing: by a limit on the size of files that the system keeps, and a small one."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wdsdist.diagnostics.verify import verify
from wdsdist.packing import pack

DataBytes = Callable[[Path], dict[str, bytes]]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("limit", [0, 4096, 30_000, 60_000])  # in bytes: of the first record, and within some shard
def test_what_is_whole_stays_and_the_rest_follows_once_there_is_room(
    source: Path, tmp_path: Path, data_bytes: DataBytes, workers: int, limit: int
) -> None:
    (source / "part1" / "large.bin").write_bytes(bytes(70_000))
    options = ["--shard-samples", "5", "--workers", str(workers)]
    run = subprocess.run(
        [sys.executable, "-m", "wdsdist", "pack", str(source), str(tmp_path / "dest"), *options],
        capture_output=True, text=True, check=False, timeout=60,
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


ON_A_SMALL_DISK = """
import json, shutil, subprocess, sys
from pathlib import Path

source, disk, workers, result = sys.argv[1:]
dest = Path(disk, "dest")

def pack():
    options = ["--shard-samples", "5", "--workers", workers, "-q"]
    return subprocess.run([sys.executable, "-m", "wdsdist", "pack", source, dest, *options], capture_output=True)

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", disk], check=True)
full = pack()
left = {path.name: path.stat().st_ino for path in dest.iterdir()}
subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
again = pack()
kept = [name for name, inode in left.items() if (dest / name).exists() and (dest / name).stat().st_ino == inode]
shutil.copytree(dest, result)
print(json.dumps([full.returncode, full.stderr.decode(), list(left), again.returncode, kept]))
"""
IN_ITS_OWN_NAMESPACE = ["unshare", "--map-root-user", "--mount"]
"""There, anyone may mount, and what is mounted goes with the last process."""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_small_disk_that_is_full_keeps_what_is_whole(
    source: Path, tmp_path: Path, data_bytes: DataBytes, workers: int
) -> None:
    (tmp_path / "disk").mkdir()
    mount = [*IN_ITS_OWN_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "disk")]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a file system in a namespace of their own")
    arguments = [source, tmp_path / "disk", workers, tmp_path / "result"]
    run = subprocess.run(
        [*IN_ITS_OWN_NAMESPACE, sys.executable, "-c", ON_A_SMALL_DISK, *map(str, arguments)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    status, message, left, again, kept = json.loads(run.stdout)
    assert (status, again) == (2, 0)
    assert "cannot be written: No space left on device" in message
    assert "index.json" not in left
    assert not [name for name in left if name.startswith(".tmp-")]
    whole = {name for name in left if name.endswith(".wdsindex")}
    assert whole
    assert whole | {name.removesuffix(".wdsindex") for name in whole} <= set(kept)
    pack(source, tmp_path / "undisturbed", shard_samples=5)
    assert data_bytes(tmp_path / "result") == data_bytes(tmp_path / "undisturbed")
