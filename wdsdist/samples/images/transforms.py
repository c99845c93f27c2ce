"""The two transforms that take most time of an image training: random and central crops, from JPEG to tensor.

They also take pixels in a ``.npy`` member, as ``pack(store="raw")`` writes them, and read the crop alone.

They decode only as many pixels as the crop needs, and give uint8 tensors [3, height, width] whose memory is channels
last, so that stacking them is one copy and the accelerator does the arithmetic:
``images.to(device).float().div(255)`` there is cheaper than four times the bytes through every queue before it.
"""

from __future__ import annotations

import math
import random
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from wdsdist._util.validation import as_number, check_integer
from wdsdist.errors import ArgumentError
from wdsdist.samples.images.header import check_max_pixels, check_size
from wdsdist.samples.images.resize import Source, antialiased, resize, scaled
from wdsdist.samples.marks import seeded

__all__ = ["RandomResizedCrop", "ResizeCenterCrop", "seeded"]

if TYPE_CHECKING:
    import torch

_ATTEMPTS = 10


class Crop(NamedTuple):
    """A part of an image, in pixels of the full image."""

    left: int
    top: int
    width: int
    height: int
    flip: bool
    """Whether left and right are exchanged."""


@seeded
@dataclass(eq=False)
class RandomResizedCrop:
    """Crop a random part of an image and resize it, the usual augmentation for image classification.

    ``size`` is the side or (height, width) of the result in pixels. The share of the area is uniform in ``scale``, and
    the logarithm of the ratio of width to height is uniform in ``ratio``. If ten random parts do not fit, the crop is
    the largest central part with a valid ratio. It is mirrored with probability ``flip``. An encoded image of more than
    ``max_pixels``, by default 89,478,485, is an error, raised before decoding.

    Called with (data, seed), where data is an encoded image (bytes), a ``.npy`` file (bytes) of a uint8 array [height,
    width, 3], such an array or a uint8 tensor [3, height, width], it returns a uint8 tensor [3, height, width] with
    channels last in memory. The same data and seed give the same part anywhere. JPEGs are decoded at the smallest
    sufficient scale, and the part is rounded to its pixels. If OpenCV is installed and the part is at most twice the
    size of the result, OpenCV's bilinear filter resizes it; otherwise torch's antialiased filter does, which equals
    Pillow's except for rounding, and is slower.

    Raises `ArgumentError` for arguments that cannot work; when called, `SampleError` for bytes that
    are no image, or a damaged one.

    >>> import numpy as np
    >>> crop = RandomResizedCrop(224, scale=(0.25, 1.0))
    >>> crop(np.zeros((375, 500, 3), np.uint8), seed=7).shape
    torch.Size([3, 224, 224])

    The algorithm is torchvision's ``RandomResizedCrop``, followed by its ``RandomHorizontalFlip``.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    max_pixels: int | None = None
    reads_views: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._height, self._width = check_image_size(self.size)
        self.scale = _check_range("scale", self.scale, 1.0)
        self.ratio = _check_range("ratio", self.ratio, math.inf)
        self._log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        flip = as_number(self.flip)
        if flip is None or not 0 <= flip <= 1:
            raise ArgumentError(
                f"flip is {self.flip!r}: it must be a number between 0 and 1, the chance to mirror", argument="flip"
            )
        self._max_pixels = check_max_pixels(self.max_pixels)

    def choose(self, width: int, height: int, seed: int) -> Crop:
        """Return the part that ``seed`` chooses from an image of the given size.

        >>> RandomResizedCrop(224).choose(500, 375, seed=7) == RandomResizedCrop(64).choose(500, 375, seed=7)
        True
        """
        # Python's own generator: its algorithm is fixed, and it is twice as fast to seed as numpy's fastest.
        draw = random.Random(seed).random
        flip = draw() < self.flip
        low, high = self.scale
        log_low, log_high = self._log_ratio
        for _ in range(_ATTEMPTS):
            area = width * height * (low + (high - low) * draw())
            ratio = math.exp(log_low + (log_high - log_low) * draw())
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return Crop(int(draw() * (width - w + 1)), int(draw() * (height - h + 1)), w, h, flip)
        w = min(width, max(1, round(height * self.ratio[1])))
        h = min(height, max(1, round(width / self.ratio[0])))
        return Crop((width - w) // 2, (height - h) // 2, w, h, flip)

    def __call__(self, data: Any, seed: int) -> torch.Tensor:
        seed = check_integer("seed", seed, 0, 2**63 - 1)  # None would be a different part each time
        source = Source(data, self._max_pixels)
        crop = self.choose(source.width, source.height, seed)
        pixels, scale = source.decode(
            -(-source.width * self._width // crop.width), -(-source.height * self._height // crop.height)
        )
        left, right = scaled(crop.left, crop.width, scale, pixels.shape[1])
        top, bottom = scaled(crop.top, crop.height, scale, pixels.shape[0])
        part = pixels[top:bottom, left:right]
        return resize(part, self._width, self._height, flip=crop.flip)


@dataclass(eq=False)
class ResizeCenterCrop:
    """Resize an image and crop its centre, as for evaluation.

    The shorter side becomes ``resize`` pixels (256 for a ``size`` of 224, in proportion for other sizes), and the
    central part of ``size``, a side or (height, width), is kept. An image of more than ``max_pixels``, by default
    89,478,485, before or after it is resized, is an error, raised before decoding. Called with an encoded image, a
    ``.npy`` file of a uint8 array [height, width, 3], such an array or a uint8 tensor [3, height, width], it returns a
    uint8 tensor [3, height, width] with channels last in memory.

    Geometry and filter equal torchvision's ``Resize`` and ``CenterCrop`` on Pillow images, so that models keep their
    published accuracy; but a JPEG is decoded at the smallest sufficient scale.

    Raises `ArgumentError` for arguments that cannot work; when called, `SampleError` for bytes that
    are no image, or a damaged one.

    >>> import numpy as np
    >>> ResizeCenterCrop((64, 96), resize=100)(np.zeros((375, 500, 3), np.uint8)).shape
    torch.Size([3, 64, 96])
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    resize: int | None = None
    max_pixels: int | None = None
    reads_views: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._height, self._width = check_image_size(self.size)
        self._max_pixels = check_max_pixels(self.max_pixels)
        longest = max(self._height, self._width)
        self._resize = round(longest * 256 / 224) if self.resize is None else check_integer("resize", self.resize, 1)
        if self._resize < longest:
            raise ArgumentError(
                f"resize is {self._resize:,}, less than the crop's {longest:,}: a crop must fit into the resized image",
                argument="resize",
            )

    def __call__(self, data: Any) -> torch.Tensor:
        source = Source(data, self._max_pixels)
        short, long = sorted((source.width, source.height))
        longer = int(self._resize * long / short)
        width, height = (self._resize, longer) if source.width == short else (longer, self._resize)
        check_size(width, height, self._max_pixels)  # which a very elongated image exceeds
        pixels, scale = source.decode(width, height)
        # The factor is the full image's, for the last pixel of a scaled one may be incomplete; slightly more, so that
        # a product such as 500 * (341 / 500) does not round down.
        factor = (1 + 1e-9) * scale
        resized = antialiased(pixels, scale_factor=(factor * height / source.height, factor * width / source.width))
        left, top = round((width - self._width) / 2), round((height - self._height) / 2)
        return resized[top : top + self._height, left : left + self._width].contiguous().permute(2, 0, 1)


def check_image_size(size: object) -> tuple[int, int]:
    """Return ``size=``, a side or (height, width), as (height, width). Raises `ArgumentError` for less than 1."""
    if isinstance(size, (tuple, list)) and len(size) == 2:
        return check_integer("height in size", size[0], 1), check_integer("width in size", size[1], 1)
    side = check_integer("size", size, 1)
    return side, side


def _check_range(name: str, limits: object, most: float) -> tuple[float, float]:
    numbers = limits if isinstance(limits, (tuple, list)) else ()
    if len(numbers) != 2 or None in map(as_number, numbers):
        raise ArgumentError(f"{name} is {limits!r}: it must be two numbers, the least and the most", argument=name)
    low, high = numbers
    if not 0 < low <= high <= most or math.isinf(high):
        limit = f" and at most {most:g}" if most < math.inf else ""
        raise ArgumentError(f"{name} is {limits!r}: both must be above 0{limit}, the lower one first", argument=name)
    return float(low), float(high)
