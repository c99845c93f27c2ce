"""Packing that is killed, and the run that goes on where it stopped: of files, and of what Python makes."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked, made
from tests.support.packing import DataBytes
from tests.support.programs import command
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import DestinationExistsError, NotFoundError, WdsdistError
from wdsdist.packing import pack
from wdsdist.shards import open as catalog


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
    dest, make = tmp_path / "dest", getattr(made, kind, lambda: source)
    pack(make(), tmp_path / "undisturbed", shard_samples=5)
    # The workers end with their parent, or this waits for ever.
    kill_in_the_third_shard(source if kind == "folder" else kind, dest, workers)
    whole = [path for path in dest.glob("*.tar") if path.with_name(path.name + ".wdsindex").exists()]
    assert whole
    before = identities(whole)

    pack(make(), dest, shard_samples=5, workers=workers)
    assert data_bytes(dest) == data_bytes(tmp_path / "undisturbed")  # hence no temporary files either
    assert identities(whole) == before or kind == "samples", "all samples of an iterable are made once more"


def test_an_unfinished_destination_is_no_data_set_and_not_for_other_options(source: Path, tmp_path: Path) -> None:
    kill_in_the_third_shard(source, tmp_path / "dest", 1)
    with pytest.raises(NotFoundError, match="not been packed to the end"):
        catalog.open(tmp_path / "dest")
    with pytest.raises(DestinationExistsError, match=r"another data set \(it has shard_samples=5, not 6\)"):
        pack(source, tmp_path / "dest", shard_samples=6)


def test_a_worker_that_is_killed_is_an_error_that_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, fsync = os.getpid(), os.fsync

    def die(descriptor: int) -> None:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(WdsdistError, match="a worker process died"):
        pack(source, tmp_path / "dest", shard_samples=5, workers=2)
    assert not (tmp_path / "dest" / "index.json").exists()


# A disk that fills while packing, by a limit on the size of files that the system keeps


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


# Packing that every process of a launch asks for, and one of them does


def environment(rank: int, world: int) -> dict[str, str]:
    """Return the environment variables that Slurm's srun sets for one rank on one node."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RANK", "WORLD_SIZE"))}
    return own | {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(world), "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1",
    }  # fmt: skip


@pytest.mark.parametrize("scope", ["node", pytest.param("cluster", marks=pytest.mark.slow)])
def test_under_slurm_one_packs_and_the_others_wait_and_say_so(source: Path, tmp_path: Path, scope: str) -> None:
    started, gate, dest = tmp_path / "started", tmp_path / "gate", tmp_path / "dest"
    os.mkfifo(gate)
    held = command("held_pack", started, gate, "pack", source, dest, "--scope", scope)
    processes = [
        subprocess.Popen(
            held, env=environment(rank, 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        with gate.open("wb"):  # opens once one of them packs, which goes on when it closes
            waiting = _first_to_say(processes, "wdsdist: waiting for ")
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        said = [process.communicate(timeout=580) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    packer = said[1 - waiting]
    assert re.match(r"packed: 40 samples in 1 shard, .*\noverhead: ", packer[0])
    assert said[waiting][0].startswith("packed already: 40 samples in 1 shard")
    assert "waiting" not in packer[1]
    assert started.read_bytes() == b"x"


def _first_to_say(processes: list[subprocess.Popen[str]], what: str) -> int:
    """Return the index of the first process whose standard error has a line with this prefix."""
    streams = [process.stderr for process in processes]
    while ready := select.select(streams, [], [], 580)[0]:
        if (line := ready[0].readline()).startswith(what):
            return streams.index(ready[0])
        assert line, "one of them ended"
    raise AssertionError("none of them waits")


def test_an_error_is_that_of_all_with_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").symlink_to("nowhere")
    pack_all = ["-m", "wdsdist", "pack", tmp_path / "source", tmp_path / "dest", "-q"]
    said = forked.together(pack_all, [environment(rank, 3) for rank in range(3)])
    assert said.returncode == 2
    wanted = (
        f"wdsdist: error: {tmp_path}/source/a.txt is a link to nothing: repair it or remove it; or leave it out with "
        f"--on-error skip"
    )
    assert said.stderr.splitlines().count(wanted) == 3
