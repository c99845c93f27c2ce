"""barrier() between gloo ranks: passes on all or none, names who is missing, outlives the process group timeout."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gloo_ranks import Ranks
from wdsdist.distributed import barrier, data_download
from wdsdist.errors import ArgumentError, DistributedError, DistributedTimeoutError

PROMPTLY = 60.0
"""Seconds: far below the deadlines of the barriers that must end promptly, far above what a busy machine takes."""


@pytest.fixture
def ranks(temporary: Path) -> Iterator[Ranks]:
    ranks = Ranks(4, temporary)
    yield ranks
    ranks.end()


@data_download
def prepare(what: str, *, fails: bool = False) -> str:
    if fails:
        raise ConnectionError(f"cannot fetch {what}")
    return what


def prepare_badly() -> str:
    return prepare("cifar10", fails=True)


def on_another_node(directory: str, function: Callable[..., Any]) -> Any:
    tempfile.tempdir = directory
    return function()


def many_barriers(count: int) -> None:
    for _ in range(count):
        barrier(60)


def number_of_keys() -> int:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store().num_keys()


def complaints_of(function: Callable[..., None], *args: Any) -> str:
    """Call the function, which must not succeed, and return what appeared on standard error, also from C++."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            function(*args)
            return "no error"
        except (RuntimeError, TimeoutError):
            file.seek(0)
            return file.read().decode()
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def use_up(seconds: float) -> float:
    began = time.monotonic()
    time.sleep(seconds)
    barrier(60)
    return time.monotonic() - began


class TestAlone:
    def test_a_single_process_returns_at_once(self) -> None:
        barrier()

    def test_ranks_without_a_process_group_are_told_to_make_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "4")
        with pytest.raises(DistributedError, match=r"rank 1 of 4 \(from torchrun\).*init_process_group first"):
            barrier()

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), "60", None, True])
    def test_a_timeout_that_cannot_work_is_refused(self, timeout: Any) -> None:
        with pytest.raises(ArgumentError, match=r"timeout is .*seconds"):
            barrier(timeout)

    def test_no_limit_is_a_timeout_too(self) -> None:
        barrier(float("inf"))


class TestMeeting:
    def test_nobody_leaves_before_the_last_has_come(self, ranks: Ranks) -> None:
        for rank in range(3):
            ranks.tell(rank, barrier, 60)
        assert all(ranks.is_waiting(rank) for rank in range(3))
        ranks.tell(3, barrier, 60)
        assert [ranks.outcome(rank) for rank in range(4)] == [None] * 4

    def test_a_file_store_will_do(self, temporary: Path) -> None:
        ranks = Ranks(2, temporary, file_store=True)
        try:
            assert ranks.all(many_barriers, 5) == [None] * 2
        finally:
            ranks.end()

    def test_a_wait_is_silent(self, ranks: Ranks) -> None:
        # c10d logs two warnings for every Store.wait that runs out: in an hour of slices, ten thousand lines
        ranks.tell(1, complaints_of, barrier, 1.0)
        assert ranks.outcome(1) == ""

    def test_it_outlives_the_timeout_of_the_process_group(self, temporary: Path) -> None:
        ranks = Ranks(2, temporary, timeout=2.0)
        try:
            ranks.tell(0, barrier, 60)
            ranks.tell(1, use_up, 5.0)
            assert ranks.outcome(0) is None
            assert ranks.outcome(1) >= 5.0
        finally:
            ranks.end()

    def test_many_leave_nothing_in_the_store(self, ranks: Ranks) -> None:
        ranks.all(many_barriers, 1)
        before = ranks.all(number_of_keys)[0]
        assert ranks.all(many_barriers, 200) == [None] * 4
        assert ranks.all(number_of_keys)[0] == before

    def test_rank_0_stays_until_all_know_that_it_is_over(self, ranks: Ranks) -> None:
        ranks.all(barrier, 60)
        ranks.tell(1, barrier, 60)
        assert ranks.is_waiting(1)
        os.kill(ranks.processes[1].pid or 0, signal.SIGSTOP)
        for rank in (0, 2, 3):
            ranks.tell(rank, barrier, 60)
        assert ranks.outcome(2) is None
        assert ranks.outcome(3) is None
        assert ranks.is_waiting(0)  # it hosts the store, which rank 1 must still read
        os.kill(ranks.processes[1].pid or 0, signal.SIGCONT)
        assert ranks.outcome(0) is None
        assert ranks.outcome(1) is None


