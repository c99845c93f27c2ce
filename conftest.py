"""What every test and doctest shares: Hypothesis profiles, and a user cache and temporary files of its own."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.forked import PRELOADED

SERVER: Any = forkserver._forkserver  # type: ignore[attr-defined]
# Threads of torch wait for each other by spinning: several tests at once would take cores from each other for nothing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that runs the tests in the background has this signal ignored, and so would all programs that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)

# `make slow` looks at more examples of each property, and `--hypothesis-profile thorough` at many more.
settings.register_profile("few", deadline=None, print_blob=True, max_examples=12, derandomize="CI" in os.environ)
settings.register_profile("more", settings.get_profile("few"), max_examples=50)
settings.register_profile("thorough", settings.get_profile("few"), max_examples=500)
settings.load_profile("few")


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_auto_num_workers() -> int:
    """Number of test processes: two more than there are cores, as many tests wait for processes and time limits."""
    return min(4, len(os.sched_getaffinity(0)) + 2)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[None]:
    """Collect doctests only from modules with examples: to see that there are none, pytest asks for every name of a
    module, and thereby imports what is imported on first use, such as torch, Ray and all of transformers."""
    collectors = yield
    if file_path.suffix == ".py" and ">>> " not in file_path.read_text(encoding="utf-8"):
        collectors = [collector for collector in collectors if type(collector) is pytest.Module]
    return collectors


def pytest_configure(config: pytest.Config) -> None:
    """Set the user's cache and configuration folders of the whole test run, also for session fixtures and the fork
    server."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # test processes inherit it
        folder = tempfile.TemporaryDirectory(prefix="wdsdist-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["WDSDIST_CACHE_DIR"] = os.environ["XDG_CONFIG_HOME"] = folder.name
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name  # which importing some parts of torch makes


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start one fork server for all test processes: what it imports takes five seconds of a core."""
    forkserver.ensure_running()
    names = ("_forkserver_address", "_forkserver_authkey")  # the key from Python 3.14 on
    node.workerinput["fork_server"] = {name: getattr(SERVER, name, None) for name in names}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let a test process use the server of the process that started it, which ends after it."""
    if given := getattr(session.config, "workerinput", None):
        vars(SERVER).update(given["fork_server"], ensure_running=lambda: None)
        SERVER._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str) -> None:
    """Abort the test run when a worker process of xdist crashes: its test would run again, perhaps without an end."""
    pytest.exit(f"a test process died while it ran {crashitem}", returncode=pytest.ExitCode.INTERNAL_ERROR)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Run no garbage collection while tests are collected: hardly anything is freed, and each takes longer."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Take two costs off each test: of looking for garbage in what is imported, here and in forks, 0.2 s each time; and
    of adding pytest's handlers to the 45 loggers of torch that do not propagate, and removing them, half of what an
    empty test takes. Handlers of the root logger have the same records."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all `user_cache` folders: `mktemp` looks through what it has made, which thousands make slow."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def user_cache(homes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache directory, new for each test: no test sees what another, or the user, has kept or decided."""
    folder = Path(tempfile.mkdtemp(dir=homes))
    monkeypatch.setenv("WDSDIST_CACHE_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{folder}-config")  # made by the few tests that decide something
    return folder


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the processes of tests one core each, so that they start no others by default: to start those costs several
    times what most tests have for them to do. Tests of several name their number; programs have all cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


@pytest.fixture(autouse=True)
def temporary_files_of_doctests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples in docstrings show no cleaning up, and leave nothing behind all the same."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("doctest")))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder with a name so short that sockets fit into it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the shipped data where a checkout has it, for programs that train there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(Path(__file__).parent / "examples" / "data", tmp_path / "examples" / "data")
    return tmp_path
