"""Remote data sets of small shards, in memory and on the web."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import wdsdist
from tests.support.tars import plain_tar
from tests.support.web import Web, served
from wdsdist.shards.manifest import Manifest

SHARDS, SAMPLES, SIZE = 4, 20, 20_000


def member(number: int) -> bytes:
    """Return the bytes of the member ``bin`` of a sample."""
    return np.random.default_rng(number).bytes(SIZE)


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards of 430 KB: 20 KB and a label a sample."""
    folder = tmp_path_factory.mktemp("packed")
    for shard in range(SHARDS):
        numbers = range(shard * SAMPLES, (shard + 1) * SAMPLES)
        members = [
            (f"{n:04}.{kind}", b"%d" % n if kind == "cls" else member(n)) for n in numbers for kind in ("bin", "cls")
        ]
        (folder / f"{shard:02}.tar").write_bytes(plain_tar(members))
    wdsdist.index(folder)
    return folder


@pytest.fixture
def web(packed: Path) -> Iterator[Web]:
    """The shards on the web."""
    with served(packed) as server:
        yield server


@pytest.fixture
def remote(web: Web) -> Manifest:
    return wdsdist.open(web.url)


@contextlib.contextmanager
def running(action: Callable[[Callable[[], object]], object]) -> Iterator[int]:
    """Run an action in a forked child until it calls its argument; kill the child at the end of the block."""
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            action(lambda: (os.write(tell, b"x"), signal.pause()))
        os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"x", "the child has ended"
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