class TestMissingRanks:
    def test_they_are_named_to_all_who_came(self, ranks: Ranks) -> None:
        for rank in (0, 2):
            ranks.tell(rank, barrier, 1.0)
        for rank in (0, 2):
            error = ranks.outcome(rank)
            assert isinstance(error, DistributedTimeoutError)
            assert "ranks 1, 3 of 4 did not come to the barrier" in str(error)
            assert "waited 1 s" in str(error)

    def test_the_shortest_timeout_decides_for_all(self, ranks: Ranks) -> None:
        began = time.monotonic()
        for rank, timeout in ((0, 100), (1, 100), (3, 0.5)):
            ranks.tell(rank, barrier, timeout)
        errors = [ranks.outcome(rank) for rank in (0, 1, 3)]
        assert time.monotonic() - began < PROMPTLY
        assert all("rank 2 of 4 did not come to the barrier: rank 3 waited 0.5 s" in str(error) for error in errors)

    def test_one_that_comes_late_does_not_pass_what_others_gave_up(self, ranks: Ranks) -> None:
        keys = ranks.all(many_barriers, 1) and ranks.all(number_of_keys)[0]
        for rank in range(3):
            ranks.tell(rank, barrier, 0.5)
        assert all(isinstance(ranks.outcome(rank), DistributedTimeoutError) for rank in range(3))
        began = time.monotonic()
        ranks.tell(3, barrier, 100)
        error = ranks.outcome(3)
        assert isinstance(error, DistributedTimeoutError)
        assert "rank 3 came to the barrier after rank" in str(error)
        assert time.monotonic() - began < PROMPTLY
        # and each rank's next barrier is the same one
        assert ranks.all(many_barriers, 3) == [None] * 4
        assert ranks.all(number_of_keys)[0] <= keys + 1  # the latest note of a rank that gave up stays

    def test_of_many_only_some_are_named(self, temporary: Path) -> None:
        ranks = Ranks(12, temporary)
        try:
            ranks.tell(1, barrier, 0.5)
            assert "ranks 0, 2, 3, 4, 5, 6, 7, 8 and 3 more of 12 did not come" in str(ranks.outcome(1))
        finally:
            ranks.end()

    def test_a_store_whose_host_has_died_is_an_error_that_says_so(self, ranks: Ranks) -> None:
        for rank in (1, 2):
            ranks.tell(rank, barrier, 100)
        assert ranks.is_waiting(1)
        ranks.processes[0].kill()
        for rank in (1, 2):
            error = ranks.outcome(rank)
            assert isinstance(error, DistributedError)
            assert f"rank {rank} lost the store" in str(error)


class TestFailures:
    def test_one_on_another_rank_ends_the_wait_of_all(self, ranks: Ranks) -> None:
        began = time.monotonic()
        for rank in (0, 2, 3):
            ranks.tell(rank, barrier, 100)
        assert ranks.is_waiting(0)
        ranks.tell(1, prepare_badly)
        assert ranks.outcome(1) == "ConnectionError: cannot fetch cifar10"
        for rank in (0, 2, 3):
            error = ranks.outcome(rank)
            assert isinstance(error, DistributedError)
            assert "rank 1 failed" in str(error)
            assert "prepare() raised ConnectionError: cannot fetch cifar10" in str(error)
        assert time.monotonic() - began < PROMPTLY

    def test_one_before_the_others_came_does_too(self, ranks: Ranks) -> None:
        ranks.tell(1, prepare_badly)
        ranks.outcome(1)
        for rank in (0, 2, 3):
            ranks.tell(rank, barrier, 100)
        assert all("rank 1 failed" in str(ranks.outcome(rank)) for rank in (0, 2, 3))

    def test_one_on_a_node_is_raised_there_and_ends_the_wait_elsewhere(self, ranks: Ranks, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        for rank in (2, 3):
            ranks.tell(rank, on_another_node, str(tmp_path / "other"), barrier)
        for rank in (0, 1):
            ranks.tell(rank, prepare_badly)
        assert [ranks.outcome(rank) for rank in (0, 1)] == ["ConnectionError: cannot fetch cifar10"] * 2
        for rank in (2, 3):
            assert "prepare() raised ConnectionError" in str(ranks.outcome(rank))

    def test_one_that_was_coped_with_stops_nobody(self, ranks: Ranks) -> None:
        assert ranks.all(prepare_badly) == ["ConnectionError: cannot fetch cifar10"] * 4
        assert ranks.all(prepare, "mnist") == ["mnist"] * 4
        for rank in range(3):
            ranks.tell(rank, barrier, 60)
        assert all(ranks.is_waiting(rank) for rank in range(3))
        ranks.tell(3, barrier, 60)
        assert [ranks.outcome(rank) for rank in range(4)] == [None] * 4

    def test_a_rank_that_comes_itself_has_coped_with_it(self, ranks: Ranks) -> None:
        ranks.tell(1, prepare_badly)
        ranks.outcome(1)
        ranks.tell(1, barrier, 60)
        assert ranks.is_waiting(1)
        for rank in (0, 2, 3):
            ranks.tell(rank, barrier, 60)
        assert [ranks.outcome(rank) for rank in range(4)] == [None] * 4

    def test_one_stands_while_another_is_coped_with(self, ranks: Ranks) -> None:
        for rank in (1, 2):
            ranks.tell(rank, prepare_badly)
            ranks.outcome(rank)
        ranks.tell(2, barrier, 100)  # the last to fail, and back
        assert "rank 1 failed" in str(ranks.outcome(2))
