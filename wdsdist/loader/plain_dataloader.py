"""Samples one by one, for a foreign ``DataLoader`` or for none, with a state for each of its workers."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

from wdsdist.errors import StateError
from wdsdist.loader.checkpoint import State, check_state, make_state, read_state
from wdsdist.loader.order_config import OrderConfig
from wdsdist.loader.worker_iterator import WorkerIterator
from wdsdist.loader.worker_state import EpochStart, enter_worker
from wdsdist.sampling.plan import BatchPlan, Position, World

if TYPE_CHECKING:
    from wdsdist.loader.dataset import StreamingDataset


class SampleStream(Iterator[Any]):
    """Iterator over the samples of one worker of one rank, which knows its position at any time.

    >>> stream = SampleStream(iter("cd"), Position(epoch=3, consumed=2))
    >>> next(stream), stream.position
    ('c', Position(epoch=3, consumed=3, segments=''))
    """

    def __init__(self, samples: Iterator[Any], position: Position) -> None:
        self._samples = samples
        self.position = position
        """The epoch, and the samples of this worker's part that were taken; at the end that is all of them."""
        self._failed = False

    def __iter__(self) -> SampleStream:
        return self

    def __next__(self) -> Any:
        if self._failed:
            # A generator that raised has ended: without this, what follows would pass for the end of the epoch.
            raise StateError("this iteration ended with an error: iterate the data set again")
        try:
            sample = next(self._samples)
        except StopIteration:
            raise
        except BaseException:
            self._failed = True
            raise
        self.position = Position(self.position.epoch, self.position.consumed + 1)
        return sample


class PlainProgress:
    """The place of this process in a data set that no `StreamingDataLoader` iterates.

    An iteration plays the epoch that ``set_epoch`` chose last, 0 at first, as with ``DistributedSampler``; after a
    state is loaded, the rest of its epoch.
    """

    def __init__(self) -> None:
        self._latest: SampleStream | None = None
        self._loaded: Position | None = None
        self._loaded_by = 0
        self._older: tuple[int, OrderConfig] | None = None
        """The epoch of a loaded state, and the order over the generation of the data set that it was saved with."""

    def start(self, dataset: StreamingDataset) -> SampleStream:
        """Start an iteration of this rank's samples, or of this worker's."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and self._loaded_by != os.getpid():
            # Each pass of a loader would start its workers from this same copy, and so with this state.
            raise StateError(
                "the data set's state was loaded in another process than the one that iterates it: load it into a "
                "StatefulDataLoader, which hands it to its workers, or use a StreamingDataLoader"
            )
        worker, num_workers = enter_worker()
        position = Position(dataset.chosen_epoch.begin(), 0)
        if worker == 0:
            _warn(dataset, position.epoch, num_workers)
        if loaded is not None and dataset.chosen_epoch.requests and position.epoch != loaded.epoch:
            if loaded.consumed < _num_samples(self._part(dataset, loaded.epoch, worker, num_workers)):
                warnings.warn(
                    f"set_epoch({position.epoch}) discards the loaded state of epoch {loaded.epoch}: to resume, start "
                    f"with the epoch of the state",
                    stacklevel=3,
                )
        elif loaded is not None:
            position = loaded
        part = self._part(dataset, position.epoch, worker, num_workers)
        self._latest = SampleStream(_samples(dataset, part, position.consumed), position)
        return self._latest

    def state(self, dataset: StreamingDataset) -> State:
        """Return the position of this process in the epoch, with what identifies data set, order and split."""
        position = self._loaded or (self._latest.position if self._latest else Position(dataset.chosen_epoch.epoch, 0))
        return {**_about(dataset, dataset.order_config), "epoch": position.epoch, "taken": position.consumed}

    def load(self, dataset: StreamingDataset, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where a state was taken."""
        check_state(state, "taken")
        config = dataset.order_config.as_in(state)
        self._loaded = read_state({**state, "consumed": state["taken"]}, _about(dataset, config, state))
        self._loaded_by = os.getpid()
        self._older = self._loaded.epoch, config

    def _part(self, dataset: StreamingDataset, epoch: int, worker: int, num_workers: int) -> WorkerIterator:
        """Return the iterator of one worker over its samples of an epoch."""
        config = dataset.order_config if self._older is None or self._older[0] != epoch else self._older[1]
        own = dataset.identity()
        world, settings = World(own.world_size, own.ranks_per_node), config.settings(own.world_size)
        start = EpochStart(position=Position(epoch), rank=own.rank, world=world, settings=settings)
        plan = dataset.plan(epoch, config)
        return WorkerIterator(config, dataset.sample_reader, plan, start, worker=worker, num_workers=num_workers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}  # an open stream stays in its process


