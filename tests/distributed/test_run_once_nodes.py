"""data_download between processes of two nodes that share a directory, and where the runner ends in its own ways."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import launch

if TYPE_CHECKING:
    from tests.support.jobs import Process, Stage

LAUNCHERS = {
    "slurm": {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    "torchrun": {
        "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "by node",
    },
}  # fmt: skip


def two_nodes(stage: Stage, **environment: str) -> list[Process]:
    """Start two processes on each of two nodes: what makes a node is a temporary directory of its own."""
    started = []
    for restarts, name in enumerate(("a", "b")):
        (stage.directory / name).mkdir(exist_ok=True)
        shell = ["/bin/sh", "-c", f'{sys.executable} "$0" "$@"; true']
        by = shell if "TORCHELASTIC_RUN_ID" in environment else None
        if "TORCHELASTIC_RESTART_COUNT" in environment:  # an agent counts those restarts that its own workers caused
            environment["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
        started += stage.start(2, by=by, TMPDIR=str(stage.directory / name), **environment)
    return started


class TestTheCluster:
    @pytest.mark.parametrize("launcher", LAUNCHERS)
    def test_an_error_is_raised_on_all_nodes(self, stage: Stage, launcher: str) -> None:
        stage.job("failing_on_all_nodes")
        four = two_nodes(stage, **LAUNCHERS[launcher])
        launch(four)
        runner = stage.runner()
        stage.let_go()
        errors = [process.expect("raised") for process in four]
        assert [(error["type"], error["message"]) for error in errors] == [("ConnectionError", "no route to host")] * 4
        causes = [error["cause"] for error in errors if error["cause"] != "None"]
        assert len(causes) == 3
        assert all(f"prepare() failed in process {runner} on {os.uname().nodename}" in cause for cause in causes)
        assert len(stage.log) == 1

    def test_a_process_of_the_other_node_takes_over_where_all_of_one_die(self, stage: Stage) -> None:
        stage.job("held", "cluster")
        four = two_nodes(stage, **LAUNCHERS["slurm"])
        launch(four)
        node, other = (four[:2], four[2:])
        if stage.runner() not in [process.pid for process in node]:
            node, other = other, node
        for process in node:
            os.kill(process.pid, signal.SIGKILL)
        successor = stage.runner()
        stage.let_go()
        assert successor in [process.pid for process in other]
        assert [process.expect("returned") for process in other] == [successor] * 2
        assert len(stage.log) == 2


class TestTheRunner:
    def test_its_children_do_not_keep_others_from_taking_over(self, stage: Stage) -> None:
        stage.job("with_a_child")
        two = stage.start(2)
        launch(two)
        try:
            first = stage.runner()
            os.kill(first, signal.SIGKILL)
            second = stage.runner()
            stage.let_go()
            (survivor,) = [process for process in two if process.pid != first]
            assert survivor.expect("returned") == second == survivor.pid
        finally:
            os.kill(int((stage.directory / "child").read_text()), signal.SIGKILL)

    @pytest.mark.parametrize("way", ["an exit", "a signal", "a hard exit"])
    def test_one_that_ends_itself_is_replaced(self, stage: Stage, way: str) -> None:
        stage.job("ending_itself", way)
        two = stage.start(2)
        launch(two)
        first = stage.runner()
        stage.let_go()
        (survivor,) = [process for process in two if process.pid != first]
        assert survivor.expect("returned") == survivor.pid


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "told"),
        [
            ("local", "Wrong: disk full"),
            ("unpicklable", "Wrong: disk full"),
            ("speechless", "Wrong: <exception str() failed>"),
        ],
    )
    def test_one_of_any_kind_is_raised_everywhere(self, stage: Stage, kind: str, told: str) -> None:
        stage.job("failing_by", kind)
        two = stage.start(2)
        launch(two)
        runner = stage.runner()
        stage.let_go()
        for process in two:
            name, message = process.expect("raised")
            if process.pid == runner:
                assert (name, message) == ("Wrong", "disk full")
            else:
                assert name == "DistributedError"
                assert told in message
        assert len(stage.log) == 1

    def test_one_of_a_call_within_a_call_is_that_of_both(self, stage: Stage) -> None:
        stage.job("one_within_another")
        two = stage.start(2)
        launch(two)
        stage.runner()
        stage.let_go()
        assert [process.expect("raised")["message"] for process in two] == ["no route to host"] * 2
        assert [word for _, word in stage.log][:2] == ["prepare", "fetch"]


def test_calls_in_another_order_on_each_process_run_once_each(stage: Stage) -> None:
    stage.job("by_names")
    three = stage.start(3)
    for process in three:
        process.expect("ready")
    for process, names in zip(three, ("abc", "cab", "bca"), strict=True):
        process.tell(names)
    said = [process.expect("returned") for process in three]
    assert said[0] == said[1] == said[2]
    assert sorted(word for _, word in stage.log) == ["a", "b", "c"]
