"""A mix on two real ranks keeps its promises, also where another world goes on with it."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.gloo_ranks import Ranks
from tests.support.tars import write_numbered
from wdsdist import StreamingDataLoader, StreamingDataset

SIZES = {"large": (9, 0, 14, 5), "small": (4, 6)}
TOTAL = {name: sum(counts) for name, counts in SIZES.items()}
GLOBAL_BATCH = 8
LENGTH = 64
"""Samples in an epoch of the mix."""

Batches = list[list[tuple[str, int]]]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two data sets whose numbers are a class in the one and a text in the other."""
    folders = {}
    for (name, counts), extension in zip(SIZES.items(), ("cls", "txt"), strict=True):
        folders[name] = write_numbered(tmp_path_factory.mktemp(name), counts, extension=extension)
        wdsdist.index(folders[name])
    return folders


def number_of(sample: dict[str, Any]) -> tuple[str, int]:
    return sample["__dataset__"], int(sample.get("cls", sample.get("txt")))


def make_loader(sets: dict[str, Path], workers: int, batch_size: int) -> StreamingDataLoader:
    """Return a loader of three large samples to a small one, for the rank that this process is."""
    shares = {
        "large": (StreamingDataset(sets["large"], decode=True, transform=number_of), 3),
        "small": (StreamingDataset(sets["small"], transform=number_of), 1),
    }
    dataset = wdsdist.mix(shares, seed=5, samples_per_epoch=LENGTH, num_canonical_replicas=4)
    return StreamingDataLoader(dataset, batch_size, num_workers=workers, collate_fn=list)


def play(sets: dict[str, Path], workers: int, batch_size: int, epochs: int) -> tuple[list[Batches], int]:
    """Return so many epochs, and what the loader says of their length."""
    loader = make_loader(sets, workers, batch_size)
    return [list(loader) for _ in range(epochs)], len(loader)


def play_to_the_middle(sets: dict[str, Path], workers: int, batch_size: int, batches: int) -> tuple[Batches, Any]:
    """Return the first batches of the second epoch, and the state after them."""
    loader = make_loader(sets, workers, batch_size)
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    iterator = iter(loader)
    return [next(iterator) for _ in range(batches)], loader.state_dict()


def go_on(sets: dict[str, Path], workers: int, batch_size: int, state: Any) -> list[Batches]:
    """Return the rest of the epoch that a state was taken in, and the next epoch."""
    loader = make_loader(sets, workers, batch_size)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    return [list(loader), list(loader)]


def steps(ranks: Any) -> list[Counter[tuple[str, int]]]:
    """Return what each step of all ranks together sees."""
    return [Counter(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)]


def of(name: str, batch: Any) -> int:
    return sum(one == name for one, _ in batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_get_equal_batches_in_proportion_and_each_data_set_plays_its_own_epochs(
    ranks: Ranks, sets: dict[str, Path], workers: int
) -> None:
    found = ranks.all(play, sets, workers, 4, 3)
    assert [length for _, length in found] == [LENGTH // GLOBAL_BATCH] * 2
    taken: Counter[tuple[str, int]] = Counter()
    for epoch in range(3):
        both = [batches[epoch] for batches, _ in found]
        assert [len(batches) for batches in both] == [LENGTH // GLOBAL_BATCH] * 2
        for batch in chain.from_iterable(both):
            assert (of("large", batch), of("small", batch)) == (3, 1)
        taken += sum(steps(both), Counter())
        for name, size in TOTAL.items():
            # Each sample comes once before any comes again, over the ends of the mix's epochs.
            counts = [taken[name, number] for number in range(size)]
            assert max(counts) - min(counts) <= 1
    assert taken.total() == 3 * LENGTH


def test_another_world_goes_on_with_the_same_global_batches(ranks: Ranks, sets: dict[str, Path]) -> None:
    _, expected, following = play(sets, 0, GLOBAL_BATCH, 3)[0]
    first = ranks.all(play_to_the_middle, sets, 2, 4, 3)
    state = first[0][1]
    assert all(one == state for _, one in first)
    assert steps([batches for batches, _ in first]) == steps([expected])[:3]
    alone = go_on(sets, 1, GLOBAL_BATCH, state)
    assert [steps([epoch]) for epoch in alone] == [steps([expected])[3:], steps([following])]

    _, state = play_to_the_middle(sets, 1, GLOBAL_BATCH, 5)
    both = ranks.all(go_on, sets, 2, 4, state)
    assert not [one for one in both if isinstance(one, str)], both
    rest, whole = ([one[epoch] for one in both] for epoch in range(2))
    assert [steps(rest), steps(whole)] == [steps([expected])[5:], steps([following])]
