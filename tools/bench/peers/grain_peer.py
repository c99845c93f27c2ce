"""Grain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers.bare import crop_image
from peers.data import paths
from peers.kinds import BATCH
from peers.system import Job, as_list, shards

name = "Grain"
distributions = ("grain", "array_record", "simplejpeg", "opencv-python-headless")
settings = {
    "pack": "ArrayRecord, group_size:1, one process",
    "load": "MapDataset.source(ArrayRecordDataSource).repeat().to_iter_dataset().batch(64).mp_prefetch(…): its workers "
    "persist over epochs",
    "shuffle": "shuffle(): a permutation of all samples",
    "images": "simplejpeg and OpenCV, as the bare loop, in random_map",
    "resume": "get_state and set_state of the iterator",
}


def load() -> None:
    """Import it, so that no measurement pays for that."""
    import grain  # noqa: F401


def pack(job: Job) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    job.packed.mkdir(parents=True)
    writer, size, number = None, 0, 0
    for path in paths(job.files):
        if writer is None or size > job.kind.shard_bytes:
            if writer is not None:
                writer.close()
            writer, size, number = _writer(ArrayRecordWriter, job.packed, number), 0, number + 1
        data = Path(path).read_bytes()
        writer.write(data)
        size += len(data)
    if writer is not None:
        writer.close()


def _writer(kind: Any, folder: Path, number: int) -> Any:
    return kind(str(folder / f"{number:06d}.array_record"), "group_size:1")


def open(job: Job) -> Session:  # noqa: A001 - the protocol's name
    import grain

    data = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(shards(job.packed, "*.array_record")))
    data = data.seed(0).shuffle().repeat()
    if job.kind.form == "images":
        data = data.random_map(_crop)
    elif job.kind.form == "tokens":
        data = data.map(_row)
    batches = data.to_iter_dataset().batch(BATCH, batch_fn=as_list if job.kind.form == "raw" else np.stack)
    if job.workers:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers))
    return Session(batches, -(-job.samples // BATCH), job.kind.form)


def _crop(data: bytes, random: np.random.Generator) -> np.ndarray:
    import cv2

    cv2.setNumThreads(0)
    return np.ascontiguousarray(crop_image(data, random))


def _row(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint16)


class Session:
    """Epochs follow one another in one iterator."""

    def __init__(self, batches: Any, per_epoch: int, form: str) -> None:
        self._iterator = iter(batches)
        self._per_epoch = per_epoch
        self._form = form
        self._seen = 0

    def epoch(self, number: int) -> Iterator[Any]:
        self._seen = 0
        return self._rest()

    def state(self) -> Any:
        return self._iterator.get_state(), self._seen

    def resume(self, state: Any) -> Iterator[Any]:
        position, self._seen = state
        self._iterator.set_state(position)
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        for batch in itertools.islice(self._iterator, self._per_epoch - self._seen):
            self._seen += 1
            yield batch if self._form == "raw" else torch.from_numpy(batch)
