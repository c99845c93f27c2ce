"""Which epoch is played next, and from where; what of that a data set shares with its workers alone."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import pickle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data._utils.worker as torch_worker

import wdsdist
from wdsdist.loader.epoch_planner import identity_of
from wdsdist.loader.progress import ChosenEpoch, Progress
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderConfig, OrderSettings
from wdsdist.sampling.plan import Position

TOTAL = 1000
END = TOTAL
At = tuple[int, int]
"""Epoch and samples consumed."""


def plan(position: Position) -> EpochPlan:
    return EpochPlan(
        num_samples=TOTAL, num_replicas=1, batch_size=64, drop_last=False, drop_last_batch=True,
        start=position,
    )  # fmt: skip


def start(progress: Progress) -> At:
    position, made = progress.upcoming(plan)
    progress.begin(position)
    assert made == plan(position)
    return position[:2]


def ask(progress: Progress, epoch: int) -> None:
    progress._chosen.choose(epoch)
    assert progress.position.epoch >= 0  # which looks at what was chosen


@pytest.mark.parametrize(
    ("loaded", "finished", "asked", "starts", "warns"),
    [
        ((3, 128), False, None, [(3, 128), (4, 0)], False),
        ((3, 128), False, 3, [(3, 128), (4, 0)], False),
        ((3, 128), False, 0, [(0, 0)], True),
        ((3, END), False, None, [(4, 0)], False),
        ((3, END), False, 3, [(3, END)], False),  # nothing is left of it
        ((3, END), True, 4, [(4, 0)], False),
        ((3, END), True, 5, [(5, 0)], True),
    ],
)
def test_a_loaded_position_is_continued_once_unless_another_epoch_is_asked_for(
    loaded: At, finished: bool, asked: int | None, starts: list[At], warns: bool
) -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(*loaded), finished=finished)
    assert progress.position[:2] == loaded
    pattern = f"set_epoch.{asked}. discards the loaded state of epoch 3"
    with pytest.warns(UserWarning, match=pattern) if warns else contextlib.nullcontext():
        if asked is not None:
            ask(progress, asked)
    assert [start(progress) for _ in starts] == starts


def test_a_loaded_position_is_discarded_with_one_warning(recwarn: pytest.WarningsRecorder) -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 128))
    for epoch in (0, 1, 2):
        ask(progress, epoch)
    assert len(recwarn) == 1
    assert start(progress) == (2, 0)


def test_a_position_that_is_loaded_in_mid_epoch_is_the_one_to_save() -> None:
    progress = Progress(ChosenEpoch())
    start(progress)
    progress.advance(Position(0, 64))
    progress.resume(Position(0, 16))
    assert progress.position == Position(0, 16)


def test_asking_for_what_had_been_asked_for_before_it_was_saved_keeps_the_loaded_position() -> None:
    progress = Progress(ChosenEpoch())
    assert progress.asked == 0
    ask(progress, 2)
    assert [start(progress) for _ in range(2)] == [(2, 0), (3, 0)]
    progress.advance(Position(3, 64))
    saved = progress.position, progress.asked
    assert saved == (Position(3, 64), 2)
    resumed = Progress(ChosenEpoch())
    resumed.resume(saved[0], asked=saved[1])
    assert (resumed.position, resumed.asked) == saved
    ask(resumed, 2)
    assert [start(resumed) for _ in range(2)] == [(3, 64), (4, 0)]


def test_an_epoch_goes_on_after_a_request_that_nobody_looked_at() -> None:
    progress = Progress(ChosenEpoch())
    start(progress)
    progress._chosen.choose(9)
    progress.advance(Position(0, 128))
    assert progress.position == Position(0, 128)
    assert start(progress) == (9, 0)


def test_a_position_that_is_loaded_after_a_request_that_nobody_looked_at_is_continued() -> None:
    progress = Progress(chosen := ChosenEpoch())
    chosen.choose(7)
    progress.resume(Position(3, 128))
    assert start(progress) == (3, 128)


def test_the_length_is_that_of_the_epoch_after_a_finished_one_unless_that_is_asked_for() -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, END), finished=True)
    assert (progress.position_of_length, progress.position) == (Position(4, 0), Position(3, END))
    ask(progress, 3)
    assert progress.position_of_length == Position(3, END)


def test_a_state_of_an_order_without_windows_is_the_same_for_any(shards: Path) -> None:
    config = OrderConfig(manifest=wdsdist.open(shards), shuffle=False)
    states = [identity_of(config, OrderSettings(shuffle=False, window=window)) for window in (1, 4096)]
    assert states[0] == states[1]


def as_worker(chosen: ChosenEpoch, pipe: Connection) -> None:
    torch_worker._worker_info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    as_rank(chosen, pipe)


def as_rank(chosen: ChosenEpoch, pipe: Connection) -> None:
    pipe.send(chosen.begin() + chosen.count_iteration())
    if pipe.recv() == "choose":
        chosen.choose(9)
    pipe.send(chosen.begin())


def epochs_in(context: Any, target: Any, chosen: ChosenEpoch, what: str) -> list[int]:
    """Return the epochs of two iterations in another process; epoch 5 is chosen here in between."""
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(chosen, theirs))
    chosen.count_iteration()
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
    assert epochs_in(multiprocessing.get_context(start), as_worker, chosen, "wait") == [2 + 1, 5]


@pytest.mark.parametrize(("what", "epoch"), [("choose", 9), ("wait", 0)])
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_rank_that_is_started_with_it_has_an_epoch_of_its_own(start: str, what: str, epoch: int) -> None:
    chosen = ChosenEpoch()
    assert epochs_in(multiprocessing.get_context(start), as_rank, chosen, what) == [0, epoch]
    assert (chosen.begin(), chosen.begin()) == (5, 5), "what a rank chooses reaches no other"


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda chosen: pickle.loads(pickle.dumps(chosen))])
def test_a_copy_has_an_epoch_of_its_own(clone: Any) -> None:
    chosen = ChosenEpoch()
    chosen.choose(3)
    other = clone(chosen)
    chosen.choose(4)
    assert (other.begin(), other.begin(), other.requests) == (3, 3, 1)
