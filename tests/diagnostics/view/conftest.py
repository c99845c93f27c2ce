"""Data sets to look at, and servers that show them, in this process."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from httpx2 import Client

import wdsdist
from tests.support.photos import encode, photo
from wdsdist.diagnostics.view import server
from wdsdist.shards.manifest import Manifest

SCRIPT = "<script>document.title='ran'</script>"
HOSTILE = (
    f'"><img src=x onerror="document.title=\'ran\'">{SCRIPT}</pre></textarea><svg onload="document.title=\'ran\'">'
)
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=\'ran\'">{SCRIPT}</svg>'


def sound() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(1600))
    return stream.getvalue()


def samples(count: int = 12) -> Iterator[dict[str, Any]]:
    """Yield samples with an image, a text, a class and JSON; the fourth has an image that is cut short."""
    for number in range(count):
        image = encode(photo(60, 90, seed=number))
        yield {
            "__key__": f"{number:04}",
            "jpg": image[: len(image) // 2] if number == 3 else image,
            "txt": f"caption {number}",
            "cls": number % 3,
            "json": {"width": 100 + number, "big": 2**70},
            "npy": np.full((4, 6), number, np.float32),
            "ids.npy": np.arange(50 + number, dtype=np.uint16),
            "wav": sound(),
        }


_running = contextlib.ExitStack()


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    """End the servers of a module's tests."""
    yield
    _running.close()


def served(manifest: Manifest, *, token: str = "", **more: Any) -> str:
    """Serve a data set from a thread, and return the URL."""
    running = _running.enter_context(server.Server(server.View(manifest, ["shards"], **more), token=token))
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    _running.callback(running.shutdown)
    return running.url


def client_of(manifest: Manifest, **more: Any) -> Client:
    """Return a client of a server that shows a data set."""
    port = served(manifest, **more).rpartition(":")[2].partition("/")[0]
    return _running.enter_context(Client(base_url=f"http://127.0.0.1:{port}", timeout=60))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Twelve samples in three shards, with two columns."""
    folder = tmp_path_factory.mktemp("view") / "shards"
    manifest = wdsdist.pack(samples(), folder, shard_samples=4, shuffle_seed=None)
    return manifest.add_columns(fields=["json.width", "cls"])


@pytest.fixture(scope="module")
def client(data: Manifest) -> Client:
    return client_of(data)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Samples with markup and scripts in every place that data can name: keys, extensions, texts, JSON, SVG, tables."""
    folder = tmp_path_factory.mktemp("hostile")
    made: Iterator[dict[str, Any]] = (
        {
            "__key__": f"{number}{HOSTILE.replace('/', '|').replace('.', '_')}",
            "txt": HOSTILE,
            "html": f"<html><body>{SCRIPT}</body></html>",
            "svg": SVG,
            "png": SVG,
            "mp4": SVG,
            "cls": HOSTILE.encode(),
            "json": {HOSTILE: [HOSTILE, {SCRIPT: SVG}]},
            f"x{SCRIPT.replace('/', '|').replace('.', '_')}": HOSTILE.encode(),
            "bin": b"\0" + HOSTILE.encode(),
        }
        for number in range(3)
    )
    (folder / "shards").mkdir()
    # Packing refuses such images and videos: another program wrote this tar.
    with tarfile.open(folder / "shards" / "shard-000000.tar", "w") as tar:
        for sample in made:
            key = sample.pop("__key__")
            for extension, value in sample.items():
                data = json.dumps(value) if isinstance(value, dict) else value
                content = data.encode() if isinstance(data, str) else data
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    manifest = wdsdist.index(folder / "shards")
    table = folder / "scores.csv"
    table.write_text(
        'key,"note<b>"\n'
        + "".join(f'"{key.replace(chr(34), chr(34) * 2)}","{SCRIPT}"\n' for key in manifest.column("key"))
    )
    return manifest.add_columns(join=table)


@pytest.fixture
def shards(tmp_path: Path) -> Manifest:
    """A data set that a test may damage."""
    return wdsdist.pack(samples(8), tmp_path / "shards", shard_samples=4, shuffle_seed=None)
