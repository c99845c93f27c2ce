"""The page of torchtitan: its loader's contract over packed rows, with finite epochs, and states in its checkpoints."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist
from tests.integrations.projects.conftest import Adapter

SIZES = np.random.default_rng(1).integers(3, 90, 200)
Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class BaseDataLoader:
    """What torchtitan's sources say of its own, where torchtitan is missing: the configuration builds its owner."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        dataset_path: str | None = None


def build(owner: type[Any], config: Any, **given: Any) -> Any:
    return config.build(**given) if hasattr(config, "build") else owner(config, **given)


@pytest.fixture
def loader_class(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    name = "torchtitan.components.dataloader"
    for parent in ("torchtitan", "torchtitan.components"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    stand_in = ModuleType(name)
    stand_in.__dict__.update(BaseDataLoader=BaseDataLoader)
    monkeypatch.setitem(sys.modules, name, stand_in)
    found: type[Any] = adapter("torchtitan")["PackedRows"]
    return found


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of ``ids``, each all of its number, from 1."""
    folder = tmp_path_factory.mktemp("documents") / "shards"
    samples = ({"ids": np.full(size, number, np.int32).tobytes()} for number, size in enumerate(SIZES, 1))
    wdsdist.pack(samples, folder, shard_samples=40)
    return folder


def make(loader_class: type[Any], path: Path, world: int) -> list[Any]:
    config = loader_class.Config(dataset_path=str(path), num_workers=0)
    given = {"dp_world_size": world, "local_batch_size": 2, "seq_len": 64, "tokenizer": None}
    return [build(loader_class, config, dp_rank=rank, **given) for rank in range(world)]


def tokens(batches: list[Batch]) -> Counter[int]:
    return Counter(number for inputs, _ in batches for number in inputs["input"].flatten().tolist() if number)


@pytest.mark.filterwarnings("ignore")
def test_labels_are_the_next_tokens_of_each_document(loader_class: type[Any], documents: Path) -> None:
    inputs, labels = next(iter(make(loader_class, documents, 1)[0]))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (2, 64)
    expected = torch.nn.functional.pad(inputs["input"][:, 1:], (0, 1)).long()
    begins = torch.nn.functional.pad(inputs["positions"][:, 1:], (0, 1)) == 0
    assert torch.equal(labels, torch.where(begins, -100, expected))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("resumed", [2, 4])
def test_an_epoch_is_finite_alike_on_all_ranks_and_resumes_from_a_distributed_checkpoint(
    loader_class: type[Any], documents: Path, resumed: int, tmp_path: Path
) -> None:
    from torch.distributed import checkpoint as dcp

    loaders = make(loader_class, documents, 2)
    iterators: list[Iterator[Batch]] = [iter(loader) for loader in loaders]
    before = [next(iterator) for _ in range(5) for iterator in iterators]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1], "one copy is enough for a checkpoint"
    dcp.save({"dataloader": loaders[1]}, checkpoint_id=tmp_path, no_dist=True)
    whole = [list(iterator) for iterator in iterators]
    again = make(loader_class, documents, resumed)
    for loader in again:
        dcp.load({"dataloader": loader}, checkpoint_id=tmp_path, no_dist=True)
    rest = [list(loader) for loader in again]
    assert len({len(batches) for batches in rest}) == len({len(batches) for batches in whole}) == 1
    every = dict(enumerate(SIZES.tolist(), 1))
    assert tokens(before) + tokens(whole[0] + whole[1]) == every
    assert tokens(before) + sum(map(tokens, rest), Counter()) == every
    if resumed == 2:
        for one, other in zip(rest, whole, strict=True):
            assert all(torch.equal(a[1], b[1]) for a, b in zip(one, other, strict=True))
