"""LitData."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from peers.data import paths
from peers.images import allow_torchvision, train_image
from peers.kinds import BATCH, TOKENS
from peers.system import Job, LoaderSession, as_list, loader_options, stack

name = "LitData"
distributions = ("litdata", "torchvision", "pillow")
settings = {
    "pack": "optimize, one process per core, no compression; tokens for its TokensLoader",
    "load": "StreamingDataset(local folder), its StreamingDataLoader(batch_size=64), bytes collated to a list",
    "shuffle": "shuffle=True",
    "images": "Pillow and torchvision (uint8: PILToTensor instead of ToTensor), in transform",
    "resume": "StreamingDataLoader.load_state_dict",
}


def load() -> None:
    """Import it, so that no measurement pays for that."""
    allow_torchvision()
    import litdata  # noqa: F401


def pack(job: Job) -> None:
    allow_torchvision()
    import litdata

    tokens = job.kind.form == "tokens"
    litdata.optimize(
        fn=_tokens if tokens else _read,
        inputs=paths(job.files),
        output_dir=str(job.packed),
        chunk_bytes=job.kind.shard_bytes,
        num_workers=os.cpu_count(),
        item_loader=litdata.TokensLoader() if tokens else None,
        start_method="fork",
        verbose=False,
    )


def open(job: Job) -> LoaderSession:  # noqa: A001 - the protocol's name
    allow_torchvision()
    import litdata

    loader = litdata.TokensLoader(block_size=TOKENS) if job.kind.form == "tokens" else None
    where: dict[str, Any] = {"input_dir": str(job.packed)}
    if job.remote:
        # Its client takes TLS for granted, which the server of the benchmark does not speak.
        litdata.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
        where = {
            "input_dir": f"s3://{job.remote.folder}",
            "cache_dir": job.remote.cache,
            "storage_options": {"endpoint_url": job.remote.server},
            "max_pre_download": 8,
            "max_cache_size": "100GB",
        }
    data = litdata.StreamingDataset(
        **where,
        item_loader=loader,
        shuffle=True,
        drop_last=False,
        transform=train_image if job.kind.form == "images" else None,
    )
    collate: Any = stack
    if job.kind.form == "raw":
        collate = _bytes if job.workers else as_list
    return LoaderSession(
        litdata.StreamingDataLoader(data, batch_size=BATCH, collate_fn=collate, **loader_options(job.workers))
    )


def _bytes(batch: list[Any]) -> list[bytes]:
    """Make bytes of LitData's memoryviews of its chunks: no worker could send them, and the loader would hang."""
    return [bytes(sample) for sample in batch]


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _tokens(path: str) -> Iterator[torch.Tensor]:
    yield torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint16)
