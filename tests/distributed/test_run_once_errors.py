"""The error of a data_download function: raised in every process of its run, and not in the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import CALL, launch
from wdsdist.errors import DataDownloadTimeoutError

if TYPE_CHECKING:
    from tests.support.jobs import Process, Stage


class TestErrors:
    FAILING = """
class Wrong(Exception):
    pass

@data_download
def prepare():
    log()
    announce()
    wait()
    raise Wrong("no route to host")
"""

    @pytest.mark.parametrize(
        "environment",
        [
            {},
            {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"},
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
        ],
        ids=["plain", "torchrun", "slurm"],
    )
    def test_one_is_raised_in_every_process_and_names_the_runner(
        self, stage: Stage, environment: dict[str, str]
    ) -> None:
        stage.write(self.FAILING + CALL)
        four = stage.start(4, **environment)
        launch(four)
        runner = stage.runner()
        stage.let_go()
        for process in four:
            error = process.expect("raised")
            assert (error["type"], error["message"]) == ("Wrong", "no route to host")
            if process.pid != runner:
                assert f"failed in process {runner} on {os.uname().nodename}" in error["cause"]
                assert 'raise Wrong("no route to host")' in error["cause"]
        assert len(stage.log) == 1

    def test_ranks_with_wrapper_scripts_share_it_too(self, stage: Stage) -> None:
        stage.write(self.FAILING + CALL)
        shell = ["/bin/sh", "-c", f'{sys.executable} "$0"; true']
        two = stage.start(2, command=shell, SLURM_JOB_ID="7", SLURM_STEP_ID="0")
        launch(two)
        stage.runner()
        stage.let_go()
        assert [process.expect("raised")["type"] for process in two] == ["Wrong", "Wrong"]
        assert len(stage.log) == 1

    @pytest.mark.parametrize("environment", [{}, {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}])
    def test_a_later_run_from_the_same_shell_tries_again(self, stage: Stage, environment: dict[str, str]) -> None:
        stage.write(
            """
@data_download
def prepare():
    log()
    if not (HERE / "mended").exists():
        raise OSError("disk full")
    return "fine"

report(prepare)
"""
        )
        assert stage.start(**environment)[0].expect("raised")["message"] == "disk full"
        assert stage.start(**environment)[0].expect("raised")["message"] == "disk full"
        assert len(stage.log) == 2
        (stage.directory / "mended").touch()
        assert stage.start(**environment)[0].expect("returned") == "fine"

    def test_a_second_call_is_a_new_attempt_for_all(self, stage: Stage) -> None:
        stage.write(
            """
@data_download
def prepare():
    log()
    if (HERE / "tried").exists():
        return "fine"
    (HERE / "tried").touch()
    raise ConnectionResetError("try again")

say("ready")
hear()
report(prepare)
hear()
report(prepare)
"""
        )
        three = stage.start(3)
        launch(three)
        assert [process.expect("raised")["type"] for process in three] == ["ConnectionResetError"] * 3
        for process in three:
            process.tell()
        assert [process.expect("returned") for process in three] == ["fine"] * 3
        assert len(stage.log) == 2

    STEPWISE = """
made = HERE / "made"

@data_download
def prepare():
    log()
    if not (HERE / "mended").exists():
        raise OSError("disk full")
    made.touch()
    return str(made)

say("ready")
while hear():
    report(prepare)
"""

    def test_every_attempt_fails_once_for_all(self, stage: Stage) -> None:
        stage.write(self.STEPWISE)
        three = stage.start(3)
        for process in three:
            process.expect("ready")
        for attempt in (1, 2, 3):
            for process in three:
                process.tell("call")
                assert process.expect("raised")["message"] == "disk full"
            assert len(stage.log) == attempt

    @pytest.mark.parametrize("who_mends_it", ["itself", "another"])
    def test_one_after_a_success_is_news_to_those_who_saw_one_before(self, stage: Stage, who_mends_it: str) -> None:
        stage.write(self.STEPWISE)
        one, other = stage.start(2)

        def call(process: Process, outcome: str) -> int:
            process.tell("call")
            process.expect(outcome)
            return len(stage.log)

        for process in (one, other):
            process.expect("ready")
        assert call(one, "raised") == call(other, "raised") == 1
        (stage.directory / "mended").touch()
        for process in (one, other) if who_mends_it == "itself" else (other, one):
            assert call(process, "returned") == 2
        (stage.directory / "mended").unlink()
        (stage.directory / "made").unlink()
        assert call(other, "raised") == 3
        assert call(one, "raised") == 3

    def test_one_that_cannot_be_pickled_is_told_by_name(self, stage: Stage) -> None:
        stage.write(
            """
