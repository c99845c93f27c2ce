"""Packing that every process of a launch asks for, and one of them does."""

from __future__ import annotations

import os
import re
import select
import subprocess
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.programs import command


def environment(rank: int, world: int) -> dict[str, str]:
    """What Slurm's srun sets for one of its processes, on one node."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RANK", "WORLD_SIZE"))}
    return own | {
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(world), "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": str(world),
    }  # fmt: skip


def launch(source: Path, dest: Path, *, ranks: int) -> subprocess.CompletedProcess[str]:
    """Pack as some processes of srun."""
    return forked.together(
        ["-m", "wdsdist", "pack", source, dest, "-q"], [environment(rank, ranks) for rank in range(ranks)]
    )


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return status, output and errors of each process."""
    outputs = [process.communicate(timeout=580) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


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
        said = finish(processes)
    assert [status for status, _, _ in said] == [0, 0], said
    packer = said[1 - waiting]
    assert re.match(r"packed: 40 samples in 1 shard, .*\noverhead: .*\ntime: ", packer[1])
    assert said[waiting][1].startswith("packed already: 40 samples in 1 shard")
    assert "waiting" not in packer[2]
    assert started.read_bytes() == b"x"


def _first_to_say(processes: list[subprocess.Popen[str]], what: str) -> int:
    """Return which process says this on standard error first; the packer says there what it recognised."""
    streams = [process.stderr for process in processes]
    while ready := select.select(streams, [], [], 580)[0]:
        if (line := ready[0].readline()).startswith(what):
            return streams.index(ready[0])
        assert line, "one of them ended"
    raise AssertionError("none of them waits")


def test_an_error_is_that_of_all_with_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").symlink_to("nowhere")
    said = launch(tmp_path / "source", tmp_path / "dest", ranks=3)
    assert said.returncode == 2
    wanted = (
        f"wdsdist: error: {tmp_path}/source/a.txt is a link to nothing: repair it or remove it; or leave it out with "
        f"--on-error skip"
    )
    assert said.stderr.splitlines().count(wanted) == 3
