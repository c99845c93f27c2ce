"""Images that behave like photographs, made by code: detail at every scale, soft and hard edges, correlated colours."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from wdsdist.samples.images.decode import EncodedImage

Pixels = npt.NDArray[np.uint8]


def photo(height: int, width: int, *, seed: int = 0) -> Pixels:
    """Return an image of noise in octaves, each weaker than the coarser one before, with filled ellipses on it."""
    rng = np.random.default_rng(seed)
    canvas = np.zeros((height, width, 3), np.float32)
    strength, cells = 1.0, 2
    while cells <= max(height, width):
        rows, columns = max(2, cells * height // max(height, width)), max(2, cells * width // max(height, width))
        light = rng.normal(0, 0.9, (rows, columns, 1)) + rng.normal(0, 0.35, (rows, columns, 3))
        for channel in range(3):
            plane = Image.fromarray(light[..., channel].astype(np.float32))
            canvas[..., channel] += strength * np.asarray(plane.resize((width, height), Image.Resampling.BICUBIC))
        strength, cells = strength * 0.85, cells * 2
    y, x = np.mgrid[:height, :width]
    for _ in range(14):
        at = rng.uniform(0, (width, height))
        radius = rng.uniform(0.02, 0.2) * max(height, width)
        inside = (x - at[0]) ** 2 + rng.uniform(0.5, 2) * (y - at[1]) ** 2 < radius**2
        canvas[inside] = canvas[inside] * 0.5 + rng.normal(0, 1.2, 3)
    return np.clip((canvas - canvas.mean()) / canvas.std() * 55 + 118, 0, 255).astype(np.uint8)


def encode(pixels: Pixels, *, format: str = "jpeg", mode: str | None = None, **options: Any) -> bytes:  # noqa: A002 - Pillow's own name
    """Return an image as the bytes of a file."""
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, format, **options)
    return buffer.getvalue()


def decode_rgb(data: bytes | memoryview, **sizes: int) -> Pixels:
    """Return the pixels of an encoded image, as all transforms decode it."""
    return EncodedImage(data).decode(**sizes)[0]


def image_size(data: bytes | memoryview) -> tuple[int, int]:
    """Return (width, height) of an encoded image by its header."""
    return EncodedImage(data).size


def psnr(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Return the peak signal-to-noise ratio of two 8-bit images in decibels; infinite where they are equal."""
    error = float(np.mean((np.asarray(one, np.float64) - np.asarray(other, np.float64)) ** 2))
    return 10 * float(np.log10(255**2 / error)) if error else float("inf")


def exif(turn: int) -> Image.Exif:
    """Return EXIF metadata of a camera with an orientation tag, 1 to 8."""
    found = Image.Exif()
    found[0x010F] = "maker"
    found[0x0112] = turn
    return found
