"""data_download among the ranks of a process group: work that outlasts the group's timeout, and a rank that dies."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gloo_ranks import Ranks
from wdsdist.distributed import barrier, data_download
from wdsdist.errors import DistributedTimeoutError

GROUP_TIMEOUT = 2.0
LONGER = 3 * GROUP_TIMEOUT


@pytest.fixture
def ranks(tmp_path: Path, temporary: Path) -> Iterator[Ranks]:
    """Four ranks on two nodes, a pair on each, of a group that gives up what takes two seconds."""
    ranks = Ranks(4, temporary, timeout=GROUP_TIMEOUT)
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
    for rank in range(4):
        ranks.tell(rank, move_to, str(tmp_path / "ab"[rank // 2]))
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
    """Return who ran it, and the sum over all ranks of 1: the group is as good as before."""
    import torch
    import torch.distributed as dist

    value = prepare(seconds)
    barrier(60)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return value, ones.item()


def test_work_that_outlasts_the_process_groups_timeout_succeeds_on_every_rank(ranks: Ranks) -> None:
    first = prepare_on_node(ranks, (0, 1), LONGER)
    second = prepare_on_node(ranks, (2, 3), 0.0)  # waits for the other node at the barrier
    outcomes = [ranks.outcome(rank) for rank in (*first, *second)]
    runners = [outcome[0] for outcome in outcomes]
    assert [outcome[1] for outcome in outcomes] == [4.0] * 4
    assert runners[0] == runners[1] != runners[2] == runners[3]


def prepare_on_node(ranks: Ranks, node: tuple[int, int], seconds: float) -> tuple[int, int]:
    for rank in node:
        ranks.tell(rank, prepare_and_meet, seconds)
    return node


def test_a_rank_that_dies_as_the_runner_is_replaced_on_its_node_and_missed_at_the_barrier(
    ranks: Ranks, tmp_path: Path
) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
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
    for rank in range(3):
        error = ranks.outcome(rank)
        assert isinstance(error, DistributedTimeoutError)
        assert "rank 3 of 4 did not come to the barrier" in str(error)
