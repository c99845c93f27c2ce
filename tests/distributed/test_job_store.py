"""Barriers before there is a process group: the ranks meet in the launcher's store, with the same promises."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.distributed.test_barrier import complaints_of, prepare_badly
from tests.distributed.test_membership import meet
from tests.support.gloo_ranks import Ranks
from wdsdist.distributed import barrier, identity
from wdsdist.distributed.identity import Identity
from wdsdist.errors import DistributedError, DistributedTimeoutError

if TYPE_CHECKING:
    import torch.distributed

    from tests.support.jobs import Stage


def address(port: int, *, agent: bool) -> dict[str, str]:
    more = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job"} if agent else {}
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def agent() -> torch.distributed.TCPStore:
    """The store of torchrun's agent, which outlives the ranks."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def hosted(temporary: Path) -> Iterator[Ranks]:
    """Three ranks whose launcher only names an address: rank 0 is to host the store there."""
    ranks = Ranks(3, temporary, launcher=address(free_port(), agent=False))
    yield ranks
    ranks.end()


def here() -> Identity:
    return identity()


def make_a_group() -> int:
    """Make the group as training programs do, from the environment, and meet in it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    barrier(60)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return int(ones.item())


class TestWithAnAgent:
    def test_ranks_meet_again_after_each_restart(self, agent: torch.distributed.TCPStore, temporary: Path) -> None:
        died = Ranks(3, temporary, launcher=address(agent.port, agent=True))
        again = None
        try:
            died.all(barrier, 60)
            for rank in (0, 2):
                died.tell(rank, barrier, 60)
            assert died.is_waiting(0)
            died.end()
            again = Ranks(3, temporary, launcher=address(agent.port, agent=True))
            meet(again)  # nobody meets those who died waiting
            assert again.all(make_a_group) == [3] * 3
            meet(again)
        finally:
            for ranks in filter(None, (died, again)):
                ranks.end()

    def test_the_missing_are_named_and_a_failure_ends_the_wait(
        self, agent: torch.distributed.TCPStore, temporary: Path
    ) -> None:
        ranks = Ranks(3, temporary, launcher=address(agent.port, agent=True))
        try:
            for rank in (0, 2):
                ranks.tell(rank, barrier, 0.5)
            for rank in (0, 2):
                assert "rank 1 of 3 did not come to the barrier" in str(ranks.outcome(rank))
            ranks.tell(1, barrier, 60)
            assert "rank 1 came to the barrier after rank" in str(ranks.outcome(1))
            for rank in (0, 2):
                ranks.tell(rank, barrier, 60)
            assert ranks.is_waiting(0)
            ranks.tell(1, prepare_badly)
            assert ranks.outcome(1) == "ConnectionError: cannot fetch cifar10"
            for rank in (0, 2):
                assert "rank 1 failed" in str(ranks.outcome(rank))
        finally:
            ranks.end()

    def test_runs_that_share_a_store_do_not_meet(self, agent: torch.distributed.TCPStore, temporary: Path) -> None:
        launcher = address(agent.port, agent=True)
        one, other = (Ranks(2, temporary, launcher={**launcher, "TORCHELASTIC_RUN_ID": run}) for run in "ab")
        try:
            one.tell(0, barrier, 60)
            other.tell(1, barrier, 0.5)
            assert "rank 0 of 2 did not come to the barrier" in str(other.outcome(1))
            one.tell(1, barrier, 60)
            assert [one.outcome(rank) for rank in range(2)] == [None] * 2
        finally:
            one.end()
            other.end()


class TestWithAnAddress:
    def test_ranks_meet_where_rank_0_hosts_the_store_and_then_make_their_group(self, hosted: Ranks) -> None:
        meet(hosted)
        assert hosted.all(make_a_group) == [3] * 3
        meet(hosted)

    def test_a_wait_for_rank_0_names_it_and_is_silent(self, hosted: Ranks) -> None:
        hosted.tell(1, barrier, 0.5)
        error = hosted.outcome(1)
        assert isinstance(error, DistributedTimeoutError)
        assert "rank 0 of 3 did not come to the barrier: rank 1 waited 0.5 s" in str(error)
        hosted.tell(1, complaints_of, barrier, 0.5)
        assert hosted.outcome(1) == ""
        hosted.tell(1, barrier, 60)  # what this rank gave up without a store counts as no barrier
        assert hosted.is_waiting(1)
        for rank in (0, 2):
            hosted.tell(rank, barrier, 60)
        assert [hosted.outcome(rank) for rank in range(3)] == [None] * 3

    def test_a_host_that_has_died_is_an_error_that_says_so(self, hosted: Ranks) -> None:
        for rank in range(3):
            hosted.tell(rank, barrier, 60)
        assert [hosted.outcome(rank) for rank in range(3)] == [None] * 3
        hosted.tell(1, barrier, 60)
        assert hosted.is_waiting(1)
        hosted.processes[0].kill()
        assert "rank 1 lost the store of the job" in str(hosted.outcome(1))

    def test_a_port_that_something_else_uses_is_named(self, temporary: Path) -> None:
        with socket.socket() as other:
            other.bind(("0.0.0.0", 0))
            other.listen()
            port = other.getsockname()[1]
            ranks = Ranks(2, temporary, launcher=address(port, agent=False))
            try:
                ranks.tell(0, barrier, 5)
                error = ranks.outcome(0)
                assert isinstance(error, DistributedError)
                assert f"rank 0 of 2 cannot open the store at 127.0.0.1:{port}" in str(error)
            finally:
                ranks.end()

    @pytest.mark.parametrize("port", ["0", "65536", "http", ""])
    def test_a_port_that_is_none_is_refused(self, port: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            DistributedError, match=f"MASTER_PORT \\('{port}'\\) name no store.*init_process_group first"
        ):
            barrier(1)


@pytest.mark.slow
def test_under_torchrun_ranks_meet_before_their_group_and_again_after_a_restart(stage: Stage) -> None:
    stage.run_elastic("early_barriers", meetings=("0-1", "1-1", "1-2"))
