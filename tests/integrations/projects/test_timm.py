"""The page of timm: a data set as the reader of its `IterableImageDataset`, behind its `create_loader`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import wdsdist
from tests.integrations.projects.conftest import Adapter

TOTAL = 119
SHORT = {
    ", 256": ", 8", "batch_size=256": "batch_size=8", "num_workers=8": "num_workers=2, device=torch.device('cpu')",
    "import wdsdist\n": "import torch\nimport wdsdist\n",
}  # fmt: skip


class Images(IterableDataset[Any]):
    """What timm's documentation says of `IterableImageDataset`, where timm is missing."""

    def __init__(self, root: str, reader: Any) -> None:
        self.reader = reader
        self.transform: Any = None

    def __iter__(self) -> Any:
        for image, target in self.reader:
            yield self.transform(image), target

    def __len__(self) -> int:
        return len(self.reader)

    def set_epoch(self, epoch: int) -> None:
        self.reader.set_epoch(epoch)


def create_loader(
    dataset: Images, size: int, batch_size: int, *, is_training: bool, num_workers: int, device: torch.device
) -> Any:
    """Return what timm's does of an iterable data set: a torch loader that drops a short last batch in training."""
    return DataLoader(dataset, batch_size, num_workers=num_workers, drop_last=is_training, persistent_workers=True)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("timm.data")
    stand_in.__dict__.update(IterableImageDataset=Images, create_loader=create_loader)
    monkeypatch.setitem(sys.modules, "timm", ModuleType("timm"))
    monkeypatch.setitem(sys.modules, "timm.data", stand_in)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "imagenet" / "train"
    samples = ({"png": np.zeros((4, 4, 3), np.uint8), "cls": number} for number in range(TOTAL))
    wdsdist.pack(samples, folder, shard_samples=15)
    return folder.parents[1]


def channels_first(image: Any) -> np.ndarray:
    return np.array(image).transpose(2, 0, 1)


def epoch_of(loader: Any, epoch: int) -> list[int]:
    """Return the classes of an epoch, as timm's training plays it."""
    loader.dataset.set_epoch(epoch)
    loader.dataset.transform = channels_first  # in place of timm's, which torchvision would make
    batches = [targets.tolist() for _, targets in loader]
    assert len(batches) == len(loader)
    return [number for batch in batches for number in batch]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("is_training", [True, False])
def test_each_image_comes_once_over_ranks_and_workers_and_epochs_restart(
    adapter: Adapter, images: Path, on_rank: Callable[..., None], monkeypatch: pytest.MonkeyPatch, is_training: bool
) -> None:
    monkeypatch.chdir(images)
    evaluation = (
        {} if is_training else {"is_training=True": "is_training=False", "batch_size=8": "batch_size=8, shuffle=False"}
    )
    found: list[list[int]] = []
    for rank in range(2):
        on_rank(rank, 2)
        loader = adapter("timm", SHORT | evaluation)["loader"]
        second = [epoch_of(loader, epoch) for epoch in range(2)][1]
        assert epoch_of(adapter("timm", SHORT | evaluation)["loader"], 1) == second
        found.append(second)
    times = Counter(found[0] + found[1])
    assert len(found[0]) == len(found[1])
    if is_training:
        assert len(times) == times.total() == TOTAL - TOTAL % 16
    else:
        assert set(times) == set(range(TOTAL))
        assert times.total() == TOTAL + 1  # one comes twice, so that ranks are even


def test_a_loop_of_ones_own_resumes_after_any_batch(
    adapter: Adapter, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images)
    short = {"Crop(224)": "Crop(8)", ", 256": ", 8", "num_workers=8": "num_workers=0", '"cuda"': '"cpu"'}
    first = short | {"state = loader.state_dict()": "break"}
    found = adapter("timm", first, block=1, wdsdist=wdsdist, itemgetter=itemgetter)
    assert (found["images"].shape, found["images"].dtype) == ((8, 3, 8, 8), torch.uint8)
    again = adapter("timm", short, block=1, wdsdist=wdsdist, itemgetter=itemgetter)["loader"]
    again.load_state_dict(found["loader"].state_dict())
    rest = [number for _, classes in again for number in classes.tolist()]
    assert len({*rest, *found["classes"].tolist()}) == len(rest) + 8 == TOTAL - TOTAL % 8
