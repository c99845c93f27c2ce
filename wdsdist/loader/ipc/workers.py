"""The worker processes behind torch's loader, any of which may be killed at any moment."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import Any

from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined]
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

_LONGEST = 1.0
"""Seconds to wait for the lock of an event that workers hold for microseconds."""


_PRELOADED = ("numpy.random", "numpy.ma")
"""What torch and the order of an epoch import in each worker."""
_PRELOADED_FOR_REMOTE = ("fsspec.asyn",)


def preload(*, is_remote: bool) -> None:
    """Preload modules that each worker would import before its first batch: forked workers inherit them."""
    for name in (*_PRELOADED, *(_PRELOADED_FOR_REMOTE if is_remote else ())):
        importlib.import_module(name)


class _SafeEvent:
    """Torch's word to its workers that they are done, as the main process says it.

    The lock of the event is lost for ever with a worker that is killed while it looks whether the event is set; torch
    sets it, and looks at it, whenever it ends workers or finds one dead, and would hang.
    """

    def __init__(self, event: Event) -> None:
        self._event = event
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        setting = threading.Thread(target=self._event.set, daemon=True)
        setting.start()
        setting.join(_LONGEST)


def guarded(batches: Iterator[Any]) -> Iterator[Any]:
    """Return torch's iterator, proof against workers that are killed."""
    if isinstance(batches, _MultiProcessingDataLoaderIter):
        event: Any = batches._workers_done_event
        if not isinstance(event, _SafeEvent):
            batches._workers_done_event = _SafeEvent(event)  # type: ignore[assignment]
    return batches


def has_lost_workers(batches: Any) -> bool:
    """Whether one of the workers behind torch's iterator has died."""
    return isinstance(batches, _MultiProcessingDataLoaderIter) and not all(
        worker.is_alive() for worker in batches._workers
    )


def end_workers(batches: Any) -> None:
    """End the workers behind torch's iterator now."""
    if not isinstance(batches, _MultiProcessingDataLoaderIter):
        return
    if has_lost_workers(batches):
        # The rest may wait for a lock that is lost, and would be waited for. Torch's handler must not see them die.
        if batches._worker_pids_set:
            _remove_worker_pids(id(batches))
            batches._worker_pids_set = False
        for worker in batches._workers:
            worker.kill()
    batches._shutdown_workers()
