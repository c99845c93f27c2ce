"""SPDL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers.bare import random_box
from peers.data import paths
from peers.kinds import BATCH, CROP
from peers.system import Job

name = "SPDL"
distributions = ("spdl_core", "spdl_io")
settings = {
    "pack": "none: the original files",
    "load": "PipelineBuilder: read and decode with a thread for each worker, aggregate(64), convert, add_sink(3)",
    "shuffle": "a permutation of all files",
    "images": "FFmpeg of the system: decode_packets with the filters crop, scale (bilinear), hflip",
    "resume": "it has no state: the pipeline runs again from the start of the epoch",
}


def load() -> None:
    """Import it, so that no measurement pays for that."""
    import spdl.io
    import spdl.pipeline

    try:
        _ = spdl.io.demux_image  # its libraries are loaded when a name of it is first asked for
    except RuntimeError as error:
        raise ImportError(f"SPDL needs the libraries of FFmpeg, as in Debian's package ffmpeg: {error}") from error


def pack(job: Job) -> None:
    """Do nothing: there is nothing to pack."""


def open(job: Job) -> Session:  # noqa: A001 - the protocol's name
    return Session(job)


class Session:
    """A pipeline of threads for each epoch; a place is a number of batches to skip."""

    def __init__(self, job: Job) -> None:
        self._paths = np.array(paths(job.files))
        self._form = job.kind.form
        self._threads = max(1, job.workers)
        self._seen = 0

    def epoch(self, number: int) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        self._seen = 0
        order = np.random.default_rng(number).permutation(len(self._paths))
        items = ((str(self._paths[index]), (number, int(index))) for index in order)
        one, whole = {"raw": (_read, _same), "tokens": (_row, _stacked), "images": (_frame, _images)}[self._form]
        builder = PipelineBuilder().add_source(items).pipe(one, concurrency=self._threads)
        pipeline = builder.aggregate(BATCH).pipe(whole).add_sink(3).build(num_threads=self._threads + 1)
        with pipeline.auto_stop():
            for batch in pipeline:
                self._seen += 1
                yield batch

    def state(self) -> int:
        return self._seen

    def resume(self, state: int) -> Iterator[Any]:
        return itertools.islice(self.epoch(0), state, None)


def _read(item: tuple[str, Any]) -> bytes:
    return Path(item[0]).read_bytes()


def _same(batch: list[bytes]) -> list[bytes]:
    return batch


def _row(item: tuple[str, Any]) -> np.ndarray:
    return np.fromfile(item[0], np.uint16)


def _stacked(batch: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(batch))


def _frame(item: tuple[str, Any]) -> Any:
    import spdl.io

    path, seed = item
    packets = spdl.io.demux_image(path)
    random = np.random.default_rng(seed)
    top, left, high, wide = random_box(packets.height, packets.width, random)
    steps = [f"crop={wide}:{high}:{left}:{top}:exact=1", f"scale={CROP}:{CROP}:flags=bilinear"]
    steps += [*(["hflip"] if random.random() < 0.5 else []), "format=pix_fmts=rgb24"]
    return spdl.io.decode_packets(packets, filter_desc=",".join(steps))


def _images(frames: list[Any]) -> torch.Tensor:
    import spdl.io

    return spdl.io.to_torch(spdl.io.convert_frames(frames))
