"""Engines: dask and ray clusters as executors for `wdsdist.pack`.

An engine only schedules tasks, and retries the tasks of a lost worker. Its package is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from wdsdist._util.extras import extra
from wdsdist.errors import ArgumentError, DestinationError, given

__all__ = ["NAMES", "connect"]

NAMES = ("dask", "ray")

_RETRIES = 3
"""Retries of a ray task whose worker was lost; a task that raises is not run again."""
_LOST = (
    "workers at one shard, perhaps because memory ran out: run the same command again with larger workers, which keeps "
    "the complete shards"
)


@contextlib.contextmanager
def connect(engine: str, address: str | None = None) -> Iterator[Executor]:
    """Give the executor of a running cluster, for ``pack(..., executor=...)``.

    Leaving the block closes the connection, unless it was there before; the cluster stays.

    Args:
        engine: ``"dask"`` or ``"ray"``; each is an extra of the same name.
        address: address of the cluster, such as ``tcp://host:8786`` for dask, ``host:6379`` or ``ray://host:10001`` for
            ray; by default the one that this process is connected to, or that the engine's own settings name.

    Raises:
        ArgumentError: there is no such engine, or it has no address.
        ExtraMissingError: its package is not installed.
        DestinationError: the cluster cannot be reached, or loses one worker after another.

    >>> with connect("slurm") as executor:
    ...     pass
    Traceback (most recent call last):
    wdsdist.errors.ArgumentError: engine is 'slurm': it must be one of dask, ray
    """
    if engine not in NAMES:
        raise ArgumentError(f"engine is {engine!r}: it must be one of {', '.join(NAMES)}", argument="engine")
    extra("distributed" if engine == "dask" else "ray", engine, given("engine", engine))
    with (_dask if engine == "dask" else _ray)(address) as executor:
        yield executor


@contextlib.contextmanager
def _dask(address: str | None) -> Iterator[Executor]:
    """Give the executor of a dask cluster, whose scheduler retries the tasks of a lost worker."""
    import dask
    from distributed import Client, KilledWorker

    with contextlib.ExitStack() as stack:
        try:
            client = Client.current() if address is None else None
        except ValueError:  # this process is connected to none
            client, address = None, dask.config.get("scheduler-address", None)
        if client is None and address is None:
            raise ArgumentError(
                "engine dask has no address: name the scheduler, such as tcp://host:8786, or set "
                "DASK_SCHEDULER_ADDRESS",
                argument="address",
            )
        try:
            client = client or stack.enter_context(Client(address))
        except (OSError, ValueError) as error:
            raise DestinationError(f"there is no dask scheduler at {address} ({error}): is it right?") from error
        # Not pure: a call with the arguments of an earlier one must run, not return what that one returned.
        executor = client.get_executor(pure=False)
        executor._max_workers = max(1, sum(client.nthreads().values()))  # as `pack` asks executors
        try:
            yield executor
        except KilledWorker as error:
            raise DestinationError(f"the dask cluster lost {error.allowed_failures + 1} {_LOST}") from error


class _RayExecutor(Executor):
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._max_workers = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        reference = self._ray.remote(max_retries=_RETRIES)(fn).remote(*args, **kwargs)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda done: self._ray.cancel(reference) if done.cancelled() else None)
        return future


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[Executor]:
    """Give the executor of a ray cluster, which retries the tasks of a lost worker."""
    import ray
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError

    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address or "auto", logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            shown = address or "the default address"
            raise DestinationError(f"there is no ray cluster at {shown} ({error}): is it right?") from error
    try:
        yield _RayExecutor(ray)
    except RayTaskError as error:
        raise error.cause from None  # as the worker raised it
    except TaskCancelledError as error:
        raise DestinationError("the ray cluster cancelled a shard: run the same command again") from error
    except RayError as error:
        raise DestinationError(f"the ray cluster lost {_RETRIES + 1} {_LOST} ({type(error).__name__})") from error
    finally:
        if ours:
            ray.shutdown()
