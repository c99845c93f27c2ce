"""Each test in a temporary directory of its own, as if nothing had launched it."""

from __future__ import annotations

import multiprocessing.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.jobs import Stage

LAUNCHER_PREFIXES = ("SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_", "WDSDIST_", "XDG_CACHE", "MASTER_")
LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> None:
    """Let the server have its socket outside of the temporary directory of the test that happens to start it."""
    multiprocessing.util.get_temp_dir()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Move the temporary directory, and with it private_dir(), into the test's own; forget any real launcher."""
    for name in list(os.environ):
        if name.startswith(LAUNCHER_PREFIXES) or name in LAUNCHER_NAMES:
            monkeypatch.delenv(name)
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for process in stage.processes:
        process.end()


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a stand-in for an initialised torch.distributed, of a given rank and world size."""

    def install(rank: int, world_size: int) -> None:
        class Distributed:
            is_available = staticmethod(lambda: True)
            is_initialized = staticmethod(lambda: True)
            get_rank = staticmethod(lambda: rank)
            get_world_size = staticmethod(lambda: world_size)

        monkeypatch.setitem(sys.modules, "torch.distributed", Distributed)  # type: ignore[arg-type]

    return install
