"""Single samples, one after another, for a foreign loader or for none; where a process stands is known at any time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import get_worker_info

from wdsdist.errors import LoaderStateError
from wdsdist.loader.framework_guards import refuse_splitter
from wdsdist.loader.passes import Passes
from wdsdist.loader.progress import Position
from wdsdist.loader.state import State, read_state
from wdsdist.loader.worker_state import EpochRequest


class SampleStream(Iterator[Any]):
    """What one worker of one rank gives in one pass, or what is left of it.

    Args:
        samples: the samples that are left.
        position: the epoch, and the samples of this worker's part that were taken before.

    >>> stream = SampleStream(iter("cd"), Position(epoch=3, consumed=2))
    >>> next(stream), stream.position
    ('c', Position(epoch=3, consumed=3))
    """

    def __init__(self, samples: Iterator[Any], position: Position) -> None:
        self._samples = samples
        self._epoch, self._taken = position.epoch, position.consumed
        self._failed = False
        self._has_begun = False

    @property
    def position(self) -> Position:
        """The epoch, and the samples of this worker's part that were taken; at the end that is all of them."""
        return Position(self._epoch, self._taken)

    def __iter__(self) -> SampleStream:
        return self

    def __next__(self) -> Any:
        if self._failed:
            # A generator that raised has ended: without this, what follows would pass for the end of the epoch.
            raise LoaderStateError("this iteration ended with an error: iterate the data set anew")
        if not self._has_begun:
            refuse_splitter()
            self._has_begun = True
        try:
            sample = next(self._samples)
        except StopIteration:
            raise
        except BaseException:
            self._failed = True
            raise
        self._taken += 1
        return sample


class Streams:
    """The streams that this process has of a data set: which epoch each plays, and where the latest stands."""

    def __init__(self, request: EpochRequest) -> None:
        self._passes = Passes(request)
        self._latest: SampleStream | None = None
        self._loaded: Position | None = None
        self._loaded_by = 0

    def start(self, samples: Callable[[Position, int, int], Iterator[Any]], *, is_dealt: bool) -> SampleStream:
        """Start on the next epoch, or on what a loaded state left of one.

        Args:
            samples: returns the samples from a position on of worker ``w`` of ``n``.
            is_dealt: whether workers are dealt whole batches.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is not None and self._loaded_by != os.getpid():
            # Each pass of a loader would start its workers from this same copy, and so with this state.
            raise LoaderStateError(
                "the data set's state was loaded in another process than the one that iterates it: load it into a "
                "StatefulDataLoader, which hands it to its workers, or use a StreamingDataLoader"
            )
        worker, num_workers = _worker()
        number, epoch = self._passes.begin(None if loaded is None else loaded.epoch)
        if not is_dealt and num_workers > 1 and number == worker == 0:
            warnings.warn(
                f"the {num_workers} workers of a foreign DataLoader make batches of their own samples: up to "
                f"{num_workers} batches of an epoch are not full (and lost under drop_last=True). Pass the "
                f"DataLoader's batch_size to StreamingDataset as well, or 1 where samples stay single",
                stacklevel=3,
            )
        position = loaded if loaded is not None and loaded.epoch == epoch else Position(epoch, 0)
        self._latest = SampleStream(samples(position, worker, num_workers), position)
        return self._latest

    def state(self, about: State) -> State:
        """Return where this process stands, and ``about`` what."""
        position = self._loaded or (self._latest.position if self._latest else Position(self._passes.next_epoch, 0))
        # What a loader's state calls consumed is another number: neither state can be taken for the other.
        rest = {name: value for name, value in about.items() if name != "consumed"}
        return {**rest, "epoch": position.epoch, "taken": position.consumed, "num_workers": _worker()[1]}

    def load(self, state: Mapping[str, Any], about: State) -> None:
        """Let the next stream go on where a state was taken."""
        if isinstance(state, Mapping) and "taken" in state:
            state = {**state, "consumed": state["taken"]}
        self._loaded = read_state(state, {**about, "num_workers": _worker()[1]})
        self._loaded_by = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}  # an open stream stays where it is


def _worker() -> tuple[int, int]:
    """Return which worker of how many this process is; one that is no worker does the work of one."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
