"""HF datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers.data import paths
from peers.images import train_image
from peers.kinds import BATCH, SHARD_BYTES, TOKENS
from peers.system import Job, LoaderSession, loader_options

name = "HF datasets"
distributions = ("datasets", "pyarrow", "torchdata", "torchvision", "pillow")
settings = {
    "pack": "Dataset.from_generator, save_to_disk",
    "load": "load_from_disk, format arrow (tokens: numpy), an adapter of ours that reads dataset[indices] once per "
    "batch, torchdata's StatefulDataLoader(batch_size=64)",
    "shuffle": "shuffle=True: a permutation of all samples",
    "images": "Pillow and torchvision (uint8: PILToTensor instead of ToTensor), in the collation",
    "resume": "StatefulDataLoader.load_state_dict",
}


def load() -> None:
    """Import it, so that no measurement pays for that."""
    import datasets  # noqa: F401
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: F401


def pack(job: Job) -> None:
    import datasets

    tokens = job.kind.form == "tokens"
    column = datasets.List(datasets.Value("uint16"), length=TOKENS) if tokens else datasets.Value("binary")
    cache = job.packed.with_name(job.packed.name + "-cache")
    data = datasets.Dataset.from_generator(
        _samples,
        gen_kwargs={"files": paths(job.files), "tokens": tokens},
        features=datasets.Features({"x": column}),
        cache_dir=str(cache),
        writer_batch_size=256,
    )
    data.save_to_disk(str(job.packed), max_shard_size=SHARD_BYTES)


def open(job: Job) -> LoaderSession:  # noqa: A001 - the protocol's name
    import datasets
    from torchdata.stateful_dataloader import StatefulDataLoader

    tokens = job.kind.form == "tokens"
    data = datasets.load_from_disk(str(job.packed)).with_format("numpy" if tokens else "arrow")
    view = Batches(data)
    collate = {"raw": _bytes, "tokens": _rows, "images": _images}[job.kind.form]
    return LoaderSession(
        StatefulDataLoader(view, batch_size=BATCH, shuffle=True, collate_fn=collate, **loader_options(job.workers))
    )


class Batches:
    """A whole batch at once in the format of the data set; its own ``__getitems__`` takes batches apart."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]

    def __getitems__(self, indices: list[int]) -> Any:
        return self._data[indices]["x"]


def _samples(files: list[str], tokens: bool) -> Any:
    for path in files:
        data = Path(path).read_bytes()
        yield {"x": np.frombuffer(data, np.uint16) if tokens else data}


def _bytes(column: Any) -> list[bytes]:
    return column.to_pylist()


def _rows(column: Any) -> torch.Tensor:
    return torch.from_numpy(np.stack(column))


def _images(column: Any) -> torch.Tensor:
    return torch.stack([train_image(data) for data in column.to_pylist()])
