"""Pack a Python data set once per node, then load it in training.

Run it alone or under torchrun; only one process packs:

    torchrun --standalone --nproc-per-node 2 examples/pack_python_dataset.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import wdsdist


class Digits(torch.utils.data.Dataset):
    """A stand-in for any data set with random access, such as one of torchvision."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((28, 28), index % 256, dtype=torch.uint8), index % 10


def encode(item: tuple[torch.Tensor, int]) -> dict[str, object]:
    """Name the members of a sample; their extensions set how they are stored."""
    image, label = item
    return {"npy": image.numpy(), "cls": label}


@wdsdist.data_download
def prepare(folder: Path) -> Path:
    wdsdist.pack(Digits(), folder, encode=encode, shard_samples=100)
    return folder


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "digits-shards").absolute()
    dataset = wdsdist.StreamingDataset(prepare(folder), decode=True)
    loader = wdsdist.StreamingDataLoader(dataset, batch_size=50, num_workers=2)
    for batch in loader:
        images, labels = batch["npy"], batch["cls"]  # uint8 [50, 28, 28], int64 [50]
    print(f"{len(loader)} batches of {len(labels)}, the last one {tuple(images.shape)}; {dataset.num_samples} samples")


if __name__ == "__main__":
    main()
