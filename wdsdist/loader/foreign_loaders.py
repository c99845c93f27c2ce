"""A data set under foreign loaders: samples one by one, with a state for each worker, and misuse that is refused.

Frameworks would lose samples without a word in some ways. A framework leaves no mark on a data set that it wraps. But
it stands on the call stack when it asks for samples, and when workers are spawned. The stack is looked at once an
iteration, and only if a framework is imported that needs it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

from wdsdist.errors import StateError
from wdsdist.loader.epoch_planner import State, check_state, identity_of, read_state
from wdsdist.loader.worker_iterator import EpochStart, WorkerIterator, enter_worker
from wdsdist.samples.bad_samples import BadSampleLog
from wdsdist.sampling.order import OrderConfig
from wdsdist.sampling.plan import BatchPlan, Position, World

if TYPE_CHECKING:
    from wdsdist.loader.dataset import StreamingDataset
    from wdsdist.loader.epoch_iterator import EpochIterator
    from wdsdist.samples.sample_reader import SampleReader
    from wdsdist.sampling.epoch_plan import EpochPlan

Place = tuple[int, int, int, bool | None]
"""Shard, number, epoch and mark of padding of a sample."""


@dataclass(eq=False)
class SampleStream(Iterator[Any]):
    """Iterator over the samples of one worker of one rank, which knows its position at any time."""

    reader: SampleReader
    places: Iterator[Place]
    position: Position
    """The epoch, and the samples of this worker's part that were taken; at the end that is all of them."""
    bad_samples: BadSampleLog | None
    _next: Place | None = None
    _taken: int = 0

    def __next__(self) -> Any:
        # A sample that raises is the next one again: the iteration neither ends with it nor leaves it out.
        place = self._next = self._next or next(self.places)
        sample = self.reader.sample(*place)
        self._next, self._taken = None, self._taken + 1
        self.position = self.position._replace(consumed=self.position.consumed + 1)
        if self.bad_samples is not None and (replaced := self.reader.replaced()) is not None:
            self.bad_samples.add(replaced, self._taken)
        return sample


