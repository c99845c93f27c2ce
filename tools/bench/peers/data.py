"""The data: real content, made once from a seed, in parallel, and found again by the next run."""

from __future__ import annotations

import io
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from peers.kinds import PAGE, TOKENS, Kind, Tally

_CHUNK = 1024


def sample(files: str, number: int, seed: int = 0) -> bytes:
    """Return the content of one sample; the same for the same number and seed."""
    random = np.random.default_rng((seed, number))
    return {"jpeg70k": _photo, "png2k": _icon, "tokens": _tokens, "objects": _object}[files](random)


def make(kind: Kind, folder: Path, samples: int, seed: int = 0) -> tuple[Path, Tally]:
    """Return the folder with the files of a kind, and what a whole epoch of them adds up to; make them if needed."""
    root = folder / f"{kind.files}-{samples}"
    note = root / "tally.json"
    if not note.exists():
        jobs = [
            (kind.files, kind.extension, root, n, min(n + _CHUNK, samples), seed) for n in range(0, samples, _CHUNK)
        ]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(_write, jobs))
        whole = Tally(*(sum(column) for column in zip(*parts, strict=True)))
        fresh = note.with_suffix(".new")
        fresh.write_text(json.dumps([whole.samples, whole.size, whole.checksum]))
        fresh.rename(note)
    return root / "files", Tally(*json.loads(note.read_text()))


def paths(files: Path) -> list[str]:
    """Return the files in order."""
    return sorted(str(path) for path in files.glob("*/*"))


def _write(job: tuple[str, str, Path, int, int, int]) -> tuple[int, int, int]:
    files, extension, root, first, stop, seed = job
    tally = Tally()
    for number in range(first, stop):
        content = sample(files, number, seed)
        path = root / "files" / f"{number // 1000:04d}" / f"{number:08d}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        tally.samples += 1
        tally.size += len(content)
        tally.checksum += content[0] if files == "tokens" else sum(content[::PAGE])
    return tally.samples, tally.size, tally.checksum


def _octaves(random: np.random.Generator, width: int, height: int, grain: float) -> np.ndarray:
    """Return coloured noise, coarse and fine, with some shapes: float [height, width, 3] around 0 to 255."""
    from PIL import Image

    image = np.full((height, width, 3), random.uniform(60, 190, 3), np.float32)
    cells, weight = 3, 60.0
    while cells < width / 2:
        coarse = random.standard_normal((3, max(2, cells * height // width), cells)).astype(np.float32)
        layers = [Image.fromarray(layer).resize((width, height), Image.Resampling.BICUBIC) for layer in coarse]
        image += weight * np.stack([np.asarray(layer) for layer in layers], axis=-1)
        cells, weight = cells * 2, weight * 0.58
    down, across = np.mgrid[:height, :width]
    for _ in range(5):
        y, x, radius = random.uniform(0, height), random.uniform(0, width), random.uniform(0.05, 0.25) * width
        image[(down - y) ** 2 + (across - x) ** 2 < radius**2] += random.uniform(-70, 70, 3)
    return image + grain * random.standard_normal((height, width, 1)).astype(np.float32)


def _photo(random: np.random.Generator) -> bytes:
    from PIL import Image

    pixels = np.clip(_octaves(random, 500, 375, grain=11), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=int(random.integers(82, 91)))
    return buffer.getvalue()


def _icon(random: np.random.Generator) -> bytes:
    from PIL import Image

    side = int(random.integers(30, 37))
    pixels = np.clip(_octaves(random, side, side, grain=3), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _object(random: np.random.Generator) -> bytes:
    return random.bytes(70_000)


def _tokens(random: np.random.Generator) -> bytes:
    return np.minimum(random.zipf(1.2, TOKENS), 50_256).astype("<u2").tobytes()
