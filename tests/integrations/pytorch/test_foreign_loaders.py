"""Loaders of others over a data set of ours: torch's DataLoader, webdataset's pipelines, DDP's join, Ray Train."""

from __future__ import annotations

import ast
import gc
import weakref
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from torch.utils.data import DataLoader

from tests.integrations.pytorch.conftest import TOTAL, Batches, check_epochs
from tests.support import forked
from tests.support.gloo_ranks import Ranks
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import StateError


def dataset(shards: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(shards, decode=True, fields=("cls",), **options)


def play(data: StreamingDataset, loader: Any, epochs: Any) -> list[Batches]:
    """Return the classes of the batches of some epochs."""
    found = []
    for epoch in epochs:
        data.set_epoch(epoch)
        found.append([(batch["cls"] if isinstance(batch, dict) else batch[0]).tolist() for batch in loader])
    return found


def plain(shards: Path, workers: int, persistent: bool) -> list[Batches]:
    data = dataset(shards, batch_size=4)
    return play(data, DataLoader(data, 4, num_workers=workers, persistent_workers=persistent), range(3))


def pipeline(shards: Path, *stages: Any, **options: Any) -> webdataset.DataPipeline:
    source = StreamingDataset(shards, **options)
    return webdataset.DataPipeline(source, webdataset.decode(), webdataset.to_tuple("cls", "txt"), *stages)


def batched(shards: Path, workers: int, persistent: bool) -> list[Batches]:
    """A pipeline of webdataset makes the batches in the workers."""
    stages = pipeline(shards, webdataset.batched(4), batch_size=4)
    loader = webdataset.WebLoader(stages, batch_size=None, num_workers=workers, persistent_workers=persistent)
    return play(stages.pipeline[0], loader, range(3))


def rebatched(shards: Path, workers: int, persistent: bool) -> list[Batches]:
    """Read epochs through webdataset's ``WebLoader``: its main process unbatches, shuffles and batches again."""
    stages = pipeline(shards, webdataset.batched(4), batch_size=4)
    loader = webdataset.WebLoader(stages, batch_size=None, num_workers=workers, persistent_workers=persistent)
    return play(stages.pipeline[0], loader.unbatched().shuffle(16).batched(5), range(3))


QUICK = {(plain, 1, False), (plain, 3, True), (batched, 2, True)}


@pytest.mark.parametrize(
    ("loader", "workers", "persistent"),
    [
        *(
            pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
            for case in [(made, n, n > 1) for made in (plain, batched) for n in range(4)]
        ),
        (rebatched, 2, False),
    ],
)
def test_every_sample_comes_once_an_epoch_in_equal_batches_and_epochs_differ(
    ranks: Ranks, shards: Path, loader: Any, workers: int, persistent: bool
) -> None:
    found = ranks.all(loader, shards, workers, persistent)
    check_epochs(found)
    if loader is not rebatched:
        assert found == ranks.all(loader, shards, 0, False)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_set_epoch_chooses_the_epoch_of_all_workers_also_during_a_pass(
    shards: Path, workers: int, persistent: bool
) -> None:
    data = dataset(shards, batch_size=4)
    loader = DataLoader(data, 4, num_workers=workers, persistent_workers=persistent)
    found = play(data, loader, (0, 1, 1, 0))
    assert found[0] == found[3] != found[1] == found[2]
    data.set_epoch(0)
    batches = iter(loader)
    begun = [next(batches)["cls"].tolist()]
    data.set_epoch(1)
    assert begun + [batch["cls"].tolist() for batch in batches] == found[0]
    assert [batch["cls"].tolist() for batch in loader] == found[1]


def test_a_loader_ends_with_its_last_reference(shards: Path) -> None:
    """What a garbage collection ends instead waits five seconds for each worker."""
    gc.disable()
    try:
        data = dataset(shards, batch_size=4)
        loader = DataLoader(data, 4, num_workers=1, persistent_workers=True)
        play(data, loader, range(2))
        ended = weakref.ref(loader)
        del loader
        assert ended() is None
    finally:
        gc.enable()


def test_two_iterations_at_once_are_both_whole(shards: Path) -> None:
    data = dataset(shards, batch_size=4)
    data.set_epoch(3)
    loader = DataLoader(data, 4, num_workers=2)
    pairs = [(one["cls"].tolist(), other["cls"].tolist()) for one, other in zip(loader, loader, strict=True)]
    assert [one for one, _ in pairs] == [other for _, other in pairs]
    assert sorted(chain.from_iterable(one for one, _ in pairs)) == list(range(TOTAL))


@pytest.mark.parametrize(
    ("options", "printed", "warning"),
    [
        ("batch_size=4|", "True", "without set_epoch, each pass repeats epoch 0"),
        ("batch_size=4|, num_workers=2, persistent_workers=True", "True", "each pass repeats epoch 0"),
        pytest.param("|, num_workers=3", "True", "the 3 workers of a foreign DataLoader", marks=pytest.mark.slow),
    ],
)
def test_what_a_loader_cannot_know_is_one_warning(shards: Path, options: str, printed: str, warning: str) -> None:
    of_dataset, _, of_loader = options.partition("|")
    script = (
        "import sys, wdsdist; from torch.utils.data import DataLoader\n"
        f"data = wdsdist.StreamingDataset(sys.argv[1], fields=['cls'], decode=True, {of_dataset})\n"
        f"loader = DataLoader(data, 4{of_loader})\n"
        "epochs = [[batch['cls'].tolist() for batch in loader] for _ in range(3)]\n"
        "print(epochs[0] == epochs[1] == epochs[2])"
    )
    found = forked.run("-c", script, shards)
    assert (found.stdout, found.stderr.count(warning)) == (f"{printed}\n", 1), found.stderr


# webdataset's stages


@pytest.mark.parametrize(
    ("stage", "count"),
    [
        (webdataset.decode("torchrgb"), TOTAL),
        (webdataset.rename(label="cls", text="txt"), TOTAL),
        (webdataset.select(lambda sample: int(sample["cls"]) % 2), TOTAL // 2),
        (webdataset.shuffle(10), TOTAL),
    ],
)
def test_samples_are_what_stages_expect(shards: Path, stage: Any, count: int) -> None:
    samples = list(webdataset.DataPipeline(StreamingDataset(shards), stage))
    assert len(samples) == count
    assert all(isinstance(sample["__key__"], str) for sample in samples)


@pytest.mark.parametrize("splitter", [webdataset.split_by_node, webdataset.split_by_worker])
@pytest.mark.parametrize("before", [[], [webdataset.decode(), iter, webdataset.shuffle(10)]])
def test_a_splitter_that_would_lose_samples_is_refused_wherever_it_stands(
    shards: Path, splitter: Any, before: list[Any]
) -> None:
    with pytest.raises(StateError, match=f"{splitter.__name__} would split the samples of this worker once more"):
        list(webdataset.DataPipeline(StreamingDataset(shards), *before, splitter, webdataset.to_tuple("cls")))


# DDP's join, which raises if a rank ends before another, and Ray Train, which prepares loaders


def train_under_join(shards: Path, batch_size: int, drop_last: bool) -> list[int]:
    """Return the batches of two epochs of a loader of ours, and of a foreign one."""
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    own = StreamingDataLoader(dataset(shards, drop_last=drop_last), batch_size, num_workers=0, drop_last=drop_last)
    foreign = DataLoader(dataset(shards, drop_last=drop_last, batch_size=batch_size), batch_size, num_workers=2)
    counts = []
    for loader in (own, own, foreign):
        counts.append(0)
        with Join([model], throw_on_early_termination=True):
            for batch in loader:
                model(batch["cls"].float()[:, None]).sum().backward()
                counts[-1] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "drop_last"), [(6, False), (4, True)])
def test_no_rank_ends_before_another(ranks: Ranks, shards: Path, batch_size: int, drop_last: bool) -> None:
    found = ranks.all(train_under_join, shards, batch_size, drop_last)
    assert not [error for error in found if isinstance(error, str)], found
    assert found[0] == found[1]


def seen_by_ray(config: dict[str, Any]) -> None:
    """Write what a Ray Train worker saw in two epochs."""
    import ray.train
    import ray.train.torch

    loader = StreamingDataLoader(dataset(config["shards"]), 4, num_workers=0, drop_last=False)
    prepared = ray.train.torch.prepare_data_loader(loader)
    epochs = []
    for epoch in range(2):
        prepared.sampler.set_epoch(epoch)
        epochs.append([batch["cls"].tolist() for batch in prepared])
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
    check_epochs([ast.literal_eval((tmp_path / str(rank)).read_text()) for rank in range(2)])
