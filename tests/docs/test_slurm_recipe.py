"""The recipe for Slurm, with a stand-in for ``srun``: a job that is signalled saves, is requeued, and goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.pages import ROOT, blocks, program

PAGE = (ROOT / "docs" / "recipes" / "slurm.md").read_text()
SCRIPT = next(block.text for block in blocks(PAGE) if block.language == "shell")


def test_the_batch_script_is_a_shell_script() -> None:
    subprocess.run(["bash", "-n"], input=SCRIPT, text=True, check=True)


@pytest.mark.slow
def test_a_job_that_is_signalled_saves_is_requeued_and_goes_on_where_it_stopped(checkout: Path) -> None:
    (checkout / "train.py").write_text(program(PAGE))
    tools = checkout / "bin"
    tools.mkdir()
    srun = f'exec {sys.executable} {ROOT / "tests" / "programs" / "stand_in_for_srun.py"} "$@"'
    for name, text in (
        ("srun", srun),
        ("scontrol", "[ $1 = requeue ] && echo $2 >> requeued || echo 127.0.0.1"),
        ("python", f'exec {sys.executable} "$@"'),
    ):
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)

    def run(job: int, **more: str) -> tuple[int, int]:
        slurm = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": str(checkout)}
        env = {**os.environ, **slurm, **more, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash"], input=SCRIPT, cwd=checkout, env=env, capture_output=True, text=True, timeout=580, check=False
        )
        steps = {int(found) for found in re.findall(r"rank \d: \w+ after (\d+) steps", done.stdout)}
        assert len(steps) == 1, done.stdout + done.stderr
        return done.returncode, steps.pop()

    job = os.getpid()
    status, before = run(job, EPOCHS="100000", SIGNAL_AT=str(checkout / "checkpoint.pt"))
    assert status == 85
    assert (checkout / "requeued").read_text() == f"{job}\n"
    epoch = torch.load(checkout / "checkpoint.pt")["loader"]["epoch"]
    status, after = run(job, EPOCHS=str(epoch + 1))
    assert status == 0
    assert before + after == (epoch + 1) * (10_000 // (2 * 64))
    assert {path.name for path in checkout.glob("cache-of-node-*")} == {"cache-of-node-0", "cache-of-node-1"}
