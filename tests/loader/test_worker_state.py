"""What a data set shares with the workers of a loader, and with no other process."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch.utils.data._utils.worker as torch_worker

from wdsdist.loader.chosen_epoch import ChosenEpoch


def as_worker(chosen: ChosenEpoch, pipe: Connection) -> None:
    torch_worker._worker_info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    as_rank(chosen, pipe)


def as_rank(chosen: ChosenEpoch, pipe: Connection) -> None:
    pipe.send(chosen.begin())
    if pipe.recv() == "choose":
        chosen.choose(9)
    pipe.send(chosen.begin())


def epochs_in(context: Any, target: Any, chosen: ChosenEpoch, what: str) -> list[int]:
    """Return the epochs of two iterations in another process; epoch 5 is chosen here in between."""
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(chosen, theirs))
    process.start()
    found = [ours.recv()]
    chosen.choose(5)
    ours.send(what)
    found.append(ours.recv())
    process.join()
    return found


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_worker_sees_what_is_chosen_after_its_first_iteration(start: str) -> None:
    chosen = ChosenEpoch()
    chosen.choose(2)
    assert epochs_in(multiprocessing.get_context(start), as_worker, chosen, "wait") == [2, 5]


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_rank_that_is_started_with_it_has_an_epoch_of_its_own(start: str) -> None:
    chosen = ChosenEpoch()
    assert epochs_in(multiprocessing.get_context(start), as_rank, chosen, "choose") == [0, 9]
    assert (chosen.begin(), chosen.begin()) == (5, 5), "what a rank chooses reaches no other"


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda chosen: pickle.loads(pickle.dumps(chosen))])
def test_a_copy_has_an_epoch_of_its_own(clone: Any) -> None:
    chosen = ChosenEpoch()
    chosen.choose(3)
    other = clone(chosen)
    chosen.choose(4)
    assert (other.begin(), other.begin(), other.requests) == (3, 3, 1)
