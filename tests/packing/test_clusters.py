"""Packing on real clusters of several worker processes, one of which is killed."""

from __future__ import annotations

import functools
import importlib.util
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.packing import DataBytes
from tests.support.programs import PROGRAMS
from wdsdist.packing import pack

# Ray notes in /tmp where its cluster is, so that of the tests with one only one may run at a time.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

PACKAGES = {"dask": "distributed", "ray": "ray"}


@pytest.fixture(scope="module", params=["dask", "ray"])
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The engine and the address of a cluster of two workers, which lets in who knows this test's token."""
    if importlib.util.find_spec(PACKAGES[request.param]) is None:
        pytest.skip(f"{PACKAGES[request.param]} is not installed")
    command = [sys.executable, str(PROGRAMS / "clusters.py"), request.param]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "token")
        environment.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Dask's log, which says how busy a machine is, is no part of what a command says.
        environment.setenv("DASK_LOGGING", "{'version': 1, 'loggers': {'distributed': {'level': 'CRITICAL'}}}")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address
            yield request.param, address


run = functools.partial(forked.run, timeout=580)


def pack_on(cluster: tuple[str, str], source: Path, dest: Path, *more: str) -> subprocess.CompletedProcess[str]:
    engine, address = cluster
    options = ["--shard-samples", "5", "--engine", engine, "--address", address, *more]
    return run("-m", "wdsdist", "pack", str(source), str(dest), *options)


def test_a_killed_worker_costs_nothing_but_time(
    cluster: tuple[str, str], source: Path, alone: dict[str, bytes], tmp_path: Path, data_bytes: DataBytes
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    job = run(str(PROGRAMS / "deadly_job.py"), *cluster, str(source), str(tmp_path / "dest"), str(notes))
    assert job.returncode == 0, job.stderr
    killed = (notes / "killed").read_text()
    finished = {path.name for path in notes.glob("finished-*")}
    assert finished - {f"finished-{killed}"}, "others have done the rest"
    assert data_bytes(tmp_path / "dest") == alone  # hence nothing half of the killed one's either


def test_the_command_packs_on_the_cluster(
    cluster: tuple[str, str], source: Path, alone: dict[str, bytes], tmp_path: Path, data_bytes: DataBytes
) -> None:
    done = pack_on(cluster, source, tmp_path / "dest")
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "packed"), done.stderr
    assert data_bytes(tmp_path / "dest") == alone


def test_an_error_of_a_worker_is_the_line_that_one_machine_gives(
    cluster: tuple[str, str], source: Path, tmp_path: Path
) -> None:
    (tmp_path / "dest" / "shard-000002.tar").mkdir(parents=True)
    done = pack_on(cluster, source, tmp_path / "dest", "--overwrite", "-q")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert re.search("wdsdist: error:.*shard-000002.tar", done.stderr)


def test_a_cluster_that_gives_up_is_an_error_and_what_is_whole_is_kept(
    source: Path, alone: dict[str, bytes], tmp_path: Path, data_bytes: DataBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    (tmp_path / "notes").mkdir()
    command = [sys.executable, str(PROGRAMS / "clusters.py"), "dask"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        arguments = ["dask", address, str(source), str(tmp_path / "dest"), str(tmp_path / "notes")]
        job = run(str(PROGRAMS / "deadly_job.py"), *arguments)
    assert job.returncode == 1
    assert "DestinationError: the dask cluster lost 1 workers at one shard" in job.stderr
    assert not (tmp_path / "dest" / "index.json").exists()
    pack(source, tmp_path / "dest", shard_samples=5, workers=1)
    assert data_bytes(tmp_path / "dest") == alone