class Awkward(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")

@data_download
def prepare():
    announce()
    wait()
    raise Awkward(403, "forbidden")
"""
            + CALL
        )
        two = stage.start(2)
        launch(two)
        runner = stage.runner()
        stage.let_go()
        for process in two:
            error = process.expect("raised")
            if process.pid == runner:
                assert (error["type"], error["message"]) == ("Awkward", "403: forbidden")
            else:
                assert error["type"] == "DataDownloadError"
                assert f"prepare() failed in process {runner}" in error["message"]
                assert "Awkward: 403: forbidden" in error["message"]

    def test_a_value_that_cannot_be_pickled_is_one_everywhere(self, stage: Stage) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return lambda: 1\n" + CALL)
        two = stage.start(2)
        launch(two)
        for process in two:
            error = process.expect("raised")
            assert error["type"] == "DataDownloadError"
            assert "prepare() returned a function that cannot be handed to other processes" in error["message"]
        assert len(stage.log) == 1

    def test_an_interrupt_is_not_one_but_frees_the_lock(self, stage: Stage) -> None:
        stage.write(
            """
@data_download
def prepare():
    announce()
    wait()
    return os.getpid()

say("ready")
hear()
try:
    report(prepare)
except KeyboardInterrupt:
    say("interrupted")
"""
        )
        two = stage.start(2)
        launch(two)
        first = stage.runner()
        os.kill(first, signal.SIGINT)
        second = stage.runner()
        stage.let_go()
        for process in two:
            if process.pid == first:
                process.expect("interrupted")
            else:
                assert process.expect("returned") == second

    def test_a_wait_that_is_too_long_names_the_holder(self, stage: Stage) -> None:
        stage.write(
            """
@data_download(timeout=0.3)
def prepare():
    announce()
    wait()
"""
            + CALL
        )
        first, second = stage.start(2)
        first.expect("ready")
        first.tell()
        stage.runner()
        second.expect("ready")
        second.tell()
        error = second.expect("raised")
        assert error["type"] == "DataDownloadTimeoutError"
        assert "prepare() was not finished within 0.3 s" in error["message"]
        assert f"process {first.pid} on {os.uname().nodename}" in error["message"]
        stage.let_go()
        first.expect("returned")

    def test_a_timeout_is_a_builtin_one(self) -> None:
        assert issubclass(DataDownloadTimeoutError, TimeoutError)


def test_under_torchrun_one_worker_runs_and_all_fail_alike(stage: Stage) -> None:
    stage.write(
        """
from wdsdist.distributed import identity
me = identity()

@data_download
def prepare(name):
    log()
    if name == "bad":
        raise ValueError(name)
    return name

assert me.source == "torchrun", me
assert prepare("good") == "good"
import torch.distributed as dist
from wdsdist.distributed import barrier
dist.init_process_group("gloo")
barrier(30)
try:
    prepare("bad")
except ValueError:
    (HERE / f"raised-{me.rank}-of-{me.world_size}").touch()
dist.barrier()
"""
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    for run in (1, 2):
        done = subprocess.run([*command, str(stage.script)], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        raised = sorted(stage.directory.glob("raised-*"))
        assert [path.name for path in raised] == ["raised-0-of-2", "raised-1-of-2"]
        assert len(stage.log) == 1 + run  # "good" once, "bad" once in each run
        for path in raised:
            path.unlink()
