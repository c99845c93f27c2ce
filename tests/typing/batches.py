"""Batches have the type that ``collate_fn`` returns; without one, they are dicts of columns."""

from __future__ import annotations

from typing import Any, assert_type

import torch

import wdsdist
from wdsdist.transforms import seeded


def stacked(samples: list[Any]) -> torch.Tensor:
    return torch.stack([sample["npy"] for sample in samples])


def train(dataset: wdsdist.StreamingDataset) -> None:
    for batch in wdsdist.StreamingDataLoader(dataset, batch_size=8):
        assert_type(batch, dict[str, Any])
    for images in wdsdist.StreamingDataLoader(dataset, collate_fn=stacked):
        assert_type(images, torch.Tensor)
    for images in wdsdist.to_device(wdsdist.StreamingDataLoader(dataset, collate_fn=stacked), "cuda"):
        assert_type(images, torch.Tensor)


def evaluate(loader: wdsdist.StreamingDataLoader) -> None:
    for batch in loader:
        assert_type(wdsdist.unpadded(batch), dict[str, Any])


class Training:
    loader: wdsdist.StreamingDataLoader[torch.Tensor]

    def step(self) -> torch.Tensor:
        return next(iter(self.loader))


@seeded
def noise(data: bytes, seed: int) -> int:
    return len(data) + seed


def served() -> None:
    assert_type(noise(b"", 1), int)  # the mark keeps the type
