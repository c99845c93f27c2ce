"""A map-style data set that reads a file for each sample, with torch's DistributedSampler."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from peers.data import paths
from peers.images import train_image
from peers.kinds import BATCH
from peers.system import Job, LoaderSession, as_list, loader_options, stack

name = "folder"
distributions = ("torch", "torchdata", "torchvision", "pillow")
settings = {
    "pack": "none: the original files",
    "load": "a Dataset that reads files, DataLoader(batch_size=64)",
    "shuffle": "DistributedSampler: a permutation of all samples",
    "images": "Pillow and torchvision (uint8: PILToTensor instead of ToTensor), in the data set",
    "resume": "torchdata's StatefulDataLoader.load_state_dict",
}


class Files(Dataset[Any]):
    """Reads one file for each sample."""

    def __init__(self, root: Path, form: str) -> None:
        self._paths = np.array(paths(root))  # one array: a list's reference counts would be copied by every worker
        self._form = form

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        data = Path(str(self._paths[index])).read_bytes()
        if self._form == "images":
            return train_image(data)
        return torch.frombuffer(bytearray(data), dtype=torch.uint16) if self._form == "tokens" else data


class Session(LoaderSession):
    """Tells the sampler which epoch it is."""

    def epoch(self, number: int) -> Iterator[Any]:
        self.loader.sampler.set_epoch(number)
        return iter(self.loader)


def load() -> None:
    """Import it, so that no measurement pays for that."""
    if importlib.util.find_spec("torchdata"):
        import torchdata.stateful_dataloader  # noqa: F401


def pack(job: Job) -> None:
    """Do nothing: there is nothing to pack."""


def open(job: Job) -> Session:  # noqa: A001 - the protocol's name
    loader: type[Any] = DataLoader
    if importlib.util.find_spec("torchdata"):
        from torchdata.stateful_dataloader import StatefulDataLoader as loader  # noqa: N813
    data = Files(job.files, job.kind.form)
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    collate = as_list if job.kind.form == "raw" else stack
    return Session(loader(data, batch_size=BATCH, sampler=sampler, collate_fn=collate, **loader_options(job.workers)))
