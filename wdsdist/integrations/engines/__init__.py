"""Engines: dask and ray clusters as executors for `wdsdist.pack`.

An engine only schedules tasks, and retries those of a lost worker; the tasks are the same as on one machine.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import Executor

from wdsdist.errors import ArgumentError

__all__ = ["NAMES", "connect"]

NAMES = ("dask", "ray")
_PACKAGES = {"dask": "distributed", "ray": "ray"}


@contextlib.contextmanager
def connect(engine: str, address: str | None = None) -> Iterator[Executor]:
    """Give the executor of a running cluster, for ``pack(..., executor=...)``.

    A worker that is lost costs its task only: the cluster's scheduler gives it to another one, up to three times.
    Leaving the block closes the connection, unless it was there before; the cluster stays.

    Args:
        engine: ``"dask"`` or ``"ray"``; each is an extra of the same name.
        address: where the cluster is, such as ``tcp://host:8786`` for dask, ``host:6379`` or ``ray://host:10001`` for
            ray; by default the one that this process is connected to, or that the engine's own settings name.

    Raises:
        ArgumentError: there is no such engine, its package is not installed, or it has no address.
        EngineError: the cluster cannot be reached, or loses one worker after another.

    >>> with connect("slurm") as executor:
    ...     pass
    Traceback (most recent call last):
    wdsdist.errors.ArgumentError: engine is 'slurm': it must be one of dask, ray
    """
    if engine not in NAMES:
        raise ArgumentError(f"engine is {engine!r}: it must be one of {', '.join(NAMES)}")
    try:
        importlib.import_module(_PACKAGES[engine])
    except ImportError as error:
        raise ArgumentError(
            f'engine {engine} needs a package that is not installed: pip install "wdsdist[{engine}]"'
        ) from error
    with importlib.import_module(f"wdsdist.integrations.engines.{engine}_engine").executor(address) as found:
        yield found
