"""webdataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers.data import paths
from peers.images import train_image
from peers.kinds import BATCH
from peers.system import Job, as_list, loader_options, shards, stack

name = "webdataset"
distributions = ("webdataset", "torchvision", "pillow")
settings = {
    "pack": "ShardWriter, one process",
    "load": "WebDataset(…).shuffle(1000).to_tuple(…).batched(64) in the workers, WebLoader(batch_size=None)",
    "shuffle": "shardshuffle=100 and a buffer of 1,000 samples",
    "images": "Pillow and torchvision (uint8: PILToTensor instead of ToTensor), in .map_tuple",
    "resume": "it has no state: the loader runs again from the start of the epoch",
}


def load() -> None:
    """Import it, so that no measurement pays for that."""
    import webdataset  # noqa: F401


def pack(job: Job) -> None:
    import webdataset

    job.packed.mkdir(parents=True)
    with webdataset.ShardWriter(
        str(job.packed / "%06d.tar"), maxsize=job.kind.shard_bytes, maxcount=10**6, verbose=0
    ) as sink:
        for path in paths(job.files):
            sink.write({"__key__": Path(path).stem, job.kind.extension: Path(path).read_bytes()})


def open(job: Job) -> Session:  # noqa: A001 - the protocol's name
    import webdataset

    # empty_check: with more workers than shards a worker may have none.
    urls = shards(job.packed)
    if job.remote:
        urls = [f"{job.remote.server}/{job.remote.folder}/{Path(url).name}" for url in urls]
    data = webdataset.WebDataset(urls, shardshuffle=100, empty_check=False).shuffle(1000)
    data = data.to_tuple(job.kind.extension)
    change = {"raw": _only, "tokens": _row, "images": _image}[job.kind.form]
    data = data.map(change).batched(BATCH, collation_fn=as_list if job.kind.form == "raw" else stack)
    return Session(webdataset.WebLoader(data, batch_size=None, **loader_options(job.workers)))


def _only(sample: tuple[bytes]) -> bytes:
    return sample[0]


def _row(sample: tuple[bytes]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(sample[0]), np.uint16))


def _image(sample: tuple[bytes]) -> torch.Tensor:
    return train_image(sample[0])


class Session:
    """Without a state of its own, a place is a number of batches to skip."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._seen = 0

    def epoch(self, number: int) -> Iterator[Any]:
        self._seen = 0
        for batch in self._loader:
            self._seen += 1
            yield batch

    def state(self) -> int:
        return self._seen

    def resume(self, state: int) -> Iterator[Any]:
        return itertools.islice(iter(self._loader), state, None)
