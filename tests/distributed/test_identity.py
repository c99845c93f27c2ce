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
from typing import Any

import pytest

from wdsdist._util.host import private_dir, user_dir
from wdsdist.distributed.identity import Identity, identity, share_of_cores
from wdsdist.errors import ArgumentError, DestinationError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_NODES": "3",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}


LONE = Identity(0, 1, 1, 0, "single process")


Launch = Callable[[dict[str, str]], None]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Launch:
    def launch(environment: dict[str, str]) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return launch


Group = tuple[int, int] | None
KNOWN: list[tuple[dict[str, str], Group, dict[str, int], Identity]] = [
    *((environment, None, {}, expected) for environment, expected in [
    ({}, LONE),
    (TORCHRUN, Identity(5, 8, 4, 1, "torchrun")),
    (SLURM, Identity(9, 11, 4, 2, "slurm")),
    (OPENMPI, Identity(3, 4, 2, 1, "openmpi")),
    # torchrun inside srun wins
    ({**SLURM, **OPENMPI, **TORCHRUN}, Identity(5, 8, 4, 1, "torchrun")),
    # a batch script without srun
    ({"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}, LONE),
    # exported by a batch script, with the rank from srun
    ({**SLURM, "WORLD_SIZE": "11"}, Identity(9, 11, 4, 2, "slurm")),
    # one node
    ({"RANK": "2", "WORLD_SIZE": "3"}, Identity(2, 3, 3, 0, "torchrun")),
    # the largest world
    ({"RANK": "1048575", "WORLD_SIZE": " 1048576\n"}, Identity(1048575, 1 << 20, 1 << 20, 0, "torchrun")),
    ]),
    # spawned by hand inside one launched task, whose variables say nothing about these four
    ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, (2, 4), {},
     Identity(2, 4, 4, 0, "torch.distributed")),
    (TORCHRUN, (5, 8), {}, Identity(5, 8, 4, 1, "torch.distributed")),
    ({"RANK": "none", "WORLD_SIZE": "8"}, (1, 2), {}, Identity(1, 2, 2, 0, "torch.distributed")),
    # the environment completes the arguments
    (TORCHRUN, None, {"rank": 1, "num_replicas": 2}, Identity(1, 2, 4, 1, "arguments")),
    (TORCHRUN, None, {"rank": 7}, Identity(7, 8, 4, 1, "arguments")),
    (TORCHRUN, None, {"num_replicas": 6}, Identity(5, 6, 4, 1, "arguments")),
    ({"WORLD_SIZE": "eight"}, None, {"rank": 1, "num_replicas": 2}, Identity(1, 2, 1, 0, "arguments")),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "group", "arguments", "expected"), KNOWN)