def _warn(dataset: StreamingDataset, epoch: int, num_workers: int) -> None:
    """Warn of misuse by foreign loaders, once for all iterations."""
    iterations = dataset.chosen_epoch.count_iteration()
    if iterations == 0 and num_workers > 1 and dataset.batch_size is None:
        warnings.warn(
            f"the {num_workers} workers of a foreign DataLoader make batches of their own samples: up to "
            f"{num_workers} batches of an epoch are not full (and lost under drop_last=True). Pass the DataLoader's "
            f"batch_size to StreamingDataset as well, or 1 if samples stay single",
            stacklevel=4,
        )
    if iterations == 1 and dataset.order_config.given.shuffle and not dataset.chosen_epoch.requests:
        warnings.warn(
            f"without set_epoch each pass plays epoch {epoch}, in the same order: call set_epoch(epoch) of the data "
            f"set before each pass, as with DistributedSampler. A StreamingDataLoader goes on to the next epoch by "
            f"itself",
            stacklevel=4,
        )


def _num_samples(part: WorkerIterator) -> int:
    """Return the samples of a worker."""
    plan = part.plan
    total = plan.count_batches()
    batches = range(part.worker, total, part.num_workers)
    missing = total * plan.batch_size - plan.samples_per_rank
    has_last = bool(batches) and batches[-1] == total - 1
    return len(batches) * plan.batch_size - missing * has_last


def _samples(dataset: StreamingDataset, part: WorkerIterator, skipped: int) -> Iterator[Any]:
    """Yield the samples of a worker after the first ``skipped``, which are not read."""
    # Only the last batch of an epoch is not full, so that what was skipped are whole batches and a rest.
    whole, rest = divmod(skipped, part.plan.batch_size)
    left = dataclasses.replace(part, worker=part.worker + whole * part.num_workers)
    start, num_samples = part.start, _num_samples(part) - skipped
    bad_samples = dataset.count_bad_samples(start.position.epoch, num_samples, start.log_prefix)
    for taken, place in enumerate(islice(chain.from_iterable(map(_places, left.plans())), rest, None), 1):
        sample = part.sample_reader.sample(*place)
        if bad_samples is not None and (replaced := part.sample_reader.replaced()) is not None:
            bad_samples.add(replaced, taken)
        yield sample


def _places(batch: BatchPlan) -> Iterator[tuple[int, int, int, bool | None]]:
    """Yield shard, number, epoch and padding of each sample of a batch."""
    padding = repeat(None) if batch.padding is None else batch.padding.tolist()
    return zip(batch.shards.tolist(), batch.samples.tolist(), batch.epochs.tolist(), padding, strict=False)


def _about(dataset: StreamingDataset, config: OrderConfig, state: Mapping[str, Any] | None = None) -> State:
    """Return what a state must have in common with this data set, its order and its split among workers."""
    world_size = dataset.identity().world_size
    about = make_state(Position(0), config, config.settings(world_size, state))
    return {
        # What a loader's state calls consumed is another number: neither state can be taken for the other.
        **{name: value for name, value in about.items() if name not in ("epoch", "consumed", "finished", "segments")},
        "num_replicas": world_size,
        "drop_last": dataset.drop_last,
        "batch_size": dataset.batch_size or 1,
        "num_workers": enter_worker()[1],
    }
