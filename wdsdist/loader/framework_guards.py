"""What training frameworks do to a loader and its data set, and what it takes to stay right under them.

Most need nothing: a loader is a ``DataLoader`` with an exact length, a sampler that knows ``set_epoch``, and a state.
Here is what some do beyond that. No framework is imported before it has shown itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from types import FrameType
from typing import Any

from wdsdist.errors import LoaderStateError

_SPLITTING_MODULES = ("accelerate.data_loader", "transformers.trainer_pt_utils")

_SPLITTERS = ("split_by_node", "split_by_worker")
"""Stages of webdataset's pipelines that drop what is another's."""


def expect_a_length() -> None:
    """Keep Lightning from warning that the length of an ``IterableDataset`` may be wrong: a loader's is exact."""
    warnings.filterwarnings("ignore", message="Your `IterableDataset` has `__len__` defined", category=UserWarning)


def is_counted_by_fabric() -> bool:
    """Tell whether Lightning Fabric's loader has asked the caller of this for an epoch.

    It asks for the number of the iteration in this process. After a restart that is not the epoch, and would discard
    a loaded state.
    """
    nearest = islice(_above(sys._getframe()), 3)
    return any(type(frame.f_locals.get("self")).__name__ == "_FabricDataLoader" for frame in nearest)


def refuse_second_split(num_replicas: Callable[[], int], *, has_loader: bool) -> None:
    """Raise where Accelerate or a Transformers ``Trainer`` would split a rank's samples among the ranks again.

    Their wrappers leave no mark on a data set, but they stand on the stack when they ask it for an epoch or for
    samples, and when workers are forked or are sent it. They iterate a plain data set, and keep a part of it.

    Args:
        num_replicas: tells for how many ranks the data set is already split; with one, the wrappers do no harm.
        has_loader: whether it is the data set of a `StreamingDataLoader`, which only that can iterate.
    """
    for frame in _above(sys._getframe()):
        if frame.f_globals.get("__name__") not in _SPLITTING_MODULES:
            continue
        owner: Any = frame.f_locals.get("self")
        name = type(owner).__name__
        if name == "IterableDatasetShard":
            parts = owner.num_processes
        elif name == "DataLoaderDispatcher":
            from accelerate.state import PartialState

            parts = PartialState().num_processes  # its own, which it does not have yet while it is made
        elif name == "SkipDataLoader" and has_loader:
            raise LoaderStateError(
                "Accelerate's skip_first_batches cannot skip in a StreamingDataLoader: load its state, which continues "
                "where it was saved without reading what was consumed (Accelerator.load_state does so)"
            )
        else:
            continue
        if parts > 1 and num_replicas() > 1:
            raise LoaderStateError(
                f"{name} splits this data set among {parts} ranks, which StreamingDataset has done already for "
                f"{num_replicas()}: each rank would see a part of its part. With Accelerate, prepare a "
                "wdsdist.StreamingDataLoader instead; with Transformers, train with StreamingTrainer of "
                "wdsdist.integrations.transformers instead of Trainer, or put its StreamingTrainerMixin before yours: "
                "class MyTrainer(StreamingTrainerMixin, Trainer): pass"
            )


def refuse_splitter() -> None:
    """Raise where a stage of webdataset's pipelines would split a worker's samples among ranks or workers again.

    Stages draw from one another, so that it stands on the stack when the first sample is asked for, wherever in the
    pipeline it comes.
    """
    for frame in _above(sys._getframe()):
        name = frame.f_code.co_name
        if name in _SPLITTERS and frame.f_globals.get("__name__") == "webdataset.shardlists":
            raise LoaderStateError(
                f"{name} would split the samples of this worker once more, and all but its own part would be lost: "
                f"take it out of the pipeline, for a StreamingDataset splits by rank and worker itself"
            )


def refuse_fetching_ahead() -> None:
    """Raise where Lightning's Trainer would train from torchdata's ``StatefulDataLoader`` over a plain data set.

    That has no length, so that Lightning, to know the last batch, takes each batch before the one ahead of it is
    trained on. Its checkpoints count that batch as done, and a resumed run would never see it.
    """
    has_state = False
    for frame in _above(sys._getframe()):
        name = type(frame.f_locals.get("self")).__name__
        if name == "_EvaluationLoop":
            return  # nobody saves where it stands
        has_state |= name == "StatefulDataLoader"
        if has_state and name == "_FitLoop":
            raise LoaderStateError(
                "under Lightning's Trainer checkpoints of a StatefulDataLoader without a length are one batch ahead, "
                "and a resumed run would leave that batch out: train from a wdsdist.StreamingDataLoader"
            )


class KnownToAccelerate:
    """What ``Accelerator.prepare`` asks of a loader, and what makes it save and load the loader's state."""

    use_stateful_dataloader = True
    _is_accelerated = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether the loader is to be left as it is, which Accelerate asks when it is handed one.

        Otherwise it would split the batches among the ranks a second time: each rank would see a part of its part.
        """
        # A debugger that looks at all attributes has not prepared anything.
        self._is_accelerated |= str(sys._getframe(1).f_globals.get("__name__")).startswith("accelerate.")
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate says so too, once it has asked."""


class AcceleratedBatches(Iterator[Any]):
    """The batches of a loader that Accelerate has prepared, as its own loaders hand them out.

    They are on Accelerate's device, and while they last Accelerate can ask whether the current one is the last, which
    decides when accumulated gradients are applied. It holds no more than a weak reference to this.
    """

    end_of_dataloader = False
    remainder = -1
    """Accelerate would drop this many repeated samples from the end of what it gathers; ours do not lie there."""

    def __init__(self, batches: Iterator[Any], is_at_end: Callable[[], bool], *, non_blocking: bool) -> None:
        from accelerate.state import GradientState, PartialState

        self._batches = batches
        self._is_at_end = is_at_end
        self._non_blocking = non_blocking
        self._gradients = GradientState()
        self._device = PartialState().device

    def __next__(self) -> Any:
        from accelerate.utils import send_to_device

        # Those of an evaluation that was given up in between are gone; these are the ones in use again.
        others = [one for one in self._gradients.dataloader_references[1:] if one not in (None, self)]
        self._gradients.dataloader_references = [None, *others]
        batch = send_to_device(next(self._batches), self._device, non_blocking=self._non_blocking)
        self.end_of_dataloader = self._is_at_end()
        self._gradients.dataloader_references = [None, *others, self]
        return batch


def _above(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames that led to a frame, the nearest first."""
    above = frame.f_back
    while above is not None:
        yield above
        above = above.f_back
