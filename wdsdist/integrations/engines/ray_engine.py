"""A ray cluster as an executor."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from wdsdist.errors import EngineError

_RETRIES = 3  # of a task whose worker was lost; one that raises is not run again


class _RayExecutor(Executor):
    def __init__(self) -> None:
        self._max_workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._tasks: dict[Callable[..., Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = self._tasks.get(fn) or self._tasks.setdefault(fn, ray.remote(max_retries=_RETRIES)(fn))
        reference = task.remote(*args, **kwargs)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda done: ray.cancel(reference) if done.cancelled() else None)
        return future


@contextlib.contextmanager
def executor(address: str | None) -> Iterator[Executor]:
    """Give the executor of a ray cluster, which retries the tasks of a lost worker."""
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address or "auto", logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"there is no ray cluster at {address or 'the default address'} ({error}): is the address right?"
            ) from error
    try:
        yield _RayExecutor()
    except RayTaskError as error:
        raise error.cause from None  # as the worker raised it
    except TaskCancelledError as error:
        raise EngineError("the ray cluster cancelled a shard: run the same command again") from error
    except RayError as error:
        raise EngineError(
            f"the ray cluster lost {_RETRIES + 1} workers at one shard ({type(error).__name__}), perhaps for want of "
            f"memory: run the same command again with larger workers; the shards that are whole are kept"
        ) from error
    finally:
        if ours:
            ray.shutdown()
