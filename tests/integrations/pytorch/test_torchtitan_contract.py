"""The loader contract of torchtitan, over packed rows: state, data-parallel ranks, and epochs of equal length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist


class TitanLoader:
    """What ``docs/frameworks/pytorch.md`` shows, without torchtitan."""

    def __init__(self, path: Path, *, dp_rank: int, dp_world_size: int, batch_size: int, seq_len: int) -> None:
        dataset = wdsdist.StreamingDataset(path, decode={"ids": np.int32}, rank=dp_rank, num_replicas=dp_world_size)
        self.loader = wdsdist.StreamingDataLoader(
            dataset, batch_size, pack_to=seq_len, length="ids.tokens", labels=True, num_workers=0
        )

    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        for batch in self.loader:
            labels = batch["labels"].roll(-1, dims=1)
            labels[:, -1] = -100
            yield {"input": batch["ids"].long(), "positions": batch["position_ids"]}, labels

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


SIZES = np.random.default_rng(1).integers(3, 90, 200)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of ``ids``, each all of its number, from 1."""
    folder = tmp_path_factory.mktemp("documents") / "shards"
    samples = ({"ids": np.full(size, number, np.int32).tobytes()} for number, size in enumerate(SIZES, 1))
    wdsdist.pack(samples, folder, shard_samples=40)
    return folder


def make(path: Path, world: int) -> list[TitanLoader]:
    return [TitanLoader(path, dp_rank=rank, dp_world_size=world, batch_size=2, seq_len=64) for rank in range(world)]


def tokens(batches: list[tuple[dict[str, Any], torch.Tensor]]) -> Counter[int]:
    return Counter(number for inputs, _ in batches for number in inputs["input"].flatten().tolist() if number)


@pytest.mark.parametrize("resumed", [2, 1, 3])
def test_an_epoch_is_finite_alike_on_all_ranks_and_resumes(documents: Path, resumed: int) -> None:
    loaders = make(documents, 2)
    iterators = [iter(loader) for loader in loaders]
    before = [next(iterator) for _ in range(5) for iterator in iterators]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1], "one copy is enough for a checkpoint"
    whole = [list(iterator) for iterator in iterators]
    again = make(documents, resumed)
    for loader in again:
        loader.load_state_dict(states[0])
    rest = [list(loader) for loader in again]
    assert len({len(batches) for batches in rest}) == len({len(batches) for batches in whole}) == 1
    every = dict(enumerate(SIZES.tolist(), 1))
    assert tokens(before) + tokens(whole[0] + whole[1]) == every
    assert tokens(before) + sum(map(tokens, rest), Counter()) == every
    if resumed == 2:
        for one, other in zip(rest, whole, strict=True):
            assert all(torch.equal(a[1], b[1]) for a, b in zip(one, other, strict=True))
