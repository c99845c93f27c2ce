"""data_download between real processes: of those that call, one runs and all get the value."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.jobs import launch

if TYPE_CHECKING:
    from tests.support.jobs import Stage


class TestOneRuns:
    def test_one_of_four_processes_runs_and_all_get_the_value(self, stage: Stage) -> None:
        stage.job("held")
        four = stage.start(4)
        launch(four)
        runner = stage.runner()
        stage.let_go()
        assert [process.expect("returned") for process in four] == [runner] * 4
        assert stage.log == [[str(runner)]]

    def test_a_later_run_skips_it(self, stage: Stage) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return os.getpid()\nreport(prepare)\n")
        (first,) = stage.start()
        value = first.expect("returned")
        (later,) = stage.start()
        assert later.expect("returned") == value == first.pid
        assert len(stage.log) == 1

    def test_every_node_runs_it_once(self, stage: Stage, tmp_path: Path) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return os.getpid()\ncall(prepare)\n")
        nodes = []
        for name in ("a", "b"):  # what makes a node is a temporary directory of its own
            (tmp_path / name).mkdir()
            nodes += stage.start(2, TMPDIR=str(tmp_path / name))
        launch(nodes)
        values = [process.expect("returned") for process in nodes]
        assert values[0] == values[1] != values[2] == values[3]
        assert len(stage.log) == 2

    def test_a_cluster_runs_it_once(self, stage: Stage, tmp_path: Path) -> None:
        stage.write(
            '@data_download(scope="cluster", directory=HERE / "shared")\n'
            "def prepare():\n    log()\n    return os.getpid()\ncall(prepare)\n"
        )
        nodes = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            nodes += stage.start(TMPDIR=str(tmp_path / name))
        launch(nodes)
        assert nodes[0].expect("returned") == nodes[1].expect("returned")
        assert len(stage.log) == 1

    def test_different_functions_do_not_wait_for_each_other(self, stage: Stage) -> None:
        stage.job("one_of_two")
        slow, quick = stage.start(2)
        slow.expect("ready")
        slow.tell("slow")
        stage.runner()
        quick.expect("ready")
        quick.tell("quick")
        assert quick.expect("returned") == "quick"
        stage.let_go()
        assert slow.expect("returned") == "slow"

    def test_threads_of_one_process_are_no_different(self, stage: Stage) -> None:
        stage.job("in_threads")
        (process,) = stage.start()
        stage.runner()
        stage.let_go()
        assert process.expect("returned") == [7] * 4
        assert len(stage.log) == 1

    def test_when_the_runner_is_killed_another_takes_over(self, stage: Stage) -> None:
        stage.job("held")
        four = stage.start(4)
        launch(four)
        killed = stage.runner()
        os.kill(killed, signal.SIGKILL)
        second = stage.runner()
        stage.let_go()
        survivors = [process for process in four if process.pid != killed]
        assert [process.expect("returned") for process in survivors] == [second] * 3
        assert stage.log == [[str(killed)], [str(second)]]

    def test_forced_it_runs_once_in_every_run(self, stage: Stage) -> None:
        stage.job("forced")
        for run in (1, 2):
            processes = stage.start(3)
            launch(processes)
            values = {process.expect("returned") for process in processes for _ in range(2)}
            assert len(values) == 1
            assert len(stage.log) == run

    def test_a_torchrun_worker_that_starts_late_does_not_force_it_again(self, stage: Stage) -> None:
        stage.write("@data_download(force=True)\ndef prepare():\n    log()\n    return 1\nreport(prepare)\n")
        for _ in range(2):  # the parent of both, this process, is the agent
            (process,) = stage.start(TORCHELASTIC_RUN_ID="none", MASTER_PORT="29500")
            process.expect("returned")
        assert len(stage.log) == 1
        (restarted,) = stage.start(TORCHELASTIC_RUN_ID="none", MASTER_PORT="29500", TORCHELASTIC_RESTART_COUNT="1")
        restarted.expect("returned")
        assert len(stage.log) == 2
