"""MosaicML Streaming."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers.data import paths
from peers.images import allow_torchvision, train_image
from peers.kinds import BATCH, TOKENS
from peers.system import Job, LoaderSession, loader_options

name = "MosaicML Streaming"
distributions = ("mosaicml-streaming", "torchvision", "pillow")
settings = {
    "pack": "MDSWriter, one process, no compression; tokens as ndarray:uint16:2048",
    "load": "StreamingDataset(local=…, batch_size=64), its StreamingDataLoader, bytes collated to a list",
    "shuffle": "shuffle=True, shuffle_algo='py1e', the default",
    "images": "Pillow and torchvision (uint8: PILToTensor instead of ToTensor), in the collation",
    "resume": "StreamingDataLoader.load_state_dict",
}


def load() -> None:
    """Import it, and clean up after killed runs, so that no measurement pays for that."""
    allow_torchvision()
    import streaming  # noqa: F401
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # what a killed run left makes the next one fail


def pack(job: Job) -> None:
    allow_torchvision()
    from streaming import MDSWriter

    tokens = job.kind.form == "tokens"
    columns = {"x": f"ndarray:uint16:{TOKENS}" if tokens else "bytes"}
    with MDSWriter(out=str(job.packed), columns=columns, size_limit=job.kind.shard_bytes) as sink:
        for path in paths(job.files):
            data = Path(path).read_bytes()
            sink.write({"x": np.frombuffer(data, np.uint16) if tokens else data})


def open(job: Job) -> Session:  # noqa: A001 - the protocol's name
    allow_torchvision()
    from streaming import StreamingDataLoader, StreamingDataset

    where: dict[str, Any] = {"local": str(job.packed)}
    if job.remote:
        os.environ["S3_ENDPOINT_URL"] = job.remote.server
        where = {"local": job.remote.cache, "remote": f"s3://{job.remote.folder}"}
    data = StreamingDataset(shuffle=True, batch_size=BATCH, **where)
    collate = {"raw": _bytes, "tokens": _rows, "images": _images}[job.kind.form]
    return Session(StreamingDataLoader(data, batch_size=BATCH, collate_fn=collate, **loader_options(job.workers)))


class Session(LoaderSession):
    """Takes the list of byte strings out of its dict."""

    def epoch(self, number: int) -> Iterator[Any]:
        return map(_column, super().epoch(number))

    def resume(self, state: Any) -> Iterator[Any]:
        return map(_column, super().resume(state))


def _column(batch: Any) -> Any:
    return batch["x"] if isinstance(batch, dict) else batch


def _bytes(batch: list[dict[str, Any]]) -> dict[str, list[bytes]]:
    # A dict, because its loader takes the length of a list's first item for the size of the batch, and counts by it.
    return {"x": [sample["x"] for sample in batch]}


def _rows(batch: list[dict[str, Any]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([sample["x"] for sample in batch]))


def _images(batch: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack([train_image(sample["x"]) for sample in batch])