def test_arguments_come_first_then_a_process_group_then_a_launcher(
    launch: Launch, process_group: Callable[..., None], environment: dict[str, str], group: Group,
    arguments: dict[str, int], expected: Identity,
) -> None:  # fmt: skip
    launch(environment)
    if group is not None:
        process_group(*group)
    assert identity(**arguments) == expected
    with pytest.raises(FrozenInstanceError):
        identity(**arguments).rank = 1  # type: ignore[misc]


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"rank": 4, "num_replicas": 4}, r"^rank is 4 but num_replicas is 4: ranks run from 0 to 3$"),
            ({"rank": 1}, r"rank is 1 but num_replicas is 1 \(from single process\)"),
            ({"rank": -1}, "rank is -1: it must be at least 0"),
            ({"num_replicas": 0}, "num_replicas is 0: it must be between 1 and 1,048,576"),
            ({"num_replicas": 10**12}, "num_replicas is 1,000,000,000,000: it must be between 1 and 1,048,576"),
            *(({name: value}, f"{name} is .*: it must be an integer") for name in ("rank", "num_replicas")
              for value in (True, 1.0, "1")),
        ],
    )  # fmt: skip
    def test_values_that_cannot_be_are_refused(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            identity(**arguments)

    def test_a_number_of_replicas_that_does_not_divide_the_process_group_is_a_warning(
        self, process_group: Callable[..., None]
    ) -> None:
        process_group(3, 8)
        with pytest.warns(UserWarning, match=r"num_replicas is 3, which does not divide .* world size 8"):
            assert identity(rank=1, num_replicas=3).world_size == 3
        for num_replicas in (1, 2, 4, 8):
            assert identity(rank=0, num_replicas=num_replicas).rank == 0  # a warning would be an error here


class TestBrokenEnvironments:
    @pytest.mark.parametrize("value", ["four", "-1", "1.5", "²", "", " ", "1e3", "1048577", "9" * 5000])
    @pytest.mark.parametrize("environment", [TORCHRUN, SLURM, OPENMPI], ids=["torchrun", "slurm", "openmpi"])
    def test_a_variable_that_is_no_number_is_named(
        self, monkeypatch: pytest.MonkeyPatch, launch: Launch, environment: dict[str, str], value: str
    ) -> None:
        for name in environment.keys() - {"OMPI_COMM_WORLD_NODE_RANK"}:
            launch({**environment, name: value})
            message = rf"^{name} is '{value[:5]}.*': it must be a whole number from 0 to 1,"
            with pytest.raises(ArgumentError, match=message):
                identity()
            monkeypatch.delenv(name)

    @pytest.mark.parametrize(
        ("environment", "message"),
        [
            ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4 but WORLD_SIZE is 4: ranks begin at 0"),
            ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK is . but WORLD_SIZE is 0"),
            ({"RANK": "1"}, "RANK is 1 but WORLD_SIZE is not set"),
            ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 but RANK is not set: call torch.distributed.init_process_group"),
            ({**SLURM, "SLURM_PROCID": "11"}, "SLURM_PROCID is 11 but SLURM_STEP_NUM_TASKS is 11: ranks begin"),
            ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK is 4 but OMPI_COMM_WORLD_SIZE is 4"),
            ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE is 0: ranks"),
        ],
    )  # fmt: skip
    def test_a_contradiction_is_explained(self, launch: Launch, environment: dict[str, str], message: str) -> None:
        launch(environment)
        with pytest.raises(ArgumentError, match=message):
            identity()


def test_only_cores_that_this_process_may_use_count() -> None:
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "from wdsdist._util.host import cpu_count; print(cpu_count())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "1\n"


class TestCacheDirectory:
    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"WDSDIST_CACHE_DIR": "/own", "XDG_CACHE_HOME": "/shared"}, "/own"),
            ({"XDG_CACHE_HOME": "/shared"}, "/shared/wdsdist"),
            ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/wdsdist"),
            ({"WDSDIST_CACHE_DIR": "~/shards", "HOME": "/home/me"}, "/home/me/shards"),
        ],
    )
    def test_variables_say_where_it_is(self, launch: Launch, environment: dict[str, str], expected: str) -> None:
        launch(environment)
        assert user_dir("cache") == Path(expected)

    def test_a_user_without_a_home_is_told_what_to_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def homeless() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", homeless)
        with pytest.raises(ArgumentError, match="set WDSDIST_CACHE_DIR"):
            user_dir("cache")


def test_the_private_directory_is_closed_to_others_whatever_the_umask(temporary: Path) -> None:
    before = os.umask(0)
    try:
        path = private_dir()
    finally:
        os.umask(before)
    assert path == temporary / f"wdsdist-{os.geteuid()}" == private_dir()
    assert path.stat().st_mode & 0o777 == 0o700


def given_away(path: Path) -> None:
    """Give a file or a new folder to another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can give it away")
    if not path.exists():
        path.mkdir(0o700)
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda path: path.symlink_to(tempfile.mkdtemp()), "must be a directory of user .* and is lrwx"),
        (lambda path: path.touch(0o700), r"cannot make the private directory .*File exists"),
        (lambda path: (path.mkdir(), path.chmod(0o770)), "closed to others, and is drwxrwx---"),
        (given_away, "must be a directory of user 0 .* of user 12345"),
    ],
)
def test_a_private_directory_that_others_could_have_made_is_refused(
    temporary: Path, act: Callable[[Path], Any], message: str
) -> None:
    act(temporary / f"wdsdist-{os.geteuid()}")
    with pytest.raises(DestinationError, match=message):
        private_dir()


def test_a_private_directory_needs_a_temporary_directory_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(DestinationError, match=r"No usable temporary directory found in .*: set TMPDIR to"):
        private_dir()


@pytest.mark.parametrize(
    ("on_node", "cores", "share"), [("48", 12, 12), ("48", 48, 12), ("48", 13, 3), ("", 12, 3), ("48(x2)", 12, 3)]
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
