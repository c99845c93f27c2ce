"""What each rank does in the tests of Accelerate."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

import wdsdist
from wdsdist.errors import WdsdistError


def as_launched(*, offline: bool = True) -> None:
    """Set what ``torchrun`` sets, and make errors of warnings."""
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", OMP_NUM_THREADS="1", HF_HUB_OFFLINE=str(int(offline)))
    warnings.resetwarnings()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", FutureWarning)


def make_dataset(shards: str, **more: Any) -> wdsdist.StreamingDataset:
    return wdsdist.StreamingDataset(shards, decode=True, fields=("cls",), **more)


def make_loader(shards: str, *, workers: int = 2, batch_size: int = 4, **more: Any) -> wdsdist.StreamingDataLoader:
    return wdsdist.StreamingDataLoader(make_dataset(shards, **more), batch_size, num_workers=workers)


def accelerator(**options: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=False)
    return Accelerator(cpu=True, **options)


def classes(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    return [batch["cls"].tolist() for batch in batches]


def epochs(shards: str, folder: str) -> dict[str, Any]:
    """Play two epochs under each configuration; save in the second, load in a new loader, and go on."""
    from accelerate.utils import DataLoaderConfiguration

    as_launched()
    found: dict[str, Any] = {"epochs": {}, "is_same": []}
    for options in ({}, {"dispatch_batches": True}, {"split_batches": True}, {"even_batches": False}):
        engine = accelerator(dataloader_config=DataLoaderConfiguration(**options))
        loader = make_loader(shards, workers=0)
        prepared = engine.prepare(loader)
        found["is_same"].append(prepared is loader)
        found["epochs"][str(options)] = [classes(prepared) for _ in range(2)]

    engine = accelerator()
    loader = engine.prepare(make_loader(shards))
    first, second = classes(loader), []
    for batch in loader:
        second += classes([batch])
        if len(second) == 3:
            engine.wait_for_everyone()
            engine.save_state(folder)
    found["third"] = classes(loader)
    engine.wait_for_everyone()

    engine = accelerator()
    loader = engine.prepare(make_loader(shards))
    engine.load_state(folder)
    found["resumed"], found["expected"] = [classes(loader), classes(loader)], [second[3:], found["third"]]
    found["first"] = first
    return found


def accumulation(shards: str) -> dict[str, Any]:
    """Accumulate gradients over 3 of an epoch's 8 batches, with an evaluation in between that is given up."""
    as_launched()
    engine = accelerator(gradient_accumulation_steps=3)
    model, loader, other = engine.prepare(
        torch.nn.Linear(1, 1), make_loader(shards, workers=0), make_loader(shards, workers=0)
    )
    steps = []
    for batch in loader:
        with engine.accumulate(model):
            engine.backward(model(batch["cls"].float()[:, None]).mean())
            steps.append(engine.sync_gradients)
        if len(steps) == 4:
            next(iter(other))
    return {"steps": steps, "after": engine.gradient_state.dataloader_references}


def planned(shards: str, folder: str) -> dict[str, Any]:
    """Play an epoch of planned batches in short blocks, the last without a batch; save, load anew, and go on."""
    from wdsdist.batching import LengthGroups, batcher

    as_launched()
    found: dict[str, Any] = {"classes": [], "synced": []}
    usual, batcher.BLOCK_STEPS = batcher.BLOCK_STEPS, 1
    try:
        for place in ("whole", "resumed"):
            engine = accelerator(gradient_accumulation_steps=4)
            loader = wdsdist.StreamingDataLoader(
                make_dataset(shards), batches=LengthGroups(3, by="cls.bytes"), num_workers=1
            )
            model, loader = engine.prepare(torch.nn.Linear(1, 1), loader)
            found["length"] = len(loader)
            if place == "resumed":
                engine.load_state(folder)
                found["rest"] = classes(loader)
                continue
            for batch in loader:
                found["classes"] += classes([batch])
                with engine.accumulate(model):
                    engine.backward(model(batch["cls"].float()[:, None]).mean())
                    found["synced"].append(engine.sync_gradients)
                if len(found["classes"]) == 4:
                    engine.wait_for_everyone()
                    engine.save_state(folder)
    finally:
        batcher.BLOCK_STEPS = usual
    return found


def evaluation(shards: str) -> dict[str, Any]:
    """Gather an evaluation's classes, as tensors and as objects, and the sum of a metric over what is not padding."""
    as_launched()
    engine = accelerator()
    found: dict[str, Any] = {}
    for batch_size in (4, 5, 30, 31, 64):
        loader = engine.prepare(make_loader(shards, batch_size=batch_size, workers=0, shuffle=False, mark_padding=True))
        gathered, objects, total = [], [], torch.zeros(1, dtype=torch.int64)
        for batch in loader:
            gathered += engine.gather_for_metrics(batch["cls"]).tolist()
            objects += engine.gather_for_metrics(batch["__key__"], use_gather_object=True)
            total += wdsdist.unpadded(batch)["cls"].sum()
        found[str(batch_size)] = gathered, objects, int(engine.reduce(total).item())
    return found


def placement(shards: str) -> dict[str, Any]:
    """Prepare a loader where batches belong on another device than they are made on."""
    as_launched()
    from accelerate.state import PartialState

    engine = accelerator()
    usual = engine.device
    try:
        PartialState().device = torch.device("meta")
        prepared, bare = engine.prepare(make_loader(shards, workers=0)), make_loader(shards, workers=0)
        return {"devices": [next(iter(loader))["cls"].device.type for loader in (prepared, bare)]}
    finally:
        PartialState().device = usual


class Wrapping(IterableDataset[Any]):
    """What a user puts around a data set without passing on its epochs."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return iter(self.dataset)


def refusals(shards: str) -> dict[str, Any]:
    """Hand Accelerate what it would split a second time, and return what each rank is told."""
    from accelerate import skip_first_batches
    from accelerate.data_loader import IterableDatasetShard, prepare_data_loader
    from accelerate.utils import DataLoaderConfiguration

    as_launched()
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5  # type: ignore[attr-defined]  # torch joins a worker so long
    told: dict[str, Any] = {}

    def attempt(name: str, batches: Any) -> None:
        try:
            told[name] = classes(batches)
        except WdsdistError as error:
            told[name] = f"{type(error).__name__}: {error}"

    def prepared_when_iterated() -> Any:
        yield from stateful.prepare(DataLoader(make_dataset(shards), batch_size=4))

    dispatching = accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    splitting = accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    attempt("dispatcher", dispatching.prepare(DataLoader(make_dataset(shards), batch_size=4, num_workers=1)))
    stateful = accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata calls it
    attempt("dispatcher, stateful", prepared_when_iterated())
    attempt("shard", splitting.prepare(DataLoader(make_dataset(shards), batch_size=4)))
    attempt("shard, wrapped", splitting.prepare(DataLoader(Wrapping(make_dataset(shards)), batch_size=4)))
    by_hand = IterableDatasetShard(Wrapping(make_dataset(shards)), 4, num_processes=2, process_index=dist.get_rank())
    attempt("shard, forked", DataLoader(by_hand, 4, num_workers=1, multiprocessing_context="fork"))
    used = make_loader(shards, workers=0)
    classes(used)
    attempt("loader's data set", prepare_data_loader(used, num_processes=2, dispatch_batches=False))
    attempt("skipping", skip_first_batches(used, 2))
    warnings.filterwarnings("ignore", "num_replicas is 1 but")
    alone = make_dataset(shards, num_replicas=1, rank=0)
    told["not split before"] = classes(splitting.prepare(DataLoader(alone, batch_size=4)))
    return told
