"""The peers' training path, as their documentation has it: Pillow and torchvision."""

from __future__ import annotations

import functools
import importlib.util
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from peers.kinds import CROP

_held: list[torch.library.Library] = []


def allow_torchvision() -> None:
    """Let torchvision's Python part be imported beside a torch that its compiled part was not built for.

    There is no build of it for the CPU in every registry. Its transforms on Pillow images are Python; what is missing
    is the declaration of two operators that no transform uses.
    """
    found = importlib.util.find_spec("torchvision")
    if _held or found is None or found.origin is None or torch.version.cuda is not None:
        return
    # Found out without importing it: a failed import cannot be repeated.
    if any(b"libcudart" in part.read_bytes() for part in Path(found.origin).parent.glob("_C*.so")):
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _held.append(library)


@functools.cache
def _transform() -> Callable[[Any], torch.Tensor]:
    allow_torchvision()
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(CROP), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return transforms.Compose(steps)


def load() -> None:
    """Import what decoding needs."""
    from PIL import Image  # noqa: F401

    _transform()


def train_image(data: bytes) -> torch.Tensor:
    """Decode a JPEG and crop it at random: uint8 [3, 224, 224], as ours; floats would be four times the bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return _transform()(image.convert("RGB"))