@dataclass(eq=False)
class PlainProgress:
    """The position of this process in a data set that no `StreamingDataLoader` iterates.

    An iteration runs the epoch that ``set_epoch`` chose last, 0 at first, as with ``DistributedSampler``; after a
    state is loaded, the rest of its epoch.
    """

    _stream: SampleStream | None = None
    _loaded: tuple[Position, OrderConfig, int] | None = None
    """The position of a state, the order over the generation of the data set that saved it, and who loaded it."""

    def start(self, dataset: StreamingDataset) -> SampleStream:
        """Start an iteration of this rank's samples, or of this worker's."""
        loaded, config, process = self._loaded or (None, dataset.order_config, os.getpid())
        if process != os.getpid():
            # Each pass of a loader would start its workers from this same copy, and so with this state.
            raise StateError(
                "the data set's state was loaded in another process than the one that iterates it: load it into a "
                "StatefulDataLoader, which hands it to its workers, or use a StreamingDataLoader"
            )
        self._loaded = None
        worker, num_workers = enter_worker()
        epoch = dataset.chosen_epoch.begin()
        if worker == 0:
            _warn(dataset, epoch, num_workers)
        if loaded is not None and dataset.chosen_epoch.requests and epoch != loaded.epoch:
            if loaded.consumed < _num_samples(dataset.plan(loaded.epoch, config), worker, num_workers):
                warnings.warn(
                    f"set_epoch({epoch}) discards the loaded state of epoch {loaded.epoch}: to resume, start with the "
                    f"epoch of the state",
                    stacklevel=3,
                )
            loaded, config = None, dataset.order_config
        position = loaded or Position(epoch)
        plan, own = dataset.plan(position.epoch, config), dataset.identity()
        start = EpochStart(
            position=Position(position.epoch),
            rank=own.rank,
            world=World(own.world_size, own.ranks_per_node),
            settings=config.settings(own.world_size),
        )
        # Only the last batch of an epoch is not full: the samples that were taken are whole batches and a rest.
        whole, rest = divmod(position.consumed, plan.batch_size)
        part = WorkerIterator(
            config, dataset.sample_reader, plan, start, worker=worker + whole * num_workers, num_workers=num_workers
        )
        left = _num_samples(plan, worker, num_workers) - position.consumed
        bad_samples = dataset.bad_sample_log(position.epoch, left, start.log_prefix)
        places = islice(chain.from_iterable(map(_places, part.plans())), rest, None)
        self._stream = SampleStream(dataset.sample_reader, places, position, bad_samples)
        return self._stream

    def state(self, dataset: StreamingDataset) -> State:
        """Return the state for a checkpoint: the position in the epoch, and the identity of data set and order."""
        position = Position(dataset.chosen_epoch.epoch) if self._stream is None else self._stream.position
        position = self._loaded[0] if self._loaded else position
        return {**_about(dataset, dataset.order_config), "epoch": position.epoch, "taken": position.consumed}

    def load(self, dataset: StreamingDataset, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where a state was taken."""
        check_state(state, "taken")
        config = dataset.order_config.as_in(state)
        position = read_state({**state, "consumed": state["taken"]}, _about(dataset, config, state))
        self._loaded = position, config, os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}  # an open stream stays in its process


def _warn(dataset: StreamingDataset, epoch: int, num_workers: int) -> None:
    """Warn if a foreign ``DataLoader`` loses samples to ``drop_last``, or repeats an order without ``set_epoch``."""
    iterations = dataset.chosen_epoch.count_iteration()
    if iterations == 0 and num_workers > 1 and dataset.batch_size is None:
        warnings.warn(
            f"each of the {num_workers} workers of a foreign DataLoader ends an epoch with a batch that is not full, "
            f"which drop_last=True loses: pass its batch_size to the data set as well, or 1 if samples stay single",
            stacklevel=4,
        )
    if iterations == 1 and dataset.order_config.shuffle and not dataset.chosen_epoch.requests:
        warnings.warn(
            f"without set_epoch, each pass repeats epoch {epoch} in the same order: call dataset.set_epoch(epoch) "
            f"before each pass, as with DistributedSampler",
            stacklevel=4,
        )


def _num_samples(plan: EpochPlan, worker: int, num_workers: int) -> int:
    """Return the samples of a worker."""
    total = plan.batches_per_rank
    batches = range(worker, total, num_workers)
    missing = total * plan.batch_size - plan.samples_per_rank  # in the last batch
    return len(batches) * plan.batch_size - missing * (total - 1 in batches)


def _places(batch: BatchPlan) -> Iterator[Place]:
    padding = repeat(None) if batch.padding is None else batch.padding.tolist()
    return zip(batch.shards.tolist(), batch.samples.tolist(), batch.epochs.tolist(), padding, strict=False)


def _about(dataset: StreamingDataset, config: OrderConfig, state: Mapping[str, Any] | None = None) -> State:
    """Return the identity of a state, which a resume compares: data set, order, ranks, batch size and workers."""
    world_size = dataset.identity().world_size
    return {
        # What a loader's state calls consumed is another number: neither state can be taken for the other.
        **identity_of(config, config.settings(world_size, state)),
        "num_replicas": world_size,
        "drop_last": dataset.drop_last,
        "batch_size": dataset.batch_size or 1,
        "num_workers": enter_worker()[1],
    }


# Frameworks.


class AcceleratedBatches(Iterator[Any]):
    """Iterate over a loader that Accelerate has prepared, as its own loaders do.

    Batches are on Accelerate's device. Meanwhile Accelerate can ask whether the current one is the last, which decides
    when accumulated gradients are applied. It holds no more than a weak reference to this.
    """

    end_of_dataloader = False
    remainder = -1
    """Samples that Accelerate's `gather_for_metrics` keeps of the last batch; -1 for all."""

    def __init__(self, batches: EpochIterator, *, non_blocking: bool) -> None:
        from accelerate.state import GradientState, PartialState

        self._batches = batches
        self._non_blocking = non_blocking
        self._gradients = GradientState()
        self._device = PartialState().device

    def __next__(self) -> Any:
        from accelerate.utils import send_to_device

        # An evaluation that was given up in between has left its references.
        others = [batches for batches in self._gradients.dataloader_references[1:] if batches not in (None, self)]
        self._gradients.dataloader_references = [None, *others]
        batch = send_to_device(next(self._batches), self._device, non_blocking=self._non_blocking)
        if self._batches.meter is not None:
            plan = self._batches.meter.plan
            self.end_of_dataloader = self._batches.position.consumed >= plan.num_samples
            self.remainder = plan.last_global_batch  # only marked padding comes last in what is gathered
        self._gradients.dataloader_references = [None, *others, self]
        return batch


def _callers() -> dict[str, tuple[Any, str]]:
    """Return the objects whose methods are on the call stack, by class: the nearest of each, and its method's name."""
    callers: dict[str, tuple[Any, str]] = {}
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):  # to look at the names of a frame keeps alive what they name
            owner = frame.f_locals.get("self")
            callers.setdefault(type(owner).__name__, (owner, frame.f_code.co_name))
        frame = frame.f_back
    return callers


