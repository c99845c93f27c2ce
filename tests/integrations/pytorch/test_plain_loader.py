"""torch's own DataLoader over a data set of ours: whole epochs over ranks and workers, as ``set_epoch`` chooses."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.support import forked
from tests.support.gloo_ranks import Ranks
from wdsdist import StreamingDataset

TOTAL = 37


# Numbers of workers, whether they persist, batch sizes.
QUICK = {(0, False, 4), (0, False, 6), (1, False, 6), (2, True, 4), (3, False, 4), (3, True, 6)}


def dataset(shards: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(shards, decode=True, fields=("cls",), **options)


def epochs(shards: Path, batch_size: int | None, count: int, **options: Any) -> list[list[list[int]]]:
    data = dataset(shards, batch_size=batch_size)
    loader = DataLoader(data, batch_size or 4, **options)
    found = []
    for epoch in range(count):
        data.set_epoch(epoch)
        found.append([batch["cls"].tolist() for batch in loader])
    return found


@pytest.mark.parametrize(
    ("workers", "persistent", "batch_size"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
        for case in product(range(4), [False, True], [4, 6])
    ],
)
def test_every_sample_comes_once_an_epoch_in_equal_batches_and_epochs_differ(
    ranks: Ranks, shards: Path, workers: int, persistent: bool, batch_size: int
) -> None:
    found = ranks.all(three_epochs, shards, batch_size, workers, persistent and workers > 0)
    assert not [one for one in found if isinstance(one, str)]
    for epoch in range(3):
        first, second = (rank[epoch] for rank in found)
        assert list(map(len, first)) == list(map(len, second))
        counts = Counter(chain(*first, *second))
        assert counts.keys() == set(range(TOTAL))
        assert counts.total() == TOTAL + 1  # one sample makes the ranks even
        assert [len(batch) < batch_size for batch in first] == [False] * (len(first) - 1) + [True]
    assert len({str(rank) for rank in found[0]}) == 3
    assert found == ranks.all(three_epochs, shards, batch_size, 0, False)


def three_epochs(shards: Path, batch_size: int, workers: int, persistent: bool) -> list[list[list[int]]]:
    return epochs(shards, batch_size, 3, num_workers=workers, persistent_workers=persistent)


def one_epoch_elsewhere(shards: Path) -> list[list[list[int]]]:
    """Play an epoch in a worker that is not forked on rank 1: a server of forks takes seconds to import torch."""
    options = {"num_workers": 1, "multiprocessing_context": "forkserver"} if torch.distributed.get_rank() else {}
    return epochs(shards, 4, 1, **options)


@pytest.mark.slow
def test_workers_that_are_not_forked_know_their_rank_without_a_process_group(ranks: Ranks, shards: Path) -> None:
    first, second = (rank[0] for rank in ranks.all(one_epoch_elsewhere, shards))
    counts = Counter(chain(*first, *second))
    assert (counts.keys(), counts.total()) == (set(range(TOTAL)), TOTAL + 1)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_without_set_epoch_the_same_epoch_comes_again(shards: Path, options: dict[str, Any]) -> None:
    loader = DataLoader(dataset(shards, batch_size=4), 4, **options)
    first, *others = [[batch["cls"].tolist() for batch in loader] for _ in range(3)]
    assert others == [first, first]


def test_a_data_set_that_is_not_shuffled_may_be_played_again(shards: Path) -> None:
    loader = DataLoader(dataset(shards, batch_size=4, shuffle=False), 4)
    assert [batch["cls"].tolist() for batch in loader] == [batch["cls"].tolist() for batch in loader]


def test_two_iterations_at_once_are_both_whole(shards: Path) -> None:
    data = dataset(shards, batch_size=4)
    data.set_epoch(3)
    loader = DataLoader(data, 4, num_workers=2)
    pairs = [(one["cls"].tolist(), other["cls"].tolist()) for one, other in zip(loader, loader, strict=True)]
    first, second = ([number for batch in side for number in batch] for side in zip(*pairs, strict=True))
    assert first == second
    assert sorted(first) == list(range(TOTAL))


def test_an_epoch_that_is_chosen_while_workers_start_is_that_of_the_next_pass(shards: Path) -> None:
    go_on = multiprocessing.Event()

    def hold(worker: int) -> None:
        assert worker == 0 or go_on.wait(60)

    data = dataset(shards, batch_size=4)
    batches = iter(DataLoader(data, 4, num_workers=2, worker_init_fn=hold))
    found = next(batches)["cls"].tolist()
    data.set_epoch(5)
    go_on.set()
    assert sorted([*found, *chain.from_iterable(batch["cls"].tolist() for batch in batches)]) == list(range(TOTAL))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_set_epoch_chooses_the_epoch_of_all_workers(shards: Path, workers: int, persistent: bool) -> None:
    data = dataset(shards, batch_size=4)
    loader = DataLoader(data, 4, num_workers=workers, persistent_workers=persistent)
    found = []
    for epoch in (0, 1, 0, 1):
        data.set_epoch(epoch)
        found.append([batch["cls"].tolist() for batch in loader])
    assert found[:2] == found[2:] != found[1:3]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_chosen_during_a_pass_is_that_of_the_next(shards: Path, workers: int) -> None:
    data = dataset(shards, batch_size=4)
    loader = DataLoader(data, 4, num_workers=workers)
    found = []
    for chosen in (2, 0, 2):
        batches = iter(loader)
        found.append([next(batches)["cls"].tolist()])
        data.set_epoch(chosen)
        found[-1] += [batch["cls"].tolist() for batch in batches]
    first, second, third = found
    assert all(sorted(chain(*epoch)) == list(range(TOTAL)) for epoch in found)
    assert first == third != second


class TestWithoutABatchSize:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_one_worker_needs_none(self, shards: Path, workers: int) -> None:
        assert list(map(len, epochs(shards, None, 1, num_workers=workers)[0])) == [4] * 9 + [1]

    @pytest.mark.slow
    def test_several_workers_warn_and_say_what_to_pass(self, shards: Path) -> None:
        script = (
            "import sys, wdsdist; from torch.utils.data import DataLoader\n"
            "data = wdsdist.StreamingDataset(sys.argv[1], fields=['cls'], decode=True)\n"
            "loader = DataLoader(data, 4, num_workers=3)\n"
            "print([sum(1 for _ in loader) for _ in range(3)])"
        )
        found = forked.run("-c", script, shards)
        assert found.stdout == "[10, 10, 10]\n"
        assert "the 3 workers of a foreign DataLoader" in found.stderr
        assert "Pass its batch_size to StreamingDataset" in found.stderr
