"""Guards against misuse by training frameworks, and the attributes of a loader that these honour.

Most need nothing: a loader is a ``DataLoader`` with an exact length, a sampler that knows ``set_epoch``, and a state.
Here is what some do beyond that. No framework is imported before it has shown itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from wdsdist.errors import StateError

if TYPE_CHECKING:
    from wdsdist.loader.loader import EpochIterator

_SPLITTING_MODULES = ("accelerate.data_loader", "transformers.trainer_pt_utils")
_SPLITTING_STAGES = ("split_by_node", "split_by_worker")
"""Stages of webdataset's pipelines that drop what is another's."""

PLANNED = "planned batches (batches= of a loader)"


def expect_a_length() -> None:
    """Keep Lightning from warning that the length of an ``IterableDataset`` may be wrong: a loader's is exact."""
    warnings.filterwarnings("ignore", message="Your `IterableDataset` has `__len__` defined", category=UserWarning)


def refuse_copied_collation(samples: Any) -> NoReturn:
    """Stand for ``collate_fn`` in a `StreamingDataLoader`, and raise where another loader has copied it from there."""
    raise StateError(
        "a loader that is made of the attributes of a StreamingDataLoader, as Accelerate's skip_first_batches makes "
        "one, cannot make its batches. To skip batches, load a state, which continues where it was saved without "
        "reading what was consumed (Accelerator.load_state does so); for other loaders, pass the StreamingDataset and "
        "a collate_fn of your own"
    )


def refuse_wrappers(num_replicas: Callable[[], int], *, nearest: int | None = None) -> None:
    """Raise where a framework would split a rank's samples a second time, or save a place that is a batch ahead.

    Wrappers leave no mark on a data set. But they stand on the call stack when they ask it for an epoch or for
    samples, and when workers are forked or are sent it.

    Args:
        num_replicas: returns among how many ranks the data set is split.
        nearest: how many callers to look at; by default all.
    """
    is_stateful = is_evaluation = False
    for kind, owner, frame in islice(_callers(sys._getframe(1)), nearest):
        module = frame.f_globals.get("__name__")
        if module in _SPLITTING_MODULES:
            _refuse_split(kind, owner, num_replicas)
        elif module == "webdataset.shardlists" and frame.f_code.co_name in _SPLITTING_STAGES:
            raise StateError(
                f"{frame.f_code.co_name} would split the samples of this worker once more, and all but its own part "
                f"would be lost: take it out of the pipeline, for a StreamingDataset splits by rank and worker itself"
            )
        is_stateful |= kind == "StatefulDataLoader"
        is_evaluation |= kind == "_EvaluationLoop"  # where nobody saves
        if kind == "_FitLoop" and is_stateful and not is_evaluation:
            # Without a length Lightning takes each batch before the one ahead of it is trained on, to know the last.
            raise StateError(
                "under Lightning's Trainer checkpoints of a StatefulDataLoader without a length are one batch ahead, "
                "and a resumed run would leave that batch out: train from a wdsdist.StreamingDataLoader"
            )


def _refuse_split(kind: str, owner: Any, num_replicas: Callable[[], int]) -> None:
    if kind == "IterableDatasetShard":
        parts = owner.num_processes
    elif kind == "DataLoaderDispatcher":
        from accelerate.state import PartialState

        parts = PartialState().num_processes  # its own, which it does not have yet while it is made
    else:
        return
    if parts > 1 and num_replicas() > 1:
        raise StateError(
            f"{kind} splits this data set among {parts} ranks, which StreamingDataset has done already for "
            f"{num_replicas()}: each rank would see a part of its part. With Accelerate, prepare a "
            "wdsdist.StreamingDataLoader instead; with Transformers, train with StreamingTrainer of "
            "wdsdist.integrations.transformers instead of Trainer, or put its StreamingTrainerMixin before yours: "
            "class MyTrainer(StreamingTrainerMixin, Trainer): pass"
        )


def refuse_random_split(length: int, num_samples: int) -> None:
    """Raise where ``torch.utils.data.random_split`` asks a data set for its length, which is that of a rank's part.

    Its subsets would be of the first ``length`` samples, the same on every rank: the others would never be seen.
    """
    asking = sys._getframe(2)
    if (asking.f_globals.get("__name__"), asking.f_code.co_name) == ("torch.utils.data.dataset", "random_split"):
        raise StateError(
            f"random_split would divide the first {length:,} of {num_samples:,} samples alone, alike on every rank: "
            f"make views, as in train, val = wdsdist.open(shards).split(train=0.9, val=0.1), and a StreamingDataset of "
            f"each"
        )


def refuse_first_length() -> None:
    """Raise where Lightning would end every epoch of planned batches after as many as the first one has.

    The epochs of planned batches differ by some, and it asks a loader for its length once, unless it is to reload.
    """
    for kind, owner, _ in _callers(sys._getframe(1)):
        if kind == "_EvaluationLoop":
            return
        if kind != "_FitLoop":
            continue
        trainer = owner.trainer
        asks_once = trainer.max_epochs != 1 and trainer.reload_dataloaders_every_n_epochs != 1
        if asks_once and trainer.limit_train_batches == 1.0:
            raise StateError(
                f"Lightning would end each epoch after as many batches as the first one has, but epochs of {PLANNED} "
                f"differ, and max_epochs is {trainer.max_epochs}: pass reload_dataloaders_every_n_epochs=1 to the "
                "Trainer, which then asks for the length of each; or limit_train_batches=<a number that every epoch "
                "has>"
            )


def epoch_that_lightning_sets_up() -> int | None:
    """Return the epoch that Lightning's ``Trainer`` is about to start, where it asks for a length before it says so."""
    for kind, owner, frame in _callers(sys._getframe(1)):
        if kind == "_FitLoop" and frame.f_code.co_name == "setup_data":
            return int(owner.epoch_progress.current.processed)
    return None


def is_counted_by_fabric() -> bool:
    """Tell whether Lightning Fabric's loader has asked the caller of this for an epoch.

    It asks for the number of the iteration in this process. After a restart that is not the epoch, and would discard
    a loaded state.
    """
    return any(kind == "_FabricDataLoader" for kind, *_ in islice(_callers(sys._getframe(1)), 2))


def _callers(frame: FrameType) -> Iterator[tuple[str, Any, FrameType]]:
    """Yield the frames that led to a frame, the nearest first: the name of the type of its ``self``, that, and it."""
    above = frame.f_back
    while above is not None:
        owner = above.f_locals.get("self")
        yield type(owner).__name__, owner, above
        above = above.f_back


class KnownToAccelerate:
    """The attributes of a loader that ``Accelerator.prepare`` honours: leave it as it is, save and load its state."""

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
    """Iterate over a loader that Accelerate has prepared, as its own loaders do.

    Batches are on Accelerate's device, and while they last Accelerate can ask whether the current one is the last,
    which decides when accumulated gradients are applied. It holds no more than a weak reference to this.
    """

    end_of_dataloader = False
    remainder = -1
    """Samples that Accelerate's `gather_for_metrics` keeps of the last batch; -1 for all."""

    def __init__(self, batches: EpochIterator, is_at_end: Callable[[], bool], *, non_blocking: bool) -> None:
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
        self.remainder = self._batches.last_global_batch
        self._gradients.dataloader_references = [None, *others, self]
        return batch