def refuse_second_split(dataset: StreamingDataset) -> None:
    """Raise `StateError` if a caller would split a rank's samples once more, or save a position one batch ahead."""
    callers = _callers()
    for kind in {"IterableDatasetShard", "DataLoaderDispatcher"} & callers.keys():
        parts = getattr(callers[kind][0], "num_processes", None)
        if parts is None:  # while the dispatcher is being made
            from accelerate.state import PartialState

            parts = PartialState().num_processes
        replicas = dataset.identity().world_size
        if parts > 1 and replicas > 1:
            raise StateError(
                f"{kind} splits this data set among {parts} ranks, which StreamingDataset has done already for "
                f"{replicas}: each rank would see a part of its part. With Accelerate, prepare a "
                "wdsdist.StreamingDataLoader instead; with Transformers, train with StreamingTrainer of "
                "wdsdist.integrations.transformers instead of Trainer, or put its StreamingTrainerMixin before "
                "yours: class MyTrainer(StreamingTrainerMixin, Trainer): pass"
            )
    if {"_FitLoop", "StatefulDataLoader"} <= callers.keys() and "_EvaluationLoop" not in callers:
        # Lightning draws a batch ahead from a loader without a length, to know the last one.
        raise StateError(
            "under Lightning's Trainer a resumed StatefulDataLoader leaves out a batch, because checkpoints are "
            "one batch ahead: train from a wdsdist.StreamingDataLoader"
        )
    webdataset: Any = sys.modules.get("webdataset")
    for owner, _ in callers.values():
        if webdataset is None or not isinstance(owner, webdataset.DataPipeline):
            continue
        for splitter in (webdataset.split_by_node, webdataset.split_by_worker):
            if splitter in owner.pipeline and any(stage is dataset for stage in owner.pipeline):
                raise StateError(
                    f"{splitter.__name__} would split the samples of this worker once more, and all but its own part "
                    f"would be lost: take it out of the pipeline"
                )


def refuse_random_split(length: int, num_samples: int) -> None:
    """Raise if ``torch.utils.data.random_split`` asks a data set for its length, which counts a rank's part.

    Its subsets would have the first ``length`` samples, the same on every rank.
    """
    caller = sys._getframe(2)
    if (caller.f_globals.get("__name__"), caller.f_code.co_name) == ("torch.utils.data.dataset", "random_split"):
        raise StateError(
            f"random_split would split only the first {length:,} of {num_samples:,} samples, the same on every rank: "
            f"make views, as in train, val = wdsdist.open(shards).split(train=0.9, val=0.1), and a StreamingDataset of "
            f"each"
        )


def epoch_that_lightning_sets_up() -> int | None:
    """Return the epoch that Lightning's ``Trainer`` is about to start, if it asks for a length before it says so.

    Raises `StateError` if it asks once for all epochs: it would end each after as many batches as the first one has.
    """
    callers = _callers()
    loop, function = callers.get("_FitLoop", (None, ""))
    if loop is None or function != "setup_data":
        return None
    trainer = loop.trainer
    asks_once = trainer.max_epochs != 1 and trainer.reload_dataloaders_every_n_epochs != 1
    if asks_once and trainer.limit_train_batches == 1.0 and "_EvaluationLoop" not in callers:
        raise StateError(
            f"Lightning would end each epoch after as many batches as the first one has, but epochs of planned "
            f"batches differ, and max_epochs is {trainer.max_epochs}: pass reload_dataloaders_every_n_epochs=1 to "
            "the Trainer, which then asks for the length of each; or limit_train_batches=<a number that every "
            "epoch has>"
        )
    return int(loop.epoch_progress.current.processed)


def is_counted_by_fabric() -> bool:
    """Return whether ``set_epoch`` is called by Lightning Fabric's ``DataLoader`` rather than by the user.

    Fabric counts the iterations of this process. After a restart that is not the epoch, and would discard a state.
    """
    return "_FabricDataLoader" in _callers()
