"""Which epoch is played next, and from where."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import wdsdist
from wdsdist.loader.checkpoint import make_state
from wdsdist.loader.chosen_epoch import ChosenEpoch
from wdsdist.loader.progress import Progress
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.order_config import OrderConfig
from wdsdist.sampling.plan import Position


def plan(position: Position, num_samples: int = 4096) -> EpochPlan:
    return EpochPlan(
        num_samples=num_samples, num_replicas=1, batch_size=64, drop_last=False, drop_last_batch=True,
        start=position.consumed, epoch=position.epoch,
    )  # fmt: skip


def start(progress: Progress, num_samples: int = 4096) -> Position:
    position, made = progress.upcoming(lambda position: plan(position, num_samples))
    progress.begin(position)
    assert made == plan(position, num_samples)
    return position


def request(progress: Progress, epoch: int) -> None:
    progress._chosen.choose(epoch)
    assert progress.position.epoch >= 0  # which looks at what was chosen


def test_a_loaded_position_is_continued_once() -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 128))
    assert progress.position == Position(3, 128)
    assert start(progress) == Position(3, 128)
    assert start(progress) == Position(4, 0)


def test_a_position_that_is_loaded_in_mid_epoch_is_the_one_to_save() -> None:
    progress = Progress(ChosenEpoch())
    start(progress)
    progress.advance(progress.position._replace(consumed=64))
    progress.resume(Position(0, 16))
    assert progress.position == Position(0, 16)


def test_asking_for_the_epoch_of_the_loaded_position_keeps_it() -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 128))
    request(progress, 3)
    assert start(progress) == Position(3, 128)


def test_asking_for_another_epoch_discards_the_loaded_position_with_a_warning() -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 128))
    with pytest.warns(UserWarning, match=r"set_epoch\(0\) discards the loaded state of epoch 3 \(128 samples"):
        request(progress, 0)
    assert start(progress) == Position(0, 0)


def test_asking_for_what_had_been_asked_for_before_it_was_saved_keeps_the_loaded_position() -> None:
    progress = Progress(ChosenEpoch())
    assert progress.asked == 0
    request(progress, 2)
    assert [start(progress).epoch for _ in range(2)] == [2, 3]
    progress.advance(progress.position._replace(consumed=64))
    saved = progress.position, progress.asked
    assert saved == (Position(3, 64), 2)
    resumed = Progress(ChosenEpoch())
    resumed.resume(saved[0], asked=saved[1])
    assert (resumed.position, resumed.asked) == saved
    request(resumed, 2)
    assert start(resumed) == Position(3, 64)
    assert start(resumed) == Position(4, 0)


def test_a_position_at_the_end_of_its_epoch_continues_with_the_next_epoch() -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 1000))
    assert start(progress, 1000) == Position(4, 0)


def test_a_position_at_the_end_of_its_epoch_has_nothing_left_when_that_epoch_is_asked_for() -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 1000))
    request(progress, 3)
    assert start(progress, 1000) == Position(3, 1000)


@pytest.mark.parametrize(("asked_for", "warning"), [(4, None), (5, UserWarning)])
def test_asking_for_the_epoch_after_a_finished_one_discards_nothing(
    asked_for: int, warning: type[Warning] | None
) -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 1000), finished=True)
    with pytest.warns(warning) if warning else contextlib.nullcontext():
        request(progress, asked_for)
    assert start(progress) == Position(asked_for, 0)


def test_an_epoch_goes_on_after_a_request_that_nobody_looked_at() -> None:
    chosen = ChosenEpoch()
    progress = Progress(chosen)
    start(progress)
    chosen.choose(9)
    progress.advance(Position(0, 128))
    assert progress.position == Position(0, 128)
    assert start(progress) == Position(9, 0)


def test_the_length_is_that_of_the_epoch_after_a_finished_one_unless_that_is_asked_for() -> None:
    progress = Progress(ChosenEpoch())
    progress.resume(Position(3, 4096), finished=True)
    assert (progress.position_of_length, progress.position) == (Position(4, 0), Position(3, 4096))
    request(progress, 3)
    assert progress.position_of_length == Position(3, 4096)


def test_a_state_of_an_order_without_windows_is_the_same_for_any(shards: Path) -> None:
    config = OrderConfig(manifest=wdsdist.open(shards), shuffle=False)
    states = [make_state(Position(0, 4), config, OrderSettings(shuffle=False, window=window)) for window in (1, 4096)]
    assert states[0] == states[1]
