"""Who am I: arguments, then torch.distributed, then the launcher, then alone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist._util.host import cpu_count, private_dir, user_cache_dir
from wdsdist.distributed import Identity, identity
from wdsdist.distributed.identity import share_of_cores
from wdsdist.errors import ArgumentError, DestinationError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}


NUMBERS = [
    pytest.param(environment, name, id=name)
    for environment in (TORCHRUN, SLURM, OPENMPI)
    for name in environment
    if name not in ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_NODE_RANK")  # no number, and not read
]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_all(*environments: dict[str, str], **more: str) -> None:
        for environment in (*environments, more):
            for name, value in environment.items():
                monkeypatch.setenv(name, value)

    return set_all


class TestDetection:
    def test_a_plain_process_is_alone(self) -> None:
        assert identity() == Identity(0, 1, 0, 1, 0, "single process")

    def test_torchrun_tells_everything(self, launch: Callable[..., None]) -> None:
        launch(TORCHRUN)
        assert identity() == Identity(5, 8, 1, 4, 1, "torchrun")

    def test_srun_tells_the_tasks_of_each_node(self, launch: Callable[..., None]) -> None:
        launch(SLURM)
        assert identity() == Identity(9, 11, 1, 3, 2, "slurm")

    def test_mpirun_is_understood(self, launch: Callable[..., None]) -> None:
        launch(OPENMPI)
        assert identity() == Identity(3, 4, 1, 2, 1, "openmpi")

    def test_torchrun_inside_srun_wins(self, launch: Callable[..., None]) -> None:
        launch(SLURM, OPENMPI, TORCHRUN)
        assert identity().source == "torchrun"

    def test_a_batch_script_without_srun_is_alone(self, launch: Callable[..., None]) -> None:
        launch(SLURM_JOB_ID="77", SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_LOCALID="0", SLURM_NODEID="0")
        assert identity() == Identity(0, 1, 0, 1, 0, "single process")

    def test_world_size_exported_by_a_batch_script_leaves_the_rank_to_srun(self, launch: Callable[..., None]) -> None:
        launch(SLURM, WORLD_SIZE="11")
        assert identity() == Identity(9, 11, 1, 3, 2, "slurm")

    def test_rank_and_world_size_alone_are_taken_to_be_one_node(self, launch: Callable[..., None]) -> None:
        launch(RANK="2", WORLD_SIZE="3")
        assert identity() == Identity(2, 3, 2, 3, 0, "torchrun")

    def test_a_process_group_comes_before_the_environment(
        self, launch: Callable[..., None], process_group: Callable[..., None]
    ) -> None:
        launch(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GROUP_RANK="0")
        process_group(2, 4)
        # spawned by hand inside one launched task, whose LOCAL_RANK says nothing about these four
        assert identity() == Identity(2, 4, 2, 4, 0, "torch.distributed")

    def test_a_process_group_of_the_launched_processes_keeps_their_places(
        self, launch: Callable[..., None], process_group: Callable[..., None]
    ) -> None:
        launch(TORCHRUN)
        process_group(5, 8)
        assert identity() == Identity(5, 8, 1, 4, 1, "torch.distributed")

    def test_a_process_group_needs_no_sound_environment(
        self, launch: Callable[..., None], process_group: Callable[..., None]
    ) -> None:
        launch(RANK="none", WORLD_SIZE="8")
        process_group(1, 2)
        assert identity() == Identity(1, 2, 1, 2, 0, "torch.distributed")

    @given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=12))
    def test_slurm_counts_are_read_as_slurm_writes_them(self, counts: list[int]) -> None:
        runs: list[list[int]] = []
        for count in counts:
            if runs and runs[-1][0] == count:
                runs[-1][1] += 1
            else:
                runs.append([count, 1])
        written = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
        for node, count in enumerate(counts):
            first = sum(counts[:node])
            with pytest.MonkeyPatch.context() as patch:
                for name, value in {
                    "SLURM_PROCID": first,
                    "SLURM_STEP_NUM_TASKS": sum(counts),
                    "SLURM_LOCALID": 0,
                    "SLURM_NODEID": node,
                    "SLURM_STEP_TASKS_PER_NODE": written,
                }.items():
                    patch.setenv(name, str(value))
                assert identity() == Identity(first, sum(counts), 0, count, node, "slurm")


class TestArguments:
    def test_they_come_first(self, launch: Callable[..., None]) -> None:
        launch(TORCHRUN)
        me = identity(rank=1, num_replicas=2)
        assert (me.rank, me.world_size, me.source) == (1, 2, "arguments")
        assert (me.local_rank, me.local_world_size, me.node_rank) == (1, 4, 1)

    def test_a_rank_alone_is_completed(self, launch: Callable[..., None]) -> None:
        launch(TORCHRUN)
        me = identity(rank=7)
        assert (me.rank, me.world_size, me.source) == (7, 8, "arguments")

    def test_a_number_of_replicas_alone_is_completed(self, launch: Callable[..., None]) -> None:
        launch(TORCHRUN)
        assert identity(num_replicas=6).rank == 5

    def test_both_need_no_sound_environment(self, launch: Callable[..., None]) -> None:
        launch(WORLD_SIZE="eight")
        assert identity(rank=1, num_replicas=2) == Identity(1, 2, 0, 1, 0, "arguments")

    def test_the_rank_must_be_below_the_number_of_replicas(self) -> None:
        with pytest.raises(ArgumentError, match=r"^rank is 4 but num_replicas is 4: ranks run from 0 to 3$"):
            identity(rank=4, num_replicas=4)

    def test_a_completed_limit_says_where_it_comes_from(self) -> None:
        with pytest.raises(ArgumentError, match=r"rank is 1 but num_replicas is 1 \(from single process\)"):
            identity(rank=1)

    @pytest.mark.parametrize(
        "arguments", [{"rank": -1}, {"num_replicas": 0}, {"num_replicas": -2}, {"num_replicas": 10**12}]
    )
    def test_values_out_of_range_are_refused(self, arguments: dict[str, int]) -> None:
        name, value = next(iter(arguments.items()))
        with pytest.raises(
            ArgumentError, match=f"{name} is {value:,}: it must be (at least 0|between 1 and 1,048,576)"
        ):
            identity(**arguments)

    @pytest.mark.parametrize("value", [True, 1.0, "1"])
    @pytest.mark.parametrize("name", ["rank", "num_replicas"])
    def test_only_ints_will_do(self, name: str, value: object) -> None:
        with pytest.raises(ArgumentError, match=f"{name} is .*: it must be an integer"):
            identity(**{name: value})  # type: ignore[arg-type]

    def test_a_number_of_replicas_that_does_not_divide_the_process_group_is_a_warning(
        self, process_group: Callable[..., None]
    ) -> None:
        process_group(3, 8)
        with pytest.warns(UserWarning, match=r"num_replicas is 3, which does not divide .* world size 8"):
            me = identity(rank=1, num_replicas=3)
        assert (me.rank, me.world_size) == (1, 3)

    @pytest.mark.parametrize("num_replicas", [1, 2, 4, 8])
    def test_replicas_of_several_processes_are_none(
        self, process_group: Callable[..., None], num_replicas: int
    ) -> None:
        process_group(3, 8)
        assert identity(rank=0, num_replicas=num_replicas).rank == 0  # a warning would be an error here

    def test_an_identity_does_not_change(self) -> None:
        with pytest.raises(FrozenInstanceError):
            identity().rank = 1  # type: ignore[misc]


class TestBrokenEnvironments:
    @pytest.mark.parametrize("value", ["four", "-1", "1.5", "0x2", "²", "", " ", "1e3", "nan"])
    @pytest.mark.parametrize(("environment", "name"), NUMBERS)
    def test_a_variable_that_is_no_number_is_named(
        self, launch: Callable[..., None], environment: dict[str, str], name: str, value: str
    ) -> None:
        launch({**environment, name: value})
        with pytest.raises(ArgumentError, match=f"^{name} is {value!r}: it must be a whole number"):
            identity()

    @pytest.mark.parametrize("value", ["1048577", "1000000000000", "9" * 5000, "0" * 5000 + "9" * 20])
    @pytest.mark.parametrize(("environment", "name"), NUMBERS)
    def test_a_number_that_no_world_has_is_named(
        self, launch: Callable[..., None], environment: dict[str, str], name: str, value: str
    ) -> None:
        launch({**environment, name: value})
        with pytest.raises(ArgumentError, match=rf"^{name} is '{value[:5]}[0-9.]*': it must be at most 1,048,576$"):
            identity()

    @pytest.mark.parametrize("value", ["", " ", "x", "4,", "4(x)", "-4", "9" * 5000, f"4(x{'9' * 5000})"])
    def test_tasks_of_nodes_that_slurm_does_not_write_are_named(self, launch: Callable[..., None], value: str) -> None:
        launch({**SLURM, "SLURM_STEP_TASKS_PER_NODE": value})
        with pytest.raises(ArgumentError, match=r"^SLURM_STEP_TASKS_PER_NODE is '.*': it must read as"):
            identity()

    @pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
    @pytest.mark.parametrize("value", ["", "-1", "eight", "1000000000000"])
    def test_one_variable_alone_is_read_as_strictly(self, launch: Callable[..., None], name: str, value: str) -> None:
        launch({name: value})
        with pytest.raises(ArgumentError, match=f"^{name} is '{value}': it must be"):
            identity()

    def test_the_largest_world_is_a_world(self, launch: Callable[..., None]) -> None:
        launch(RANK="1048575", WORLD_SIZE=" 1048576\n")
        assert identity().world_size == 1 << 20
        with pytest.raises(ArgumentError, match=r"^num_replicas is 1,048,577: it must be between 1 and 1,048,576$"):
            identity(rank=0, num_replicas=(1 << 20) + 1)

    @pytest.mark.parametrize(
        ("environment", "message"),
        [
            ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4 but WORLD_SIZE is 4: ranks run from 0 to 3"),
            ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is 0: there must be at least 1"),
            ({"RANK": "1"}, "RANK is 1 but WORLD_SIZE is not set"),
            ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 but RANK is not set: call torch.distributed.init_process_group"),
            ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK is 4 but LOCAL_WORLD_SIZE says that there are 4 processes"),
            (
                {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2"},
                "LOCAL_RANK is 2 but WORLD_SIZE says that there are 2",
            ),
            ({**SLURM, "SLURM_PROCID": "11"}, "SLURM_PROCID is 11 but SLURM_STEP_NUM_TASKS is 11: ranks run from 0 to"),
            ({**SLURM, "SLURM_LOCALID": "3"}, "SLURM_LOCALID is 3 but SLURM_STEP_TASKS_PER_NODE says that there are 3"),
            ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK is 4 but OMPI_COMM_WORLD_SIZE is 4"),
            ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE is 0: there must be at least 1"),
            (
                {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
                "OMPI_COMM_WORLD_LOCAL_RANK is 2 but OMPI_COMM_WORLD_LOCAL_SIZE says that there are 2 processes",
            ),
            (
                {**TORCHRUN, "LOCAL_WORLD_SIZE": "0"},
                "LOCAL_WORLD_SIZE is 0: there must be at least 1 process on this node",
            ),
            ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x2"}, r"SLURM_STEP_TASKS_PER_NODE is '4\(x2'"),
            ({**SLURM, "SLURM_NODEID": "3"}, r"SLURM_NODEID is 3 but .* names 3 nodes"),
        ],
    )
    def test_a_contradiction_is_explained(
        self, launch: Callable[..., None], environment: dict[str, str], message: str
    ) -> None:
        launch(environment)
        with pytest.raises(ArgumentError, match=message):
            identity()


class TestCores:
    def test_only_those_that_this_process_may_use_count(self) -> None:
        program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        program += "from wdsdist._util.host import cpu_count; print(cpu_count())"
        assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "1\n"

    def test_there_is_always_one(self) -> None:
        assert cpu_count() >= 1


class TestCacheDirectory:
    def test_our_own_variable_comes_first(self, launch: Callable[..., None]) -> None:
        launch(WDSDIST_CACHE_DIR="/here", XDG_CACHE_HOME="/there")
        assert user_cache_dir() == Path("/here")

    def test_then_that_of_the_desktop(self, launch: Callable[..., None]) -> None:
        launch(XDG_CACHE_HOME="/there")
        assert user_cache_dir() == Path("/there/wdsdist")

    def test_a_relative_one_is_ignored(self, launch: Callable[..., None]) -> None:
        launch(XDG_CACHE_HOME="there", HOME="/home/me")
        assert user_cache_dir() == Path("/home/me/.cache/wdsdist")

    def test_a_tilde_of_ours_is_the_home_directory(self, launch: Callable[..., None]) -> None:
        launch(WDSDIST_CACHE_DIR="~/shards", HOME="/home/me")
        assert user_cache_dir() == Path("/home/me/shards")

    def test_a_user_without_a_home_is_told_what_to_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def homeless() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", homeless)
        with pytest.raises(ArgumentError, match="set WDSDIST_CACHE_DIR"):
            user_cache_dir()


class TestPrivateDirectory:
    def test_it_is_closed_to_others_whatever_the_umask(self, temporary: Path) -> None:
        before = os.umask(0)
        try:
            path = private_dir()
        finally:
            os.umask(before)
        assert path == temporary / f"wdsdist-{os.geteuid()}"
        assert path.stat().st_mode & 0o777 == 0o700
        assert private_dir() == path

    def test_a_link_is_refused_even_to_a_directory_of_our_own(self, temporary: Path) -> None:
        target = Path(tempfile.mkdtemp())
        (temporary / f"wdsdist-{os.geteuid()}").symlink_to(target)
        with pytest.raises(DestinationError, match="is a link or a file"):
            private_dir()

    def test_it_needs_a_temporary_directory_that_can_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def nowhere() -> str:
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

        monkeypatch.setattr(tempfile, "gettempdir", nowhere)
        with pytest.raises(DestinationError, match=r"No usable temporary directory found in .*: set TMPDIR to"):
            private_dir()

    def test_a_file_in_its_place_is_refused(self, temporary: Path) -> None:
        (temporary / f"wdsdist-{os.geteuid()}").touch(0o700)
        with pytest.raises(DestinationError, match=r"cannot make the private directory .*File exists"):
            private_dir()

    @pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
    def test_one_that_others_can_enter_is_refused(self, mode: int) -> None:
        private_dir().chmod(mode)
        with pytest.raises(DestinationError, match=f"open to others .*{mode:04o}"):
            private_dir()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
    def test_one_of_another_user_is_refused(self) -> None:
        os.chown(private_dir(), 12345, -1)
        with pytest.raises(DestinationError, match="belongs to user 12345, not to user 0"):
            private_dir()

    def test_a_missing_temporary_directory_is_an_error_that_names_it(self, temporary: Path) -> None:
        temporary.rmdir()
        with pytest.raises(DestinationError, match=str(temporary)):
            private_dir()


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import sys; from wdsdist.distributed import barrier, identity; identity(); barrier(1); "
    program += "print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("on_node", "cores", "share"),
    [("48", 12, 12), ("48", 48, 12), ("48", 13, 3), ("", 12, 3), ("48(x2)", 12, 3)],
)
def test_a_task_that_srun_binds_to_cores_has_them_to_itself(
    monkeypatch: pytest.MonkeyPatch, on_node: str, cores: int, share: int
) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", on_node)
    assert share_of_cores(cores, identity().local_world_size) == share
