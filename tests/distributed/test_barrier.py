"""barrier() in a process group, in a launcher's store, and after restarts: passes on all ranks or raises on all."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.gloo_ranks import Ranks
from wdsdist.distributed.barriers import barrier
from wdsdist.distributed.run_once import data_download
from wdsdist.errors import ArgumentError, DistributedError, DistributedTimeoutError

if TYPE_CHECKING:
    import torch.distributed


PROMPTLY = 60.0
"""Seconds: far below the deadlines of the barriers that must end promptly, far above what a busy machine takes."""

Start = Callable[..., Ranks]


@pytest.fixture
def start(temporary: Path) -> Iterator[Start]:
    """Start ranks, which end with the test."""
    started: list[Ranks] = []

    def start(world_size: int, **options: Any) -> Ranks:
        started.append(Ranks(world_size, temporary, **options))
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()


@pytest.fixture
def ranks(start: Start) -> Ranks:
    return start(4)


@pytest.fixture
def agent() -> torch.distributed.TCPStore:
    """The store of torchrun's agent, which outlives the ranks."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def of_agent(agent: torch.distributed.TCPStore, run: str = "job") -> dict[str, str]:
    return {**at(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": run}


def at(port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@data_download
def prepare(what: str, *, fails: bool = False) -> str:
    if fails:
        raise ConnectionError(f"cannot fetch {what}")
    return what


def prepare_badly(what: str = "cifar10") -> str:
    return prepare(what, fails=True)


def on_another_node(directory: str, function: Callable[..., Any]) -> Any:
    tempfile.tempdir = directory
    return function()


def many_barriers(count: int) -> None:
    for _ in range(count):
        barrier(60)


def meet_and_exit() -> None:
    barrier(60)
    os._exit(0)


def number_of_keys() -> int:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store().num_keys()


def make_a_group() -> int:
    """Make the group as training programs do, from the environment, and meet in it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    barrier(60)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return int(ones.item())


def meet(ranks: Ranks) -> None:
    """Check of two barriers that nobody passes before the last has come, whoever is the last."""
    world_size = len(ranks.pipes)
    for last in (1, 0):
        others = [rank for rank in range(world_size) if rank != last]
        for rank in others:
            ranks.tell(rank, barrier, 60)
        assert all(ranks.is_waiting(rank, 0.1) for rank in others)
        ranks.tell(last, barrier, 60)
        assert [ranks.outcome(rank) for rank in range(world_size)] == [None] * world_size


def errors(ranks: Ranks, timeouts: dict[int, float]) -> list[DistributedError | DistributedTimeoutError]:
    """Call the barrier on some ranks, with a timeout each, and return their errors."""
    for rank, timeout in timeouts.items():
        ranks.tell(rank, barrier, timeout)
    found = [ranks.outcome(rank) for rank in timeouts]
    assert all(isinstance(error, (DistributedError, DistributedTimeoutError)) for error in found)
    return found


def test_a_single_process_returns_at_once() -> None:
    barrier()
    barrier(float("inf"))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "60", None, True])
def test_a_timeout_that_cannot_work_is_refused(timeout: Any) -> None:
    with pytest.raises(ArgumentError, match=r"timeout is .*seconds"):
        barrier(timeout)


@pytest.mark.parametrize("address", [{}, *({"MASTER_ADDR": "a", "MASTER_PORT": port} for port in ("0", "65536", "x"))])
def test_ranks_without_a_store_are_told_how_to_have_one(
    monkeypatch: pytest.MonkeyPatch, address: dict[str, str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", **address}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match=r"rank 1 of 4 \(from torchrun\).*name no store.*init_process_group fir"):
        barrier(1)


class TestInAGroup:
    def test_nobody_leaves_before_the_last_has_come(self, ranks: Ranks) -> None:
        meet(ranks)

    def test_a_file_store_will_do(self, start: Start) -> None:
        assert start(2, file_store=True).all(many_barriers, 5) == [None] * 2

    def test_many_leave_nothing_in_the_store(self, ranks: Ranks) -> None:
        ranks.all(many_barriers, 1)
        before = ranks.all(number_of_keys)[0]
        assert ranks.all(many_barriers, 50) == [None] * 4
        assert ranks.all(number_of_keys)[0] == before

    def test_rank_0_hosts_the_store_until_all_know_the_outcome(self, ranks: Ranks) -> None:
        ranks.tell(0, meet_and_exit)
        for rank in (1, 2, 3):
            ranks.tell(rank, barrier, 60)
        assert [ranks.outcome(rank) for rank in (1, 2, 3)] == [None] * 3

    def test_a_store_whose_host_has_died_is_an_error_that_says_so(self, ranks: Ranks) -> None:
        for rank in (1, 2):
            ranks.tell(rank, barrier, 100)
        assert ranks.is_waiting(1)
        ranks.processes[0].kill()
        assert all(f"rank {rank} cannot reach the store" in str(ranks.outcome(rank)) for rank in (1, 2))


class TestMissingRanks:
    @pytest.mark.parametrize(
        ("timeouts", "message"),
        [
            ({0: 1.0, 2: 1.0}, "ranks 1, 3 of 4 did not come to the barrier: rank [02] waited 1 s"),
            ({2: 1.0}, "ranks 0, 1, 3 of 4 did not come to the barrier: rank 2 waited 1 s"),
            ({0: 100, 1: 100, 3: 0.5}, "rank 2 of 4 did not come to the barrier: rank 3 waited 0.5 s"),
        ],
    )
    def test_they_are_named_to_all_after_the_shortest_timeout(
        self, ranks: Ranks, timeouts: dict[int, float], message: str
    ) -> None:
        began = time.monotonic()
        for error in errors(ranks, timeouts):
            with pytest.raises(DistributedTimeoutError, match=message):
                raise error
        assert time.monotonic() - began < PROMPTLY

    @pytest.mark.parametrize("last", [0, 3])
    def test_one_that_comes_late_does_not_pass_what_others_gave_up(self, ranks: Ranks, last: int) -> None:
        others = [rank for rank in range(4) if rank != last]
        errors(ranks, dict.fromkeys(others, 0.5))
        began = time.monotonic()
        if last:
            (error,) = errors(ranks, {last: 100})
            assert "rank 3 came to the barrier after the others had given up: rank 3 of 4 did not" in str(error)
            # Each rank's next barrier is the same one.
            assert ranks.all(many_barriers, 3) == [None] * 4
        else:
            for rank in range(4):
                ranks.tell(rank, barrier, 100)
            assert "gave up this barrier before rank 0 came" in str(ranks.outcome(0))
            ranks.tell(0, many_barriers, 1)
            assert [ranks.outcome(rank) for rank in range(4)] == [None] * 4
        assert time.monotonic() - began < PROMPTLY


class TestFailures:
    def test_one_ends_the_wait_of_all_also_of_those_that_come_later(self, ranks: Ranks) -> None:
        began = time.monotonic()
        for rank in (0, 2):
            ranks.tell(rank, barrier, 100)
        assert ranks.is_waiting(0)
        ranks.tell(1, prepare_badly)
        assert ranks.outcome(1) == "ConnectionError: cannot fetch cifar10"
        ranks.tell(3, barrier, 100)
        for rank in (0, 2, 3):
            error = ranks.outcome(rank)
            assert isinstance(error, DistributedError)
            assert "rank 1 failed" in str(error)
            assert "prepare() raised ConnectionError: cannot fetch cifar10" in str(error)
        assert time.monotonic() - began < PROMPTLY

    @pytest.mark.parametrize("rank", [0, 1])
    def test_one_before_the_others_came_does_too(self, ranks: Ranks, rank: int) -> None:
        ranks.tell(rank, prepare_badly)
        ranks.outcome(rank)
        others = {each: 100.0 for each in range(4) if each != rank}
        assert all(f"rank {rank} failed" in str(error) for error in errors(ranks, others))

    def test_one_on_a_node_is_raised_there_and_ends_the_wait_elsewhere(self, ranks: Ranks, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        for rank in (2, 3):
            ranks.tell(rank, on_another_node, str(tmp_path / "other"), barrier)
        for rank in (0, 1):
            ranks.tell(rank, prepare_badly)
        assert [ranks.outcome(rank) for rank in (0, 1)] == ["ConnectionError: cannot fetch cifar10"] * 2
        assert all("prepare() raised ConnectionError" in str(ranks.outcome(rank)) for rank in (2, 3))

    def test_ranks_that_go_on_have_handled_theirs(self, ranks: Ranks) -> None:
        assert ranks.all(prepare_badly) == ["ConnectionError: cannot fetch cifar10"] * 4
        assert ranks.all(prepare, "mnist") == ["mnist"] * 4
        meet(ranks)
        ranks.tell(1, prepare_badly)
        ranks.outcome(1)
        ranks.tell(1, barrier, 60)
        assert ranks.is_waiting(1)
        for rank in (0, 2, 3):
            ranks.tell(rank, barrier, 60)
        assert [ranks.outcome(rank) for rank in range(4)] == [None] * 4


class TestInTheStoreOfALauncher:
    def test_ranks_meet_again_after_each_restart_and_make_their_group(
        self, agent: torch.distributed.TCPStore, start: Start
    ) -> None:
        died = start(3, launcher=of_agent(agent))
        died.all(barrier, 60)
        for rank in (0, 2):
            died.tell(rank, barrier, 60)
        assert died.is_waiting(0)
        died.end()
        again = start(3, launcher=of_agent(agent))
        meet(again)  # nobody meets the dead
        assert again.all(make_a_group) == [3] * 3
        meet(again)

    def test_runs_that_share_a_store_do_not_meet(self, agent: torch.distributed.TCPStore, start: Start) -> None:
        one, other = (start(2, launcher=of_agent(agent, run)) for run in "ab")
        one.tell(0, barrier, 60)
        assert "rank 0 of 2 did not come to the barrier" in str(errors(other, {1: 0.5})[0])
        one.tell(1, barrier, 60)
        assert [one.outcome(rank) for rank in range(2)] == [None] * 2

    def test_ranks_meet_where_rank_0_hosts_the_store_and_then_make_their_group(self, start: Start) -> None:
        hosted = start(3, launcher=at(free_port()))
        (error,) = errors(hosted, {1: 0.5})
        assert "rank 0 of 3 did not come to the barrier: rank 1 waited 0.5 s" in str(error)
        meet(hosted)  # what rank 1 gave up without a store counts as no barrier
        assert hosted.all(make_a_group) == [3] * 3
        meet(hosted)


class TestAfterARestart:
    """One job after another in a store that outlives them, as torchrun has them."""

    @pytest.fixture
    def attempt(self, start: Start, agent: torch.distributed.TCPStore) -> Start:
        attempts: list[Ranks] = []

        def attempt(world_size: int = 3) -> Ranks:
            for ranks in attempts:
                ranks.end()
            for key in agent.list_keys():
                if "wdsdist" not in key:  # gloo would look for the dead at the addresses that they have left
                    agent.delete_key(key)
            attempts.append(start(world_size, port=agent.port))
            return attempts[-1]

        return attempt

    def test_nobody_meets_the_dead(self, attempt: Start) -> None:
        first = attempt()
        first.all(barrier, 60)
        for rank in (0, 2):
            first.tell(rank, barrier, 60)
        assert first.is_waiting(0)
        for world_size in (3, 2, 4):
            meet(attempt(world_size))

    def test_what_the_dead_gave_up_or_failed_ends_no_wait(self, attempt: Start) -> None:
        first = attempt()
        errors(first, {0: 0.2, 2: 0.2})
        first.tell(1, prepare_badly, "one")
        first.outcome(1)
        second = attempt()
        meet(second)
        second.tell(2, prepare_badly, "two")
        second.outcome(2)
        assert all("cannot fetch two" in str(error) for error in errors(second, {0: 60, 1: 60}))

    def test_the_missing_are_named_whatever_notes_the_dead_left(self, attempt: Start) -> None:
        attempt().all(barrier, 60)
        found = errors(attempt(), {0: 0.2, 2: 0.2})
        assert all("rank 1 of 3 did not come to the barrier" in str(error) for error in found)
