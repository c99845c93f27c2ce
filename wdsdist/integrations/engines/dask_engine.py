"""A dask cluster as an executor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import dask
from distributed import Client, KilledWorker

from wdsdist.errors import ArgumentError, EngineError


class _DaskExecutor(Executor):
    def __init__(self, client: Client) -> None:
        # Not pure: a call with the arguments of an earlier one must run, not return what that one returned.
        self._executor = client.get_executor(pure=False)
        self._max_workers = max(1, sum(client.nthreads().values()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future


@contextlib.contextmanager
def executor(address: str | None) -> Iterator[Executor]:
    """Give the executor of a dask cluster, whose scheduler retries the tasks of a lost worker."""
    with _client(address) as client:
        try:
            yield _DaskExecutor(client)
        except KilledWorker as error:
            raise EngineError(
                f"the dask cluster lost {error.allowed_failures + 1} workers at one shard, perhaps for want of memory: "
                f"run the same command again with larger workers; the shards that are whole are kept"
            ) from error


@contextlib.contextmanager
def _client(address: str | None) -> Iterator[Client]:
    if address is None:
        with contextlib.suppress(ValueError):
            yield Client.current()
            return
        address = dask.config.get("scheduler-address", None)
    if address is None:
        raise ArgumentError(
            "engine dask has no address: name the scheduler, such as tcp://host:8786, or set DASK_SCHEDULER_ADDRESS"
        )
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise EngineError(f"there is no dask scheduler at {address} ({error}): is the address right?") from error
    with client:
        yield client
