"""DDP's join, which ends jobs whose ranks have unequal batches, and Ray Train, which prepares loaders."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.support.gloo_ranks import Ranks
from wdsdist import StreamingDataLoader, StreamingDataset

TOTAL = 37


def loaders(shards: Path, batch_size: int, drop_last: bool) -> list[Any]:
    """Return a loader of ours and a foreign one."""
    common = {"decode": True, "fields": ("cls",), "drop_last": drop_last}
    own = StreamingDataLoader(StreamingDataset(shards, **common), batch_size, num_workers=0, drop_last=drop_last)
    return [own, DataLoader(StreamingDataset(shards, batch_size=batch_size, **common), batch_size, num_workers=2)]


def train_under_join(shards: Path, batch_size: int, drop_last: bool) -> list[int]:
    """Return the batches of two epochs of each loader; DDP's join raises where a rank ends before another."""
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    counts = []
    for loader in loaders(shards, batch_size, drop_last):
        for _ in range(2):
            counts.append(0)
            with Join([model], throw_on_early_termination=True):
                for batch in loader:
                    model(batch["cls"].float()[:, None]).sum().backward()
                    counts[-1] += 1
    return counts


@pytest.mark.parametrize(
    ("batch_size", "drop_last"),
    [
        pytest.param(size, drop_last, marks=[] if (size, drop_last) in ((4, True), (6, False)) else [pytest.mark.slow])
        for size in (1, 4, 6)
        for drop_last in (False, True)
    ],
)
def test_no_rank_ends_before_another(ranks: Ranks, shards: Path, batch_size: int, drop_last: bool) -> None:
    found = ranks.all(train_under_join, shards, batch_size, drop_last)
    assert not [one for one in found if isinstance(one, str)], found
    assert found[0] == found[1]


def seen_by_ray(config: dict[str, Any]) -> None:
    """Write what a Ray Train worker saw in two epochs."""
    import ray.train
    import ray.train.torch

    loader = StreamingDataLoader(
        StreamingDataset(config["shards"], decode=True, fields=("cls",)), 4, num_workers=0, drop_last=False
    )
    prepared = ray.train.torch.prepare_data_loader(loader)
    epochs = []
    for epoch in range(2):
        prepared.sampler.set_epoch(epoch)
        epochs.append([batch["cls"].tolist() for batch in prepared])
    assert len(prepared) == len(epochs[0])
    rank = ray.train.get_context().get_world_rank()
    Path(config["results"], str(rank)).write_text(repr(epochs))


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_ray_train_prepares_a_loader_without_touching_its_split(shards: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    paths = {"PYTHONPATH": str(Path(__file__).parents[3])}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": paths})
    try:
        TorchTrainer(
            seen_by_ray,
            train_loop_config={"shards": str(shards), "results": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "ray")),
        ).fit()
    finally:
        ray.shutdown()
    first, second = (ast.literal_eval((tmp_path / str(rank)).read_text()) for rank in range(2))
    for one, other in zip(first, second, strict=True):
        assert list(map(len, one)) == list(map(len, other))
        counts = Counter(number for batch in (*one, *other) for number in batch)
        assert counts.keys() == set(range(TOTAL))
        assert counts.total() == TOTAL + 1
    assert first[0] != first[1]
