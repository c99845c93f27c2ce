"""From the bytes of a JPEG to the random crop that a network is trained on: images a second on one core.

Three ways take the same 64 images through the same crops, in turn, so that a busy machine slows all of them:

- *Pillow and torchvision*: what ``torchvision.transforms`` does to Pillow images, step by step: decode at full size,
  crop, ``resize`` with the bilinear filter, flip, a tensor of bytes, its channels put first, divided by 255;
- *a bare loop*: decode with simplejpeg, at half size where that suffices, cut, ``cv2.resize``, ``cv2.flip``, with the
  crops drawn beforehand and no checks;
- *wdsdist*: ``RandomResizedCrop``, which draws its crop and checks what it reads.

The images are made by code: 500 x 375 pixels, photo-like, of some 70 KB each; the crops are those of 224 pixels with
torchvision's defaults.

    taskset -c 0 python tools/bench/bench_decode.py [--repeat 7] [--json FILE]

Results, medians with (minimum-maximum) of 9 runs in turn on one core of a 4-core AMD EPYC, Python 3.11, Pillow 13.0.0,
simplejpeg 1.9.0, OpenCV 5.0.0, torch 2.13.0, 2026-11-21:

    64 images of 75 KB; images a second:
    Pillow and torchvision                      535   (531-538)
    a bare loop                                1171   (1094-1179)
    wdsdist                                    1130   (1098-1133)
    wdsdist / a bare loop                      0.96   (0.96-1.00)
    wdsdist / Pillow and torchvision           2.11   (2.05-2.12)

Of six such measurements the median against Pillow lay between 1.96 and 2.14, Pillow's own rate varying most. Five
sixths of the last two ways are simplejpeg's decoding, so there is little left to gain around it. Against the bare loop,
the transform pays for drawing its crop (6 us), reading the header, and antialiasing crops over twice the result's size.
What the benchmark leaves out: uint8 tensors are a quarter of the bytes that go to the main process.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image

from wdsdist.samples.images.transforms import Crop, RandomResizedCrop

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.photos import encode, photo

WIDTH, HEIGHT, SIZE = 500, 375, 224
TRANSFORM = RandomResizedCrop(SIZE)


def pillow_and_torchvision(data: bytes, seed: int, crop: Crop) -> torch.Tensor:
    """Do what torchvision's transforms do with a Pillow image."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image = image.crop((crop.left, crop.top, crop.left + crop.width, crop.top + crop.height))
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if crop.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    tensor = torch.from_numpy(np.array(image, np.uint8, copy=True)).view(SIZE, SIZE, 3)
    return tensor.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def bare_loop(data: bytes, seed: int, crop: Crop) -> torch.Tensor:
    """Call the two fast packages, and nothing else."""
    scale = 2 if min(crop.width, crop.height) >= 2 * SIZE else 1
    pixels = simplejpeg.decode_jpeg(data, min_height=-(-HEIGHT // scale), min_width=-(-WIDTH // scale))
    left, top = crop.left // scale, crop.top // scale
    part = pixels[top : top + crop.height // scale, left : left + crop.width // scale]
    result = cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    if crop.flip:
        result = cv2.flip(result, 1)
    return torch.from_numpy(result).permute(2, 0, 1)


def wdsdist(data: bytes, seed: int, crop: Crop) -> torch.Tensor:
    """Call the transform; it draws the crop itself."""
    return TRANSFORM(data, seed)


WAYS: dict[str, Callable[[bytes, int, Crop], torch.Tensor]] = {
    "Pillow and torchvision": pillow_and_torchvision,
    "a bare loop": bare_loop,
    "wdsdist": wdsdist,
}


def rates(images: list[bytes], repeat: int, passes: int) -> dict[str, list[float]]:
    """Return images a second of each way, one figure for each repetition."""
    crops = [TRANSFORM.choose(WIDTH, HEIGHT, seed) for seed in range(len(images) * passes)]
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(repeat + 1):
        for name, way in WAYS.items():
            started = time.perf_counter()
            for seed, crop in enumerate(crops):
                way(images[seed % len(images)], seed, crop)
            found[name].append(len(crops) / (time.perf_counter() - started))
    return {name: values[1:] for name, values in found.items()}  # the first run loads code and fills caches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each, in turn")
    parser.add_argument("--passes", type=int, default=8, help="times that each image is taken in a run")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    images = [encode(photo(HEIGHT, WIDTH, seed=seed), quality=94) for seed in range(64)]
    found = rates(images, options.repeat, options.passes)
    print(f"    {len(images)} images of {statistics.mean(map(len, images)) / 1000:.0f} KB; images a second:")
    for name, values in found.items():
        print(f"    {name:<38} {statistics.median(values):8.0f}   ({min(values):.0f}-{max(values):.0f})")
    for name in ("a bare loop", "Pillow and torchvision"):
        ratios = [ours / other for ours, other in zip(found["wdsdist"], found[name], strict=True)]
        line = f"wdsdist / {name}"
        print(f"    {line:<38} {statistics.median(ratios):8.2f}   ({min(ratios):.2f}-{max(ratios):.2f})")
    if options.json:
        every: dict[str, Any] = {"runs": found, "bytes": list(map(len, images))}
        options.json.write_text(json.dumps(every, indent=1))


if __name__ == "__main__":
    main()
