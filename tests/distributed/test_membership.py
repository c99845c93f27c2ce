"""Ranks that are started anew after one has died: nobody takes the dead for the living."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.gloo_ranks import Ranks
from wdsdist.distributed import barrier, data_download
from wdsdist.errors import DistributedTimeoutError

if TYPE_CHECKING:
    from tests.support.jobs import Stage


@data_download
def prepare(attempt: int) -> int:
    raise OSError(f"disk full in attempt {attempt}")


class Attempts:
    """One job after another on a store that outlives them, as torchrun has them."""

    def __init__(self, directory: Path) -> None:
        import torch.distributed as dist

        self.directory = directory
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.ranks: list[Ranks] = []

    def start(self, world_size: int = 3) -> Ranks:
        self.end()
        self.sweep()
        self.ranks.append(Ranks(world_size, self.directory, port=self.store.port))
        return self.ranks[-1]

    def sweep(self) -> None:
        for key in self.store.list_keys():
            if "wdsdist" not in key:  # gloo would look for the dead at the addresses that they have left
                self.store.delete_key(key)

    def end(self) -> None:
        for ranks in self.ranks:
            ranks.end()


@pytest.fixture
def attempts(temporary: Path) -> Iterator[Attempts]:
    attempts = Attempts(temporary)
    yield attempts
    attempts.end()


def meet(ranks: Ranks) -> None:
    """Check of two barriers that nobody passes before the last has come, whoever is the last."""
    for last in (1, 0):
        others = [rank for rank in range(len(ranks.pipes)) if rank != last]
        for rank in others:
            ranks.tell(rank, barrier, 60)
        assert all(ranks.is_waiting(rank, 0.1) for rank in others)
        ranks.tell(last, barrier, 60)
        assert [ranks.outcome(rank) for rank in range(len(ranks.pipes))] == [None] * len(ranks.pipes)


@pytest.mark.parametrize("met", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_nobody_meets_those_who_died_waiting(attempts: Attempts, met: int) -> None:
    first = attempts.start()
    for _ in range(met):
        first.all(barrier, 60)
    for rank in (0, 2):
        first.tell(rank, barrier, 60)
    assert first.is_waiting(0)
    meet(attempts.start())
    meet(attempts.start(2))
    meet(attempts.start(4))


def test_what_was_given_up_before_does_not_end_the_wait_of_those_who_start_anew(attempts: Attempts) -> None:
    first = attempts.start()
    for rank in (0, 2):
        first.tell(rank, barrier, 0.2)
    assert all(isinstance(first.outcome(rank), DistributedTimeoutError) for rank in (0, 2))
    second = attempts.start()
    second.tell(1, barrier, 60)
    assert second.is_waiting(1)
    for rank in (0, 2):
        second.tell(rank, barrier, 60)
    assert [second.outcome(rank) for rank in range(3)] == [None] * 3


def test_the_missing_are_named_whatever_marks_the_dead_left(attempts: Attempts) -> None:
    assert attempts.start().all(barrier, 60) == [None] * 3
    second = attempts.start()
    for rank in (0, 2):
        second.tell(rank, barrier, 0.2)
    assert "rank 1 of 3 did not come to the barrier" in str(second.outcome(0))
    assert str(second.outcome(2)).endswith("or give the barrier a longer timeout")


def test_a_failure_of_the_dead_ends_no_wait(attempts: Attempts) -> None:
    first = attempts.start()
    first.tell(1, prepare, 1)
    assert first.outcome(1) == "OSError: disk full in attempt 1"
    second = attempts.start()
    meet(second)
    second.tell(2, prepare, 2)
    assert second.outcome(2) == "OSError: disk full in attempt 2"
    for rank in (0, 1):
        second.tell(rank, barrier, 60)
    assert ["disk full in attempt 2" in str(second.outcome(rank)) for rank in (0, 1)] == [True] * 2


def leave_the_group() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def make_a_group(rank: int, world_size: int, port: int) -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def test_a_group_that_is_made_anew_begins_anew(attempts: Attempts) -> None:
    ranks = attempts.start()
    for rank in (0, 2, 1):
        ranks.tell(rank, barrier, 0.2)
        assert isinstance(ranks.outcome(rank), DistributedTimeoutError)
    ranks.all(leave_the_group)
    attempts.sweep()
    for rank in range(3):
        ranks.tell(rank, make_a_group, rank, 3, attempts.store.port)
    assert [ranks.outcome(rank) for rank in range(3)] == [None] * 3
    meet(ranks)


@pytest.mark.slow
def test_torchrun_starts_all_ranks_anew_and_they_meet_again(stage: Stage) -> None:
    words = stage.run_elastic("elastic_rank", meetings=("0-1", "1-1", "1-2", "1-3"))
    assert [word for word in words if word.startswith("ran")] == ["ran-in-0", "ran-in-1"]
