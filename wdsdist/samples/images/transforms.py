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

import numpy as np

from wdsdist._util.npy_header import NPY_MAGIC, npy_header
from wdsdist._util.validation import as_number, check_integer, check_number
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.images.decode import MAX_PIXELS, EncodedImage, Pixels, check_max_pixels, check_size, opencv
from wdsdist.samples.marks import seeded

if TYPE_CHECKING:
    import torch

_ATTEMPTS = 10
_LARGEST_LINEAR_STEP = 2.0
"""Source pixels to a pixel, up to which plain bilinear interpolation is taken: up to there every source pixel has a
weight. Photo-like images then differ from antialiased ones by 42 dB or more; beyond, pixels would be skipped."""


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
    are not an image, or a damaged one.

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
        check_number("flip", self.flip, 0, 1)
        self._max_pixels = check_max_pixels(self.max_pixels)

    def choose(self, width: int, height: int, seed: int) -> Crop:
        """Return the part that ``seed`` chooses from an image of the given size."""
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
        image = image_of(data, self._max_pixels)
        width, height = image.size
        crop = self.choose(width, height, seed)
        pixels, scale = image.decode(-(-width * self._width // crop.width), -(-height * self._height // crop.height))
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
    are not an image, or a damaged one.

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
        image = image_of(data, self._max_pixels)
        size = image.size
        short, long = sorted(size)
        longer = int(self._resize * long / short)
        width, height = (self._resize, longer) if size[0] == short else (longer, self._resize)
        check_size(width, height, self._max_pixels)  # which a very elongated image exceeds
        pixels, scale = image.decode(width, height)
        # The factor is the full image's, for the last pixel of a scaled one may be incomplete; slightly more, so that
        # a product such as 500 * (341 / 500) does not round down.
        factor = (1 + 1e-9) * scale
        resized = antialiased(pixels, scale_factor=(factor * height / size[1], factor * width / size[0]))
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


class Stored(NamedTuple):
    """An image that needs no decoding, as an `EncodedImage` is asked: for its size and its pixels."""

    pixels: Pixels

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    def decode(self, min_width: int = 0, min_height: int = 0) -> tuple[Pixels, int]:
        """Return the pixels, at full size."""
        return self.pixels, 1


def image_of(data: Any, max_pixels: int = MAX_PIXELS) -> EncodedImage | Stored:
    """Return the image in bytes, an array or a tensor. Pixels in a ``.npy`` file are not copied.

    Raises `ArgumentError` for data that holds no image, and `SampleError` for encoded data that cannot be read.
    """
    if not isinstance(data, (bytes, memoryview)):
        return Stored(_pixels_of(data))
    return Stored(_within_npy(data, max_pixels)) if data[:6] == NPY_MAGIC else EncodedImage(data, max_pixels)


def _within_npy(data: bytes | memoryview, max_pixels: int) -> Pixels:
    """Return the pixels in a ``.npy`` file, as a view of it."""
    start, layout = npy_header(data)
    if layout is None or layout.num_bytes != len(data) - start:
        raise SampleError(f"a .npy file of {len(data):,} bytes has another length than its header says")
    shape = layout.shape
    if layout.dtype != np.uint8 or layout.is_fortran or shape[2:] != (3,) or not layout.num_bytes:
        raise SampleError(f"a .npy file holds {layout.dtype} {list(shape)}: an image is uint8 [height, width, 3]")
    check_size(shape[1], shape[0], max_pixels)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _pixels_of(data: Any) -> Pixels:
    import torch

    pixels = data
    if isinstance(data, torch.Tensor) and data.ndim == 3 and data.device.type == "cpu":
        pixels = data.permute(1, 2, 0).numpy()
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[2:] != (3,) or not pixels.size:
        kind = f"{data.dtype} {list(data.shape)}" if isinstance(data, (np.ndarray, torch.Tensor)) else repr(type(data))
        raise ArgumentError(
            f"the image is {kind}: a transform takes bytes, a uint8 array [height, width, 3] or "
            f"a uint8 tensor [3, height, width] in the CPU's memory"
        )
    return pixels


def scaled(start: int, length: int, scale: int, limit: int) -> tuple[int, int]:
    """Return start and end of a range of the full image among ``limit`` scaled pixels; never an empty one.

    >>> scaled(5, 91, 4, 50), scaled(399, 1, 8, 50)
    ((1, 24), (49, 50))
    """
    first = min(round(start / scale), limit - 1)
    return first, min(max(round((start + length) / scale), first + 1), limit)


def resize(pixels: Pixels, width: int, height: int, *, flip: bool = False) -> torch.Tensor:
    """Return pixels [height, width, 3] at another size, mirrored if asked for: [3, height, width], channels last.

    >>> resized = resize(np.full((9, 7, 3), 5, np.uint8), 2, 4)
    >>> resized.shape, resized.unique()
    (torch.Size([3, 4, 2]), tensor([5], dtype=torch.uint8))
    """
    import torch

    cv2 = opencv()
    if cv2 is None or max(pixels.shape[1] / width, pixels.shape[0] / height) > _LARGEST_LINEAR_STEP:
        result = antialiased(pixels, size=(height, width))
        return (result.flip(1) if flip else result).permute(2, 0, 1)
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    # Numpy exchanges the dimensions: torch takes many times as long to.
    return torch.from_numpy((cv2.flip(resized, 1) if flip else resized).transpose(2, 0, 1))


def antialiased(pixels: Pixels, **how: Any) -> torch.Tensor:
    """Return pixels [height, width, 3] at another size, averaged over all source pixels that a pixel covers.

    ``how`` is ``size=(height, width)`` or ``scale_factor=(height's, width's)``, as torch takes them.
    """
    # torch has Pillow's filter in vector code: four times as fast as Pillow, and faster than OpenCV's INTER_AREA.
    import torch

    # `reshape`, and no None as an index: the stride it gives the batch of one lets torch see that channels are last.
    # Otherwise it takes a slower way and puts them first.
    own = np.require(pixels, requirements=("C", "W"))  # torch warns of arrays that cannot be written to
    batch = torch.from_numpy(own.reshape(1, *own.shape)).permute(0, 3, 1, 2)
    return torch.nn.functional.interpolate(batch, mode="bilinear", antialias=True, **how)[0].permute(1, 2, 0)
