"""The error of a data_download function: raised in every process of its run, and not in the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import launch
from tests.support.programs import environment
from wdsdist.errors import DistributedTimeoutError

if TYPE_CHECKING:
    from tests.support.jobs import Process, Stage


class TestErrors:
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
        stage.job("failing")
        four = stage.start(4, **environment)
        launch(four)
        runner = stage.runner()
        stage.let_go()
        for process in four:
            error = process.expect("raised")
            assert (error["type"], error["message"]) == ("WrongError", "no route to host")
            if process.pid != runner:
                assert f"failed in process {runner} on {os.uname().nodename}" in error["cause"]
                assert 'raise WrongError("no route to host")' in error["cause"]
        assert len(stage.log) == 1

    def test_ranks_with_wrapper_scripts_share_it_too(self, stage: Stage) -> None:
        stage.job("failing")
        shell = ["/bin/sh", "-c", f'{sys.executable} "$0" "$@"; true']
        two = stage.start(2, by=shell, SLURM_JOB_ID="7", SLURM_STEP_ID="0")
        launch(two)
        stage.runner()
        stage.let_go()
        assert [process.expect("raised")["type"] for process in two] == ["WrongError", "WrongError"]
        assert len(stage.log) == 1

    @pytest.mark.parametrize("environment", [{}, {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}])
    def test_a_later_run_from_the_same_shell_tries_again(self, stage: Stage, environment: dict[str, str]) -> None:
        stage.job("until_mended")
        assert stage.start(**environment)[0].expect("raised")["message"] == "disk full"
        assert stage.start(**environment)[0].expect("raised")["message"] == "disk full"
        assert len(stage.log) == 2
        (stage.directory / "mended").touch()
        assert stage.start(**environment)[0].expect("returned") == "fine"

    def test_a_second_call_is_a_new_attempt_for_all(self, stage: Stage) -> None:
        stage.job("at_the_second_try")
        three = stage.start(3)
        launch(three)
        assert [process.expect("raised")["type"] for process in three] == ["ConnectionResetError"] * 3
        for process in three:
            process.tell()
        assert [process.expect("returned") for process in three] == ["fine"] * 3
        assert len(stage.log) == 2

    def test_every_attempt_fails_once_for_all(self, stage: Stage) -> None:
        stage.job("as_often_as_told")
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
        stage.job("as_often_as_told")
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
        stage.job("awkward")
        two = stage.start(2)
        launch(two)
        runner = stage.runner()
        stage.let_go()
        for process in two:
            error = process.expect("raised")
            if process.pid == runner:
                assert (error["type"], error["message"]) == ("AwkwardError", "403: forbidden")
            else:
                assert error["type"] == "DistributedError"
                assert f"prepare() failed in process {runner}" in error["message"]
                assert "AwkwardError: 403: forbidden" in error["message"]

    def test_a_value_that_cannot_be_pickled_is_one_everywhere(self, stage: Stage) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return lambda: 1\ncall(prepare)\n")
        two = stage.start(2)
        launch(two)
        for process in two:
            error = process.expect("raised")
            assert error["type"] == "DistributedError"
            assert "prepare() returned a function that cannot be handed to other processes" in error["message"]
        assert len(stage.log) == 1

    def test_an_interrupt_is_not_one_but_frees_the_lock(self, stage: Stage) -> None:
        stage.job("interrupted")
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
        stage.job("impatient")
        first, second = stage.start(2)
        first.expect("ready")
        first.tell()
        stage.runner()
        second.expect("ready")
        second.tell()
        error = second.expect("raised")
        assert error["type"] == "DistributedTimeoutError"
        assert "prepare() was not finished within 0.3 s" in error["message"]
        assert f"process {first.pid} on {os.uname().nodename}" in error["message"]
        stage.let_go()
        first.expect("returned")

    def test_a_timeout_is_a_builtin_one(self) -> None:
        assert issubclass(DistributedTimeoutError, TimeoutError)


@pytest.mark.slow
def test_under_torchrun_one_worker_runs_and_all_fail_alike(stage: Stage) -> None:
    stage.job("rank_of_torchrun")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for run in (1, 2):
        done = subprocess.run(
            [*command, *stage.program], cwd=stage.directory, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        raised = sorted(stage.directory.glob("raised-*"))
        assert [path.name for path in raised] == ["raised-0-of-2", "raised-1-of-2"]
        assert len(stage.log) == 1 + run  # "good" once, "bad" once in each run
        for path in raised:
            path.unlink()
