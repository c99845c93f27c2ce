"""Sources to pack, and the bytes that packing leaves."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wdsdist.packing import run
from wdsdist.packing.options import Options


@functools.cache
def _content(number: int) -> bytes:
    return bytes((number * 7 + place) % 251 for place in range(100 + 37 * number))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of 40 samples with two members each; the last ones have long and non-ASCII names."""
    root = tmp_path / "source"
    for number in range(40):
        folder = root / f"part{number % 3}" / ("é" if number == 38 else "x" * (120 if number == 39 else 5))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04}.bin").write_bytes(_content(number))
        (folder / f"{number:04}.meta.json").write_text(f'{{"number": {number}}}')
    return root


@pytest.fixture
def data_bytes() -> Callable[[Path], dict[str, bytes]]:
    """Reads what a data set consists of: all files but the packer's own notes."""

    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.iterdir() if path.name not in (".wdsdist-pack.json", ".wdsdist-pack.lock"))
        return {path.name: path.read_bytes() for path in files}

    return read


@pytest.fixture
def alone(source: Path, tmp_path: Path, data_bytes: Callable[[Path], dict[str, bytes]]) -> dict[str, bytes]:
    """What packing by one process of one machine gives, in shards of five samples."""
    run.run(source, tmp_path / "alone", Options(shard_samples=5, workers=1))
    return data_bytes(tmp_path / "alone")


@pytest.fixture
def before_writing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Does something to the source once it is listed and before any shard is written."""

    def arrange(change: Callable[[], object]) -> None:
        real = run.make_plan

        def make_plan(*args: Any, **options: Any) -> Any:
            change()
            return real(*args, **options)

        monkeypatch.setattr(run, "make_plan", make_plan)

    return arrange


@pytest.fixture
def thread() -> Iterator[None]:
    """A second thread in this process, which must not be forked then."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.fixture(autouse=True)
def only_threads_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads that earlier tests have left behind, such as those of fsspec and dask, keep nobody from forking."""
    before = set(threading.enumerate()) - {threading.main_thread()}
    monkeypatch.setattr(threading, "active_count", lambda: sum(one not in before for one in threading.enumerate()))
