"""The kinds of data: how many samples, of which size, and how a batch of them is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH = 64
CROP = 224
TOKENS = 2048
PAGE = 4096
SHARD_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of data set and what is done with its samples."""

    name: str
    about: str
    extension: str
    samples: int
    """By default; a multiple of the batch size, so that a whole epoch is whole batches."""
    files: str
    """Which files it is made of: kinds that share them share the packed data too."""
    form: str
    """What a batch is: "raw" byte strings, "tokens" or "images" in one tensor."""
    shard_bytes: int = SHARD_BYTES
    short: str = ""
    """What it is called in the picture."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "jpeg70k",
            "photo-like JPEG, 500x375, about 70 KB, as bytes",
            "jpg",
            8192,
            "jpeg70k",
            "raw",
            short="photos of 70 KB, bytes",
        ),
        Kind(
            "png2k", "small PNG, about 2.5 KB, as bytes", "png", 49_152, "png2k", "raw", short="PNGs of 2.5 KB, bytes"
        ),
        Kind(
            "tokens",
            "rows of 2,048 uint16 tokens (4 KiB), as one tensor [64, 2048]",
            "bin",
            32_768,
            "tokens",
            "tokens",
            short="rows of 2,048 tokens",
        ),
        Kind(
            "train",
            "JPEG to a random 224 crop, flipped at random: [64, 3, 224, 224]",
            "jpg",
            8192,
            "jpeg70k",
            "images",
            short="photos to random crops",
        ),
    )
}


_OBJECTS_SHARD_BYTES = int(os.environ.get("OBJECTS_SHARD_BYTES", 64 * 2**20))
OBJECTS = Kind("objects", "70,000 random bytes", "bin", 16_384, "objects", "raw", shard_bytes=_OBJECTS_SHARD_BYTES)
"""What is read from afar, in shards of the size that most systems choose by themselves."""

ALL_KINDS = {**KINDS, OBJECTS.name: OBJECTS}


@dataclass(slots=True)
class Tally:
    """What a consumer saw. Every system's epoch must end with the same tally, or it lost or repeated something."""

    samples: int = 0
    size: int = 0
    checksum: int = 0

    def add(self, form: str, batch: Any) -> None:
        """Touch every sample of a batch."""
        if form == "raw":
            self._raw(batch)
        elif form == "tokens":
            self._rows(batch.numpy() if hasattr(batch, "numpy") else batch)
        else:
            self.samples += len(batch)
            # Random crops have no checksum; the sum reads one value of every row of every image.
            if not np.isfinite(float(batch.numpy()[..., 0].sum(dtype=np.float64))):
                raise ValueError("an image holds values that are no numbers")

    def _raw(self, batch: Iterable[Any]) -> None:
        offsets = getattr(batch, "offsets", None)
        if offsets is not None:
            self._column(batch.data.numpy(), offsets.numpy())  # type: ignore[attr-defined]
            return
        for sample in batch:
            size = len(sample)
            self.samples += 1
            self.size += size
            if size > PAGE:
                self.checksum += int(np.frombuffer(sample, np.uint8)[::PAGE].sum())
            elif size:  # numpy would cost more than many a loader
                self.checksum += sample[0]

    def _column(self, data: np.ndarray, offsets: np.ndarray) -> None:
        sizes = np.diff(offsets)
        if len(sizes) and sizes.min() > 0 and sizes.max() <= PAGE:
            self.samples += len(sizes)
            self.size += len(data)
            self.checksum += int(data[offsets[:-1]].sum(dtype=np.int64))
            return
        pages = -(-sizes // PAGE)
        first = np.repeat(offsets[:-1] - PAGE * (np.cumsum(pages) - pages), pages)
        self.samples += len(sizes)
        self.size += int(sizes.sum())
        self.checksum += int(data[first + PAGE * np.arange(len(first))].sum(dtype=np.int64))

    def _rows(self, rows: np.ndarray) -> None:
        if rows.ndim != 2 or rows.shape[1] != TOKENS:
            raise ValueError(f"a batch of token rows has the shape {rows.shape}, not [n, {TOKENS}]")
        self.samples += len(rows)
        self.size += 2 * rows.size
        # The first byte of each row, as a little-endian file has it.
        self.checksum += int((rows[:, 0].astype(np.int64) & 255).sum())

    def check(self, expected: Tally, form: str) -> None:
        """Raise ``ValueError`` where an epoch was not the whole data set."""
        same = self == expected if form != "images" else self.samples == expected.samples
        if not same:
            raise ValueError(f"the epoch was {self}, the data are {expected}")
