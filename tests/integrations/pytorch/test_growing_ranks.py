"""Ranks of one job play the same generation of a data set that grows between their starts of an epoch."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import wdsdist
from tests.support.gloo_ranks import Ranks
from wdsdist import StreamingDataLoader, StreamingDataset

_loaders: list[StreamingDataLoader] = []
_epochs: list[Any] = []


def open_loader(shards: Path, workers: int) -> None:
    dataset = StreamingDataset(shards, decode=True, drop_last=False)
    _loaders.append(StreamingDataLoader(dataset, 2, num_workers=workers, drop_last=False))


def begin(epoch: int) -> int:
    """Begin an epoch; return its length."""
    _loaders[-1].set_epoch(epoch)
    _epochs.append(iter(_loaders[-1]))
    return len(_loaders[-1])


def play() -> list[int]:
    """Play the epoch that has begun; return its samples."""
    return [number for batch in _epochs[-1] for number in batch["cls"].tolist()]


def append(shards: Path, first: int, last: int) -> None:
    samples = [{"__key__": f"{number:03}", "cls": number} for number in range(first, last)]
    wdsdist.pack(samples, shards, shard_samples=5, append=True)


def test_ranks_play_the_generation_that_the_first_of_them_has_found(ranks: Ranks, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    append(shards, 0, 20)
    ranks.all(open_loader, shards, 1)
    assert ranks.all(begin, 0) == [5, 5]
    append(shards, 20, 32)  # in the middle of the epoch
    assert sorted(chain.from_iterable(ranks.all(play))) == list(range(20))

    ranks.tell(0, begin, 1)
    assert ranks.outcome(0) == 8
    append(shards, 32, 40)  # one rank has begun the next epoch, the other has not
    ranks.tell(1, begin, 1)
    assert ranks.outcome(1) == 8
    first, second = ranks.all(play)
    assert sorted(first + second) == list(range(32))

    assert ranks.all(begin, 2) == [10, 10]
    assert sorted(chain.from_iterable(ranks.all(play))) == list(range(40))


def test_a_data_set_that_is_opened_again_has_epochs_of_its_own(ranks: Ranks, tmp_path: Path) -> None:
    append(tmp_path / "shards", 0, 20)
    ranks.all(open_loader, tmp_path / "shards", 0)
    assert ranks.all(begin, 0) == [5, 5]
    append(tmp_path / "shards", 20, 32)
    ranks.all(open_loader, tmp_path / "shards", 0)
    assert ranks.all(begin, 0) == [8, 8]
