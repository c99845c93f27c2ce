"""The page of OpenFlamingo: two loaders of equal length, by what its training loop asks of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist
from tests.integrations.projects.conftest import Adapter


def preprocess_image(images: list[Any], processor: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    return torch.stack([processor(image) for image in images])


def preprocess_laion_text(texts: list[str], tokenizer: Callable[[str], int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([[tokenizer(text)] for text in texts])
    return ids, torch.ones_like(ids)


def preprocess_interleaved(
    sample: tuple[bytes], tokenizer: Any, processor: Any, sim_threshold: float, min_num_images: int, max_num_images: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    info = json.loads(sample[0])
    if info["images"] < min_num_images:
        raise ValueError(f"Fewer than {min_num_images} images in sample")
    ids = torch.tensor([[info["number"]]])
    return torch.zeros(max_num_images, 3, 2, 2), (ids, torch.ones_like(ids))


@pytest.fixture
def make(
    adapter: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_rank: Callable[[int, int], None]
) -> Callable[..., list[Any]]:
    """The two loaders of a rank, of 50 pairs and 31 documents, of which every fifth has too few images."""
    data = ModuleType("data")  # as OpenFlamingo's training imports its neighbour
    data.__dict__.update(
        preprocess_image=preprocess_image,
        preprocess_laion_text=preprocess_laion_text,
        preprocess_interleaved=preprocess_interleaved,
    )
    monkeypatch.setitem(sys.modules, "data", data)
    pairs = ({"png": np.zeros((2, 2, 3), np.uint8), "txt": str(number)} for number in range(50))
    wdsdist.pack(pairs, tmp_path / "laion", shard_samples=7)
    documents = ({"json": {"number": number, "images": 0 if number % 5 == 4 else 3}} for number in range(31))
    wdsdist.pack(documents, tmp_path / "mmc4", shard_samples=10)
    get_data = adapter("OpenFlamingo")["get_data"]

    def made(rank: int, world: int) -> list[Any]:
        on_rank(rank, world)
        args = SimpleNamespace(
            laion_shards=str(tmp_path / "laion"), mmc4_shards=str(tmp_path / "mmc4"), batch_size_laion=4,
            batch_size_mmc4=3, train_num_samples_laion=1000, train_num_samples_mmc4=25, world_size=world, workers=0,
            seed=0, mmc4_textsim_threshold=0.3, mmc4_min_num_images=1, mmc4_max_num_images=5,
        )  # fmt: skip
        kinds = ("image_text", "mmc4")
        return [get_data(args, lambda image: torch.from_numpy(np.array(image)), int, kind) for kind in kinds]

    return made


def played(laion: Any, mmc4: Any) -> list[tuple[list[int], list[int]]]:
    """Return the numbers in each step, as the training loop takes them apart."""
    found = []
    for (images, (ids, mask)), (stacked, texts) in zip(laion.dataloader, mmc4.dataloader, strict=True):
        assert images.shape == (4, 2, 2, 3)
        assert ids.shape == mask.shape == (4, 1)
        assert stacked.shape == (3, 5, 3, 2, 2)
        documents = torch.stack([text[0] for text in texts]).squeeze(1)
        found.append((ids.flatten().tolist(), documents.flatten().tolist()))
    return found


@pytest.mark.parametrize(("world", "steps"), [(1, 8), (3, 2)])
def test_both_loaders_have_as_many_batches_on_every_rank(
    make: Callable[..., list[Any]], world: int, steps: int
) -> None:
    numbers: Counter[int] = Counter()
    for rank in range(world):
        laion, mmc4 = make(rank, world)
        assert laion.dataloader.num_batches == mmc4.dataloader.num_batches == steps
        for epoch in range(2):
            laion.set_epoch(epoch)
            mmc4.set_epoch(epoch)
            found = played(laion, mmc4)
            assert len(found) == steps
            numbers.update(number for pairs, _ in found for number in pairs)
            assert not [number for _, documents in found for number in documents if number % 5 == 4]
    seen = 2 * steps * 4 * world
    assert set(numbers.values()) <= {seen // 50, seen // 50 + 1}, "each pair comes before any comes again"
