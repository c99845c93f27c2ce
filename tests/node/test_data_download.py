"""data_download between real processes: one runs, all get the value or the error, a later run is free to try again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wdsdist.errors import DataDownloadTimeoutError
from wdsdist.node import data_download

if TYPE_CHECKING:
    from conftest import Process, Stage

CALL = """
say("ready")
hear()
report(prepare)
"""


def launch(processes: list[Process]) -> None:
    """Have all processes call the function, once all of them have started."""
    for process in processes:
        process.expect("ready")
    for process in processes:
        process.tell()


class TestOneRuns:
    def test_one_of_four_processes_runs_and_all_get_the_value(self, stage: Stage) -> None:
        stage.write(
            """
@data_download
def prepare():
    log()
    announce()
    wait()
    return {"by": os.getpid()}
"""
            + CALL
        )
        four = stage.start(4)
        launch(four)
        runner = stage.runner()
        stage.let_go()
        assert [process.expect("returned") for process in four] == [{"by": runner}] * 4
        assert stage.log == [[str(runner)]]

    def test_a_later_run_skips_it(self, stage: Stage) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return os.getpid()\nreport(prepare)\n")
        (first,) = stage.start()
        value = first.expect("returned")
        (later,) = stage.start()
        assert later.expect("returned") == value == first.pid
        assert len(stage.log) == 1

    def test_every_node_runs_it_once(self, stage: Stage, tmp_path: Path) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return os.getpid()\n" + CALL)
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
            "def prepare():\n    log()\n    return os.getpid()\n" + CALL
        )
        nodes = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            nodes += stage.start(TMPDIR=str(tmp_path / name))
        launch(nodes)
        assert nodes[0].expect("returned") == nodes[1].expect("returned")
        assert len(stage.log) == 1

    def test_different_functions_do_not_wait_for_each_other(self, stage: Stage) -> None:
        stage.write(
            """
@data_download
def prepare():
    announce()
    wait()
    return "slow"

@data_download
def other(name):
    return name

say("ready")
if hear() == "slow":
    report(prepare)
else:
    report(other, "quick")
"""
        )
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
        stage.write(
            """
from concurrent.futures import ThreadPoolExecutor

@data_download
def prepare():
    log()
    announce()
    wait()
    return 7

with ThreadPoolExecutor(4) as pool:
    values = [future.result() for future in [pool.submit(prepare) for _ in range(4)]]
say("returned", values)
"""
        )
        (process,) = stage.start()
        stage.runner()
        stage.let_go()
        assert process.expect("returned") == [7] * 4
        assert len(stage.log) == 1

    def test_when_the_runner_is_killed_another_takes_over(self, stage: Stage) -> None:
        stage.write(
            """
@data_download
def prepare():
    log()
    announce()
    wait()
    return os.getpid()
"""
            + CALL
        )
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
        stage.write(
            """
@data_download(force=True)
def prepare():
    log()
    return os.getpid()

say("ready")
hear()
report(prepare)
report(prepare)
"""
        )
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


class TestWhatIsKept:
    @pytest.mark.parametrize(
        "returned", ["made", "str(made)", "[made, 1]", "{'train': str(made)}", "('x', made)", "Path('made')"]
    )
    def test_it_is_void_once_the_returned_path_is_gone(self, stage: Stage, returned: str) -> None:
        stage.write(
            f"""
os.chdir(HERE)
made = HERE / "made"

@data_download
def prepare():
    log()
    made.touch()
    return {returned}

prepare()
say("done")
"""
        )

        def run() -> int:
            stage.start()[0].expect("done")
            return len(stage.log)

        assert [run(), run()] == [1, 1]
        (stage.directory / "made").unlink()
        assert [run(), run()] == [2, 2]

    @pytest.mark.parametrize("returned", ["'/no/such/path'", "Path('/no/such/path')", "'/' + 5000 * 'x'", "'/\\0'"])
    def test_a_path_that_never_was_does_not_void_it(self, stage: Stage, returned: str) -> None:
        stage.write(f"@data_download\ndef prepare():\n    log()\n    return {returned}\nprepare()\nsay('done')\n")
        for _ in range(2):
            stage.start()[0].expect("done")
        assert len(stage.log) == 1

    def test_a_run_that_was_killed_leaves_no_claim_of_an_earlier_one(self, stage: Stage) -> None:
        stage.write(
            """
say("ready")
forced = hear() == "forced"

def prepare():
    log()
    if forced:
        announce()
        wait()
    return os.getpid()

report(data_download(prepare, force=forced))
"""
        )

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

    def test_a_changed_function_runs_again_but_a_changed_option_does_not(self, stage: Stage) -> None:
        def run(decorator: str, body: str) -> int:
            stage.write(f"{decorator}\ndef prepare():\n    log()\n    {body}\nprepare()\nsay('done')\n")
            stage.start()[0].expect("done")
            return len(stage.log)

        assert run("@data_download", "return 1") == 1
        assert run("@data_download(\n    timeout=60)", "return 1") == 1
        assert run("@data_download", "return 2") == 2

    def test_a_damaged_record_counts_for_nothing(self, stage: Stage) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return 5\nreport(prepare)\n")
        for damage in (b"", b"{}", b'{"format": 1}\n', b"\xff\n\xff", b"[]\n"):
            stage.start()[0].expect("returned")
            (record,) = stage.directory.glob("tmp/wdsdist-*/*.outcome")
            header, _, payload = record.read_bytes().partition(b"\n")
            record.write_bytes(damage)
        record.write_bytes(header + b"\n" + payload[:-3])
        assert stage.start()[0].expect("returned") == 5
        assert len(stage.log) == 6

    def test_nothing_but_lock_and_record_is_left_behind(self, temporary: Path) -> None:
        @data_download
        def prepare() -> int:
            return 1

        prepare()
        assert sorted(path.suffix for path in temporary.glob("wdsdist-*/*")) == [".lock", ".outcome"]


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
from wdsdist.node import identity
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
from wdsdist.node import barrier
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
        began = time.monotonic()
        done = subprocess.run([*command, str(stage.script)], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr} after {time.monotonic() - began} s"
        raised = sorted(stage.directory.glob("raised-*"))
        assert [path.name for path in raised] == ["raised-0-of-2", "raised-1-of-2"]
        assert len(stage.log) == 1 + run  # "good" once, "bad" once in each run
        for path in raised:
            path.unlink()
