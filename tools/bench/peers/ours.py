"""wdsdist."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from peers.kinds import BATCH, CROP, Kind
from peers.system import Job

name = "wdsdist"
distributions = ("wdsdist", "simplejpeg", "opencv-python-headless")
settings = {
    "pack": "wdsdist.pack, with its default number of processes",
    "load": "StreamingDataset(fields=…), StreamingDataLoader(batch_size=64): a batch is a dict of columns",
    "shuffle": "order='shard', the default",
    "images": "decode={'jpg': RandomResizedCrop(224)}: libjpeg-turbo and OpenCV",
    "resume": "load_state_dict",
}


def load() -> None:
    """Import data set and loader before the measurement begins. Packing is another program, and not imported."""
    import wdsdist

    _ = wdsdist.StreamingDataset, wdsdist.StreamingDataLoader  # resolved lazily


def pack(job: Job) -> None:
    import wdsdist

    shutil.rmtree(job.packed, ignore_errors=True)
    wdsdist.pack(job.files, job.packed, shard_bytes=job.kind.shard_bytes, class_folders=False)


def open(job: Job) -> Session:  # noqa: A001 - the protocol's name
    import wdsdist

    decode = _decode(job.kind)
    where: dict[str, Any] = {"shards": job.packed}
    if job.remote:
        scheme = "s3:/" if job.remote.is_s3 else job.remote.server
        where = {"shards": f"{scheme}/{job.remote.folder}", "cache_dir": job.remote.cache}
        if job.remote.is_s3:
            where["storage_options"] = {"endpoint_url": job.remote.server}
    dataset = wdsdist.StreamingDataset(fields=(job.kind.extension,), decode=decode, **where)
    # Without workers, strings are views of the mapped shard: long ones cost less to look at there than to gather.
    in_place = not job.workers and job.kind.name == "jpeg70k"
    loader = wdsdist.StreamingDataLoader(dataset, BATCH, num_workers=job.workers, drop_last=False)
    return Session(loader, job.kind, list if in_place else None)


def _decode(kind: Kind) -> Any:
    if kind.form == "tokens":
        return {kind.extension: np.uint16}
    if kind.form == "images":
        from wdsdist.samples.images.transforms import RandomResizedCrop

        return {kind.extension: RandomResizedCrop(CROP)}
    return None


class Session:
    """Batches are dicts of columns; the comparison wants one of them."""

    def __init__(self, loader: Any, kind: Kind, form: Callable[[Any], Any] | None) -> None:
        self._loader = loader
        self._form = form
        self._extension = kind.extension

    def epoch(self, number: int) -> Iterator[Any]:
        self._loader.set_epoch(number)
        return self._columns()

    def state(self) -> Any:
        return self._loader.state_dict()

    def resume(self, state: Any) -> Iterator[Any]:
        self._loader.load_state_dict(state)
        return self._columns()

    def _columns(self) -> Iterator[Any]:
        columns = (batch[self._extension] for batch in self._loader)
        return map(self._form, columns) if self._form else columns
