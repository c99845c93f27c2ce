"""data_download between real processes: one runs, all get the value or the error, whoever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.gloo_ranks import Ranks
from tests.support.jobs import launch
from wdsdist.distributed.barriers import barrier
from wdsdist.distributed.run_once import data_download
from wdsdist.errors import DistributedTimeoutError

if TYPE_CHECKING:
    from tests.support.jobs import Process, Stage

LAUNCHERS = {
    "shell": {},
    "slurm": {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    "torchrun": {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
}
WRAPPER = ["/bin/sh", "-c", f'{sys.executable} "$0" "$@"; true']
"""Gives each process a parent of its own."""


def two_nodes(stage: Stage, *, by: list[str] | None = None, **launcher: str) -> list[Process]:
    """Start two processes on each of two nodes, each with a temporary directory of its own."""
    started = []
    for restarts, name in enumerate("ab"):
        (stage.directory / name).mkdir(exist_ok=True)
        if "TORCHELASTIC_RUN_ID" in launcher:  # an agent counts only the restarts that its own workers caused
            launcher["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
        started += stage.start(2, by=by, TMPDIR=str(stage.directory / name), **launcher)
    return started


def cluster(stage: Stage) -> str:
    return json.dumps({"scope": "cluster", "directory": str(stage.directory / "shared")})


def begun(stage: Stage, number: int, *job: object) -> tuple[list[Process], int]:
    """Start and launch processes of a job, and return them with the one that runs."""
    stage.job(*job)
    processes = stage.start(number)
    launch(processes)
    return processes, stage.runner()


class TestOneRuns:
    def test_all_get_the_value_also_a_later_run(self, stage: Stage) -> None:
        four, runner = begun(stage, 4, "held", "returns")
        stage.let_go()
        assert [process.expect("returned") for process in four] == [runner] * 4
        (later,) = stage.start()
        launch([later])
        assert later.expect("returned") == runner
        assert stage.log == [[str(runner)]]

    @pytest.mark.parametrize("scope", ["node", "cluster"])
    def test_on_every_node_or_once_for_the_cluster(self, stage: Stage, scope: str) -> None:
        stage.job("quick", cluster(stage) if scope == "cluster" else "{}")
        four = two_nodes(stage)
        launch(four)
        values = [process.expect("returned") for process in four]
        assert values[0] == values[1]
        assert values[2] == values[3]
        assert len(set(values)) == len(stage.log) == (1 if scope == "cluster" else 2)

    def test_forced_it_runs_once_in_every_run(self, stage: Stage) -> None:
        stage.job("quick", '{"force": true}')
        for run in (1, 2):
            three = stage.start(3)
            launch(three)
            assert len({process.expect("returned") for process in three for _ in range(2)}) == 1
            assert len(stage.log) == run


class TestTheRunnerDies:
    def test_a_process_of_the_other_node_takes_over_if_all_of_one_die(self, stage: Stage) -> None:
        stage.job("held", "returns", cluster(stage))
        four = two_nodes(stage, **LAUNCHERS["slurm"])
        launch(four)
        node, other = four[:2], four[2:]
        if stage.runner() not in [process.pid for process in node]:
            node, other = other, node
        for process in node:
            os.kill(process.pid, signal.SIGKILL)
        successor = stage.runner()
        stage.let_go()
        assert successor in [process.pid for process in other]
        assert [process.expect("returned") for process in other] == [successor] * 2

    @pytest.mark.parametrize("action", ["exits", "ends at once"])
    def test_one_that_ends_itself_is_replaced(self, stage: Stage, action: str) -> None:
        two, first = begun(stage, 2, "held", action)
        stage.let_go()
        second = stage.runner()
        stage.let_go()
        (survivor,) = [process for process in two if process.pid != first]
        assert survivor.expect("returned") == second == survivor.pid

    def test_another_takes_over_whatever_children_it_leaves(self, stage: Stage) -> None:
        four, killed = begun(stage, 4, "held", "forks")
        try:
            os.kill(killed, signal.SIGKILL)
            second = stage.runner()
            stage.let_go()
            assert [process.expect("returned") for process in four if process.pid != killed] == [second] * 3
            assert stage.log == [[str(killed)], [str(second)]]
        finally:
            os.kill(int((stage.directory / "child").read_text()), signal.SIGKILL)

    def test_one_that_was_killed_leaves_no_result_of_an_earlier_run(self, stage: Stage) -> None:
        stage.job("forced_on_demand")

        def run(how: str) -> Process:
            (process,) = stage.start()
            process.expect("ready")
            process.tell(how)
            return process

        run("plain").expect("returned")
        run("forced")
        os.kill(stage.runner(), signal.SIGKILL)
        later = run("plain")
        assert later.expect("returned") == later.pid

    def test_an_interrupt_is_no_error_of_the_others(self, stage: Stage) -> None:
        two, first = begun(stage, 2, "held", "returns")
        os.kill(first, signal.SIGINT)
        second = stage.runner()
        stage.let_go()
        for process in two:
            if process.pid == first:
                process.expect("interrupted")
            else:
                assert process.expect("returned") == second

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(5))
    def test_the_runner_and_a_waiter_may_be_killed_at_any_moment(self, stage: Stage, seed: int) -> None:
        chance = random.Random(seed)
        four, runner = begun(stage, 4, "in_steps", 20)
        time.sleep(chance.uniform(0, 0.06))
        os.kill(runner, signal.SIGKILL)
        waiter = chance.choice([process for process in four if process.pid != runner])
        os.kill(waiter.pid, signal.SIGKILL)
        # Any process that takes the place of a killed one may go on, as often as that happens.
        threading.Thread(target=lambda: [stage.runner() for _ in iter(int, 1)], daemon=True).start()
        for process in four:
            if process.pid not in (runner, waiter.pid):
                assert process.expect("returned") == str(stage.directory / "made")
        assert len(list((stage.directory / "made").iterdir())) == 20


class TestErrors:
    # Without a launcher, nothing says which processes of two nodes belong together.
    @pytest.mark.parametrize(("launcher", "scope"), [("shell", "node"), ("slurm", "cluster"), ("torchrun", "cluster")])
    def test_one_is_raised_in_every_process_and_names_the_runner(self, stage: Stage, launcher: str, scope: str) -> None:
        stage.job("held", "raises", cluster(stage) if scope == "cluster" else "{}")
        by = None if launcher == "shell" else WRAPPER
        start = two_nodes if scope == "cluster" else (lambda stage, **options: stage.start(4, **options))
        four = start(stage, by=by, **LAUNCHERS[launcher])
        launch(four)
        runner = stage.runner()
        stage.let_go()
        errors = [process.expect("raised") for process in four]
        assert [(error["type"], error["message"]) for error in errors] == [("WrongError", "no route to host")] * 4
        causes = [error["cause"] for error in errors if error["cause"] != "None"]
        assert len(causes) == 3
        for cause in causes:
            assert f"prepare() failed in process {runner} on {os.uname().nodename}" in cause
            assert 'WrongError("no route to host")' in cause
        assert len(stage.log) == 1

    @pytest.mark.parametrize(
        ("action", "own", "others"),
        [
            ("raises what cannot be pickled", ("AwkwardError", "403: forbidden"), "AwkwardError: 403: forbidden"),
            ("raises a local class", ("LocalError", "disk full"), "LocalError: disk full"),
            (
                "raises without a message",
                ("LocalError", "<exception str() failed>"),
                "LocalError: <exception str() failed>",
            ),
            ("returns a function", None, "prepare() returned a function that cannot be handed to other processes"),
        ],
    )
    def test_one_of_any_kind_is_raised_everywhere(
        self, stage: Stage, action: str, own: tuple[str, str] | None, others: str
    ) -> None:
        two, runner = begun(stage, 2, "held", action)
        stage.let_go()
        for process in two:
            error = process.expect("raised")
            if process.pid == runner and own:
                assert (error["type"], error["message"]) == own
            else:
                assert error["type"] == "DistributedError"
                assert others in error["message"]
        assert len(stage.log) == 1

    @pytest.mark.parametrize("launcher", ["shell", "torchrun"])
    def test_a_second_call_and_a_later_run_try_again(self, stage: Stage, launcher: str) -> None:
        stage.job("repeated")

        def started() -> list[Process]:
            three = stage.start(3, **LAUNCHERS[launcher])
            for process in three:
                process.expect("ready")
            return three

        def call(processes: list[Process], outcome: str, runs: int) -> None:
            for process in processes:
                process.tell("call")
                process.expect(outcome)
            assert len(stage.log) == runs

        earlier, later = started(), started()
        call(earlier, "raised", 1)
        call(earlier, "raised", 2)
        again = started()
        call([*again, *earlier], "raised", 3)
        (stage.directory / "repaired").touch()
        call([*earlier[::-1], *again], "returned", 4)
        (stage.directory / "repaired").unlink()
        (stage.directory / "made").unlink()
        call(earlier, "raised", 5)
        call(later[:1], "raised", 5)

    def test_a_wait_that_is_too_long_names_the_runner(self, stage: Stage) -> None:
        stage.job("held", "returns", '{"timeout": 0.3}')
        first, second = stage.start(2)
        launch([first])
        stage.runner()
        launch([second])
        error = second.expect("raised")
        assert error["type"] == "DistributedTimeoutError"
        assert "prepare() was not finished within 0.3 s" in error["message"]
        assert f"process {first.pid} on {os.uname().nodename}" in error["message"]
        stage.let_go()
        first.expect("returned")
        assert issubclass(DistributedTimeoutError, TimeoutError)


GROUP_TIMEOUT = 1.0


@pytest.fixture
def ranks(tmp_path: Path, temporary: Path) -> Iterator[Ranks]:
    """Four ranks on two nodes, in a process group whose collectives time out after a second."""
    ranks = Ranks(4, temporary, timeout=GROUP_TIMEOUT)
    for rank in range(4):
        node = tmp_path / "ab"[rank // 2]
        node.mkdir(exist_ok=True)
        ranks.tell(rank, move_to, str(node))
        ranks.outcome(rank)
    yield ranks
    ranks.end()


def move_to(node: str) -> None:
    tempfile.tempdir = node  # the temporary directory makes the node


@data_download
def prepare(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@data_download
def hold(started: str, gate: str) -> int:
    Path(started).write_text(str(os.getpid()))
    Path(gate).read_text()
    return os.getpid()


def prepare_and_meet(seconds: float) -> tuple[int, float]:
    """Return the process that ran it, and the sum over all ranks of 1: the group is as good as before."""
    import torch
    import torch.distributed as dist

    value = prepare(seconds)
    barrier(60)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return value, ones.item()


def test_work_that_outlasts_the_timeout_of_the_process_group_succeeds_on_every_rank(ranks: Ranks) -> None:
    for rank, seconds in enumerate((2 * GROUP_TIMEOUT, 2 * GROUP_TIMEOUT, 0.0, 0.0)):
        ranks.tell(rank, prepare_and_meet, seconds)
    outcomes = [ranks.outcome(rank) for rank in range(4)]
    runners = [runner for runner, _ in outcomes]
    assert [total for _, total in outcomes] == [4.0] * 4
    assert runners[0] == runners[1] != runners[2] == runners[3]


def test_a_rank_that_dies_as_the_runner_is_replaced_on_its_node_and_missed_at_the_barrier(
    ranks: Ranks, tmp_path: Path
) -> None:
    started, gate = tmp_path / "begun", tmp_path / "open"
    for pipe in (started, gate):
        os.mkfifo(pipe)
    ranks.tell(3, hold, str(started), str(gate))
    dying = int(started.read_text())
    assert dying == ranks.processes[3].pid
    ranks.tell(2, hold, str(started), str(gate))
    assert ranks.is_waiting(2)
    os.kill(dying, signal.SIGKILL)
    successor = int(started.read_text())
    gate.write_text("")
    assert ranks.outcome(2) == successor == ranks.processes[2].pid
    for rank in range(3):
        ranks.tell(rank, barrier, 1.0)
    assert all("rank 3 of 4 did not come to the barrier" in str(ranks.outcome(rank)) for rank in range(3))
