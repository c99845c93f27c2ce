"""The worker processes behind torch's loader, any of which may be killed at any moment."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import time
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined]
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from wdsdist._util.files import open_files_remedy
from wdsdist.errors import ArgumentError, SharedMemoryError, StateError, StorageError
from wdsdist.storage.waiting import LongWait

_log = logging.getLogger("wdsdist")

_SECONDS_TO_END = 1.0
"""Seconds for workers to end, and to take a lock that they hold for microseconds."""

_LOCKS = "/dev/shm"
"""The system keeps the semaphores of queues there."""
_UNUSABLE = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSYS)
"""Error numbers if that folder is full, read-only, closed to this user, or missing."""


class _ShutdownEvent:
    """The event by which torch ends its workers: to set it cannot hang, and leaves none that is busy.

    A worker that is killed while it reads the event takes the event's lock with it: torch would hang. And torch would
    wait 5 s for each worker in the middle of a batch, though nobody takes that batch any more.
    """

    def __init__(self, event: Any, workers: list[Any], index_queues: list[Any]) -> None:
        self._event, self._workers, self._index_queues = event, workers, index_queues
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event._cond.acquire(True, _SECONDS_TO_END):
            self._event._cond.release()
            self._event.set()
        for queue in self._index_queues:
            queue.put(None)
        end = time.monotonic() + _SECONDS_TO_END
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
        for worker in self._workers:
            if worker.is_alive():
                worker.kill()  # which ends one that is stopped too, and runs no handler of the training script


class WorkersIterator(_MultiProcessingDataLoaderIter):
    """Torch's iterator over the messages of workers, safe against killed workers, with a WARNING of long waits.

    Raises `SharedMemoryError` if the locks of their queues cannot be made, and `StorageError` if too many files are
    open.
    """

    _shutdown = True  # until torch has made what it shuts down

    _process = 0
    """The process that started the workers: a fork of it that ended them would take them from it."""

    def __init__(self, loader: DataLoader[Any], rank: int) -> None:
        self._of_rank, self._process = rank, os.getpid()  # torch has a `_rank` of its own
        loader.check_worker_number_rationality()
        try:
            super().__init__(loader)
        except BaseException as error:  # torch would leave the workers that it has started, and fail to end them
            self._shutdown = True
            self._kill()
            workers = f"{loader.num_workers} workers"
            if isinstance(error, OSError) and (remedy := open_files_remedy(error, "lower num_workers")):
                raise StorageError(f"{workers} cannot be started ({error.strerror}){remedy}") from error
            if isinstance(error, OSError) and error.errno in _UNUSABLE:
                raise SharedMemoryError(
                    f"the locks of {workers} cannot be made in {_LOCKS} ({error.strerror}): give the container a "
                    f"{_LOCKS} that is writable and has room (--shm-size), or pass num_workers=0"
                ) from error
            if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)) and "pickle" in str(error):
                raise ArgumentError(
                    f"{workers} cannot be started ({error}): let decode=, transform=, collate_fn= and worker_init_fn= "
                    f'be functions that a module defines, or fork workers, as multiprocessing_context="fork" does'
                ) from error
            raise
        self._workers_done_event: Any = _ShutdownEvent(self._workers_done_event, self._workers, self._index_queues)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._wait = LongWait()
        super()._reset(loader, first_iter)

    def _next_data(self) -> Any:
        self._wait = LongWait()
        if self._process != os.getpid():  # the process that has forked this one would miss the message
            raise StateError("workers send their batches to the process that started them: iterate the loader again")
        return super()._next_data()  # type: ignore[no-untyped-call]

    def _try_get_data(self, timeout: float = MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        answer: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        if not answer[0] and self._wait.is_due():
            task = self._task_info.get(self._rcvd_idx)
            number = 0 if task is None else task[0]  # between epochs, any worker
            _log.warning(
                "rank %d has waited %.0f s for data from worker %d (pid %d), which warns itself if it waits for a "
                "store", self._of_rank, self._wait.seconds, number, self._workers[number].pid,
            )  # fmt: skip
        return answer

    def has_lost_workers(self) -> bool:
        """Return whether a worker process has died, or all belong to the process that forked this one."""
        return self._process != os.getpid() or not all(worker.is_alive() for worker in self._workers)

    def end(self) -> None:
        """End the workers now."""
        if self._process == os.getpid() and self.has_lost_workers():
            self._kill()  # the others may wait for a lock that is lost
        self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        if os is not None and self._process == os.getpid():  # modules are gone at the very end of a program
            self._forget()
            super()._shutdown_workers()

    def _forget(self) -> None:
        """Let torch's handler, which raises for each worker that was killed, no longer look for these."""
        if getattr(self, "_worker_pids_set", False):
            _remove_worker_pids(id(self))
            self._worker_pids_set = False

    def _kill(self) -> None:
        self._forget()
        for worker in getattr(self, "_workers", ()):  # not all attributes need to exist yet
            worker.kill()
