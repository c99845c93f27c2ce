"""What `bench` says of a mount: whether copies on the disk of the cache would pay."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import wdsdist
from tests.support.tars import write_shard
from wdsdist.cli import _wdsdist
from wdsdist.cli.bench import _staging
from wdsdist.diagnostics.staging import Staging, staging

MEMORY = Path("/dev/shm")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A folder of shards on another file system than the tests' own."""
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    folder = Path(tempfile.mkdtemp(prefix="wdsdist-test-", dir=MEMORY))
    write_shard(folder / "0.tar", 200)
    wdsdist.index(folder)
    yield folder
    shutil.rmtree(folder)


def test_both_file_systems_are_measured_and_left_as_they_were(mount: Path, tmp_path: Path) -> None:
    found = staging(wdsdist.open(mount), tmp_path / "cache", seconds=0.05)
    assert found is not None
    assert (found.mount, found.cache) == (str(mount), str(tmp_path / "cache"))
    assert min(found.mount_rate, found.cache_rate) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_disk_of_the_cache_itself_is_not_measured(tmp_path: Path) -> None:
    write_shard(tmp_path / "0.tar", 5)
    wdsdist.index(tmp_path)
    assert staging(wdsdist.open(tmp_path), tmp_path / "cache") is None


@pytest.mark.parametrize(
    ("rate", "free", "said"),
    [
        (9e8, 10**12, "pays from the second epoch on where training reads more than 95.4 MiB/s on this node"),
        (9e8, 10**9, "on this node; with cache_limit, for 953.7 MiB are free"),
        (1.4e8, 10**12, "stage=True would not pay"),
    ],
)
def test_it_says_when_copies_pay(rate: float, free: int, said: str) -> None:
    found = Staging(mount="/nfs", cache="/tmp/c", mount_rate=1e8, cache_rate=rate, data_bytes=10**10, free_bytes=free)
    assert _staging(found).startswith("/nfs reads 95.4 MiB/s, /tmp/c ")
    assert _staging(found).endswith(said)


def test_bench_shows_it(mount: Path, tmp_path: Path) -> None:
    words = ["bench", str(mount), "--seconds", "0.02", "--workers", "0", "--cache-dir", str(tmp_path / "cache")]
    lines = CliRunner().invoke(_wdsdist, words).stdout.splitlines()
    assert lines[1].startswith(f"mount:      {mount} reads ")
    found = json.loads(CliRunner().invoke(_wdsdist, [*words, "--json"]).stdout)
    assert found["mount"]["data_bytes"] == (mount / "0.tar").stat().st_size
