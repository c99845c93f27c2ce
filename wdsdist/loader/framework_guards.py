"""Misuse by training frameworks that would lose samples without a word, refused.

A framework leaves no mark on a data set that it wraps. But it stands on the call stack when it asks for samples, and
when workers are spawned. The stack is looked at once an iteration, and only if a framework is imported that needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from wdsdist.errors import StateError

if TYPE_CHECKING:
    from wdsdist.loader.dataset import StreamingDataset


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
    """Return whether Lightning Fabric's loader asks the caller of this for an epoch.

    Fabric counts the iterations of this process. After a restart that is not the epoch, and would discard a state.
    """
    return "_FabricDataLoader" in _callers()
