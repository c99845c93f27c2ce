"""Samples one by one, for a foreign ``DataLoader`` or for none, with a state for each of its workers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wdsdist.errors import StateError
from wdsdist.loader.checkpoint import State, read_state
from wdsdist.loader.framework_guards import refuse_wrappers
from wdsdist.loader.worker_iterator import WorkerIterator
from wdsdist.loader.worker_state import ChosenEpoch, SharedValue, enter_worker
from wdsdist.sampling.plan import Position


class SampleStream(Iterator[Any]):
    """Iterator over the samples of one worker of one rank, which knows its position at any time.

    Args:
        samples: the samples that are left.
        position: the epoch, and the samples of this worker's part that were taken before.
        num_replicas: returns among how many ranks the data set is split.

    >>> stream = SampleStream(iter("cd"), Position(epoch=3, consumed=2), lambda: 1)
    >>> next(stream), stream.position
    ('c', Position(epoch=3, consumed=3, segments=''))
    """

    def __init__(self, samples: Iterator[Any], position: Position, num_replicas: Callable[[], int]) -> None:
        self._samples = samples
        self._num_replicas = num_replicas
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
            raise StateError("this iteration ended with an error: iterate the data set anew")
        if not self._has_begun:
            # Stages of a pipeline draw from one another: only now do they all stand on the call stack.
            refuse_wrappers(self._num_replicas)
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


def samples_of(part: WorkerIterator) -> int:
    """Return the samples of one worker, to which batches are dealt one by one."""
    plan = part.plan
    batches = plan.batches_per_rank or 0
    mine = range(part.worker, batches, part.num_workers)
    missing = batches * plan.batch_size - plan.samples_per_rank
    is_last = bool(mine) and mine[-1] == batches - 1
    return len(mine) * plan.batch_size - missing * is_last


class PlainProgress:
    """Keep the place of this process in a data set that no `StreamingDataLoader` iterates.

    An iteration plays the epoch that ``set_epoch`` chose last, 0 at first, as with ``DistributedSampler``; a loaded
    state is continued by the next one.
    """

    def __init__(self, chosen: ChosenEpoch) -> None:
        self._chosen = chosen
        self._iterations = SharedValue(0, most=64)  # of the first worker, or of this process
        self._latest: SampleStream | None = None
        self._loaded: Position | None = None
        self._loaded_by = 0

    def start(
        self,
        part_of: Callable[[int, int, int], WorkerIterator],
        *,
        num_replicas: Callable[[], int],
        is_dealt: bool,
        is_shuffled: bool,
    ) -> SampleStream:
        """Start an iteration: of the chosen epoch, or of what a loaded state left of one.

        Args:
            part_of: returns what worker ``w`` of ``n`` makes of an epoch, given all three.
            num_replicas: returns among how many ranks the data set is split.
            is_dealt: whether workers are dealt whole batches.
            is_shuffled: whether epochs differ.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is not None and self._loaded_by != os.getpid():
            # Each pass of a loader would start its workers from this same copy, and so with this state.
            raise StateError(
                "the data set's state was loaded in another process than the one that iterates it: load it into a "
                "StatefulDataLoader, which hands it to its workers, or use a StreamingDataLoader"
            )
        worker, num_workers = enter_worker()
        position = Position(self._chosen.begin(), 0)
        if worker == 0:
            self._warn(position.epoch, num_workers, is_dealt=is_dealt, is_shuffled=is_shuffled)
        if loaded is not None and self._chosen.requests and position.epoch != loaded.epoch:
            if loaded.consumed < samples_of(part_of(loaded.epoch, worker, num_workers)):
                warnings.warn(
                    f"set_epoch({position.epoch}) discards the loaded state of epoch {loaded.epoch}: to resume, start "
                    f"with the epoch of the state",
                    stacklevel=3,
                )
        elif loaded is not None:
            position = loaded
        part = part_of(position.epoch, worker, num_workers)
        samples = part.samples(samples_of(part), position.consumed)
        self._latest = SampleStream(samples, position, num_replicas)
        return self._latest

    def _warn(self, epoch: int, num_workers: int, *, is_dealt: bool, is_shuffled: bool) -> None:
        """Warn of misuse by foreign loaders, once for all iterations."""
        iterations = self._iterations.read()
        self._iterations.write(iterations + 1)
        if iterations == 0 and num_workers > 1 and not is_dealt:
            warnings.warn(
                f"the {num_workers} workers of a foreign DataLoader make batches of their own samples: up to "
                f"{num_workers} batches of an epoch are not full (and lost under drop_last=True). Pass the "
                f"DataLoader's batch_size to StreamingDataset as well, or 1 where samples stay single",
                stacklevel=4,
            )
        if iterations == 1 and is_shuffled and not self._chosen.requests:
            warnings.warn(
                f"without set_epoch each pass plays epoch {epoch}, in the same order: call set_epoch(epoch) of the "
                f"data set before each pass, as with DistributedSampler. A StreamingDataLoader goes on to the next "
                f"epoch by itself",
                stacklevel=4,
            )

    def state(self, about: State) -> State:
        """Return the position of this process in the epoch, with the fields of ``about``."""
        position = self._loaded or (self._latest.position if self._latest else Position(self._chosen.epoch, 0))
        # What a loader's state calls consumed is another number: neither state can be taken for the other.
        rest = {name: value for name, value in about.items() if name not in ("consumed", "finished", "segments")}
        return {**rest, "epoch": position.epoch, "taken": position.consumed, "num_workers": enter_worker()[1]}

    def load(self, state: Mapping[str, Any], about: State) -> None:
        """Let the next iteration go on where a state was taken."""
        self._loaded = read_state({**state, "consumed": state["taken"]}, {**about, "num_workers": enter_worker()[1]})
        self._loaded_by = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}  # an open stream stays where it is
