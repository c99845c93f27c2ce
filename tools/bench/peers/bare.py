"""The ceiling of the training path: decode, crop, resize and flip bytes that lie in memory, without any loader."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from peers.data import paths
from peers.kinds import BATCH, CROP
from peers.system import Job

name = "bare loop"
distributions = ("simplejpeg", "opencv-python-headless")
settings = {
    "load": "one process per worker; the bytes are in its memory, and the results stay there",
    "images": "simplejpeg at the smallest sufficient DCT scale, crop, cv2.resize INTER_LINEAR, flip",
}


def crop_image(data: bytes, random: np.random.Generator) -> np.ndarray:
    """Decode a random crop of a JPEG at reduced scale: uint8 [224, 224, 3]."""
    import cv2
    import simplejpeg

    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    top, left, high, wide = random_box(height, width, random)
    factor = max(1.0, min(high, wide) / CROP)
    image = simplejpeg.decode_jpeg(data, min_height=int(height / factor), min_width=int(width / factor))
    scale = image.shape[0] / height, image.shape[1] / width
    top, left = round(top * scale[0]), round(left * scale[1])
    part = image[top : top + max(1, round(high * scale[0])), left : left + max(1, round(wide * scale[1]))]
    made = cv2.resize(part, (CROP, CROP), interpolation=cv2.INTER_LINEAR)
    return made[:, ::-1] if random.random() < 0.5 else made


def random_box(height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Return torchvision's random box: top, left, height, width."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return int(random.integers(height - high + 1)), int(random.integers(width - wide + 1)), high, wide
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


class Session:
    """Processes that hold their part of the data and play epochs when told."""

    def __init__(self, job: Job) -> None:
        context = get_context("fork")
        everything = paths(job.files)
        count = max(1, job.workers)
        self._pipes: list[Connection] = []
        self._processes = []
        for worker in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(everything[worker::count], worker, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def epoch(self, number: int) -> Iterator[Any]:
        for pipe in self._pipes:
            pipe.send(number)
        return iter([Count(pipe.recv()) for pipe in self._pipes])


class Count:
    """Stands for images that stayed where they were made."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def numpy(self) -> np.ndarray:
        return np.zeros((1, 1))


def open(job: Job) -> Session:  # noqa: A001 - the protocol's name
    return Session(job)


def load() -> None:
    """Import it, so that no measurement pays for that."""
    import cv2  # noqa: F401
    import simplejpeg  # noqa: F401


def pack(job: Job) -> None:
    """Do nothing: files are read into memory."""


def _work(files: list[str], worker: int, pipe: Connection) -> None:
    import cv2

    cv2.setNumThreads(0)
    contents = [Path(path).read_bytes() for path in files]
    pipe.send(len(contents))
    batch = np.empty((BATCH, CROP, CROP, 3), np.uint8)
    while True:
        random = np.random.default_rng((pipe.recv(), worker))
        for part in _parts(contents):
            for place, data in enumerate(part):
                batch[place] = crop_image(data, random)
        pipe.send(len(contents))


def _parts(contents: list[bytes]) -> Iterator[list[bytes]]:
    return (contents[first : first + BATCH] for first in range(0, len(contents), BATCH))
