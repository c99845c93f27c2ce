"""`StreamingTrainer`: the ``Trainer`` of Transformers on data sets that stream.

``Trainer`` makes its own loaders, splits their samples among the ranks, and resumes by reading through what was
consumed. This one takes a `StreamingDataset` and resumes from the position in its checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch

from wdsdist.batching.values import Batches, PackedRows
from wdsdist.errors import ArgumentError, StateError
from wdsdist.loader.accelerated import AcceleratedBatches
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.framework_guards import PLANNED
from wdsdist.loader.loader import StreamingDataLoader
from wdsdist.loader.mix import MixedDataset
from wdsdist.samples.padding import PADDING

try:
    from accelerate.utils import find_batch_size, slice_tensors
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState
except ImportError as error:
    raise ImportError('StreamingTrainer needs Transformers: pip install "wdsdist[transformers]"') from error


_COUNTS_EPOCHS = all(hasattr(Trainer, name) for name in ("_init_training_state", "_run_epoch"))
"""Whether the trainer asks for the steps of each epoch where `StreamingTrainerMixin` can answer."""


class StreamingTrainerMixin:
    """Makes any ``Trainer`` take a `StreamingDataset` for training, evaluation and prediction.

    Put it before the trainer among the bases, which handles data sets of other kinds. Samples go through the
    trainer's ``data_collator`` in the loader's workers, so give the data set a ``transform`` that makes the model's
    inputs, or a collator that does.

    Args:
        batches: how to make the batches of training, as `StreamingDataLoader` takes it, such as
            ``batching.TokenBudget(8192, length="input_ids.tokens")``. With `batching.PackedRows` the model gets the
            columns that its ``forward`` names, and there is no ``data_collator``. Evaluation has batches of a fixed
            number of samples.

    Raises:
        ArgumentError: for ``batches`` beside the trainer's own grouping by length.
        StateError: on resuming from a checkpoint that holds no position of the loader.
        StateError: on resuming with another data set, or where the world or the batch size has changed:
            the trainer counts in steps, so that samples would be left out.
    """

    def __init__(self: Any, *args: Any, batches: Batches | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        has_collator = len(args) > 2 or kwargs.get("data_collator") is not None
        self._batches = _checked(batches, self.args, has_collator)
        self.add_callback(LoaderPosition())
        self._rest: Iterator[Any] | None = None
        self._lengths: _EpochLengths | None = None
        """Of the loader of a run on planned batches."""

    @property
    def train_dataset(self) -> Any:
        """The data set to train on."""
        return self._train_dataset

    @train_dataset.setter
    def train_dataset(self, dataset: Any) -> None:
        self._train_dataset = _sized(dataset)

    def get_train_dataloader(self: Any) -> Any:
        """Return the loader of the training set."""
        if not isinstance(self.train_dataset, StreamingDataset):
            return super().get_train_dataloader()  # type: ignore[misc]
        self._rest = None
        return self._loader(
            self.train_dataset,
            self._train_batch_size,
            batches=self._batches,
            drop_last=self.args.dataloader_drop_last,
            persistent_workers=self.args.dataloader_persistent_workers,
        )

    def set_initial_training_values(self: Any, args: TrainingArguments, dataloader: Any) -> Any:
        """Return the epochs and steps of a run; of planned batches each epoch has its own number of steps."""
        values = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        self._lengths = None
        if not (_COUNTS_EPOCHS and isinstance(dataloader, StreamingDataLoader) and dataloader.planned_by):
            return values
        self._lengths = _EpochLengths(dataloader, args.gradient_accumulation_steps)
        steps = args.max_steps if args.max_steps > 0 else self._lengths.updates_in(args.num_train_epochs)
        epoch, rest = self._lengths.place(steps)
        return (epoch + (rest > 0), *values[1:-1], steps)

    def _init_training_state(self: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        epochs, batches = super()._init_training_state(*args, **kwargs)  # type: ignore[misc]
        if self._lengths is None:
            return epochs, batches
        epoch, updates = self._lengths.place(self.state.global_step)
        return epoch, 0 if self.args.ignore_data_skip else updates * self.args.gradient_accumulation_steps

    def _run_epoch(self: Any, *, epoch: int, **kwargs: Any) -> None:
        if self._lengths is not None:
            kwargs["steps_in_epoch"] = self._lengths.batches(epoch)
            kwargs["num_update_steps_per_epoch"] = self._lengths.updates(epoch)
        super()._run_epoch(epoch=epoch, **kwargs)  # type: ignore[misc]

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> Any:
        """Return the loader of an evaluation set, given itself or by its name among several."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = self.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        if not isinstance(dataset, StreamingDataset):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._loader(dataset, self.args.eval_batch_size)

    def get_test_dataloader(self: Any, test_dataset: Any) -> Any:
        """Return the loader of a data set to predict for."""
        if not isinstance(test_dataset, StreamingDataset):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self._loader(test_dataset, self.args.eval_batch_size)

    def get_batch_samples(self: Any, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """Return the next batches; in an epoch that is resumed, from the loader where the checkpoint left it.

        The trainer has then put its loader, which would read and drop what was consumed, around ours.
        """
        loader = self.callback_handler.train_dataloader
        if isinstance(loader, StreamingDataLoader) and isinstance(epoch_iterator, GeneratorType):
            if self._rest is None:
                self._rest = iter(loader)
            epoch_iterator = self._rest
        found, items = super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[misc]
        if isinstance(self._batches, PackedRows) and self.args.remove_unused_columns:
            self._set_signature_columns_if_needed()
            known = set(self._signature_columns)
            found = [{name: value for name, value in batch.items() if name in known} for batch in found]
        return found, items

    def prediction_step(self: Any, model: Any, inputs: Any, prediction_loss_only: bool, *rest: Any, **more: Any) -> Any:
        """Return loss, logits and labels of a batch of evaluation; the loss is exact in the last batch too.

        There ranks may have padding, and the trainer weighs their losses as if all batches were full. Where padding
        is marked, each rank computes its loss anew, of what is not padding, and all return the mean over all samples.
        """
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, *rest, **more)  # type: ignore[misc]
        batches = self.accelerator.gradient_state.active_dataloader
        at_end = isinstance(batches, AcceleratedBatches) and batches.end_of_dataloader and batches.remainder > 0
        if loss is None or not at_end:
            return loss, logits, labels
        size = find_batch_size(inputs)
        # Padding ends what the last ranks have.
        own = min(max(batches.remainder - self.accelerator.process_index * size, 0), size)
        if batches.remainder < self.accelerator.num_processes * size:
            # On all ranks, for the model may communicate; a rank with nothing but padding adds no more than a zero.
            part = slice_tensors(inputs, slice(0, own or size))
            loss, _, _ = super().prediction_step(model, part, True, *rest, **more)  # type: ignore[misc]
        loss = loss.mean() * own if own else torch.zeros_like(loss.mean())
        total = self.accelerator.gather(loss[None]).sum() / batches.remainder
        return total, logits, labels

    def _loader(
        self: Any,
        dataset: Any,
        batch_size: int,
        *,
        drop_last: bool = False,
        persistent_workers: bool = False,
        batches: Batches | None = None,
    ) -> Any:
        """Return a prepared loader, by default with workers that end: Accelerate keeps each evaluation's loader."""
        collator = _Unmarked(self.data_collator) if dataset.mark_padding else self.data_collator
        loader = StreamingDataLoader(
            _sized(dataset),
            batch_size,
            batches=batches,
            drop_last=drop_last,
            persistent_workers=persistent_workers,
            collate_fn=None if isinstance(batches, PackedRows) else collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )
        return self.accelerator.prepare(loader)


@dataclass(frozen=True, slots=True)
class _EpochLengths:
    """The batches and the updates of each epoch of planned batches."""

    loader: StreamingDataLoader
    accumulated: int
    """Batches of an update."""

    def batches(self, epoch: int) -> int:
        return self.loader.planned_length(epoch)

    def updates(self, epoch: int) -> int:
        return max(1, -(-self.batches(epoch) // self.accumulated))

    def updates_in(self, epochs: float) -> int:
        """Return the updates of a number of epochs, the last of which may be played in part."""
        whole = math.floor(epochs)
        part = math.ceil((epochs - whole) * self.updates(whole)) if epochs > whole else 0
        return sum(map(self.updates, range(whole))) + part

    def place(self, updates: int) -> tuple[int, int]:
        """Return the epoch that is reached after so many updates, and the updates in it."""
        epoch = 0
        while updates >= (count := self.updates(epoch)):
            epoch, updates = epoch + 1, updates - count
        return epoch, updates


class StreamingTrainer(StreamingTrainerMixin, Trainer):  # type: ignore[misc]
    """A ``Trainer`` that takes a `StreamingDataset`: see `StreamingTrainerMixin`."""


def _checked(batches: Batches | None, args: TrainingArguments, has_collator: bool) -> Batches | None:
    """Return how batches are made; raise if the trainer has another say in the same thing."""
    if batches is None:
        return None
    theirs = getattr(args, "train_sampling_strategy", "random")
    if theirs != "random" or getattr(args, "group_by_length", False):
        raise ArgumentError(
            f"batches={batches} and train_sampling_strategy={theirs!r} both decide which samples a batch has: leave "
            f"out the latter",
            argument="batches",
        )
    if has_collator and not batches.takes_collate_fn:
        raise ArgumentError(
            f"{type(batches).__name__} makes the batches itself: leave out data_collator, or pass TokenBudget instead",
            argument="batches",
        )
    return batches


@dataclass(frozen=True, slots=True)
class _Unmarked:
    """A data collator that gets samples without the mark of padding, which would be one more input of the model."""

    collator: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> Any:
        if isinstance(samples[0], dict):
            samples = [{name: value for name, value in one.items() if name != PADDING} for one in samples]
        return self.collator(samples)


class SizedDataset(StreamingDataset):
    """A data set with the length of all ranks together, for which a ``Trainer`` asks before it has a loader."""

    def __len__(self) -> int:
        return self.num_samples


def _sized(dataset: Any) -> Any:
    if type(dataset) not in (StreamingDataset, MixedDataset):
        return dataset
    view = object.__new__(SizedDataset)
    view.__dict__.update(dataset.__dict__)
    return view


class LoaderPosition(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps the state of the training loader in ``trainer_state.json``, and gives it back to the loader."""

    def __init__(self) -> None:
        self._loader: Any = None
        self._counted: dict[str, Any] = {}
        """What the count of steps in an epoch of planned batches depends on."""

    def state(self) -> dict[str, Any]:
        """Return the state of this callback for a checkpoint."""
        loader = self._loader if isinstance(self._loader, StreamingDataLoader) else None
        position = None if loader is None else loader.state_dict()
        return {"args": {}, "attributes": {"position": position, "counted": self._counted}}

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **others: Any,
    ) -> None:
        """Load the checkpoint's position into the loader."""
        self._loader = train_dataloader
        if not isinstance(train_dataloader, StreamingDataLoader):
            return
        if train_dataloader.planned_by:
            self._counted = _counted(train_dataloader, args)
            if state.num_train_epochs > 1 and not _COUNTS_EPOCHS:
                raise ArgumentError(
                    f"this Trainer would end each epoch after as many batches as the first one has, but epochs of "
                    f"{PLANNED} differ, and {state.num_train_epochs} epochs are asked for: use a later release of "
                    "Transformers, such as 5.23"
                )
        if not state.global_step:
            return
        kept = state.stateful_callbacks.get(type(self).__name__) or {}
        attributes = kept.get("attributes", {})
        position = attributes.get("position")
        if position is None:
            raise StateError(
                "the checkpoint holds no position of the loader, because no StreamingTrainer wrote it: "
                "start a new run from its weights, without resume_from_checkpoint"
            )
        if train_dataloader.planned_by and not args.ignore_data_skip and attributes.get("counted") != self._counted:
            raise StateError(
                f"the checkpoint counts its steps by {attributes.get('counted')}, this run by {self._counted}: resume "
                "with the same, or pass ignore_data_skip=True to play the rest of that epoch, where the trainer's "
                "count of steps will be off"
            )
        if train_dataloader.planned_by:
            train_dataloader.load_state_dict(position)
        else:
            _resume(train_dataloader, position, args, state.global_step)


def _counted(loader: StreamingDataLoader, args: TrainingArguments) -> dict[str, Any]:
    world, accumulated = loader.dataset.identity().world_size, args.gradient_accumulation_steps
    return {"world_size": world, "gradient_accumulation_steps": accumulated, "batches": loader.planned_by}


def _resume(loader: StreamingDataLoader, position: dict[str, Any], args: TrainingArguments, step: int) -> None:
    """Load a position that is where the trainer takes the run to be after ``step`` updates; raise where it is not."""
    updates = -(-len(loader) // args.gradient_accumulation_steps)
    batches = step % updates * args.gradient_accumulation_steps
    samples = loader.dataset.num_samples
    global_batch = int(loader.batch_size or 1) * loader.dataset.identity().world_size
    expected = step // updates, batches * global_batch
    found = position["epoch"], position["consumed"]
    if found[1] == samples:  # as earlier releases saved the end of an epoch
        found = found[0] + 1, 0
    if found != expected and not args.ignore_data_skip:
        raise StateError(
            f"after {step:,} updates of {global_batch * args.gradient_accumulation_steps:,} samples the trainer takes "
            f"the run to be in epoch {expected[0]} with {expected[1]:,} samples consumed, but the checkpoint has epoch "
            f"{found[0]} and {found[1]:,}: resume with the world, batch size and gradient_accumulation_steps that it "
            "was written with, or pass ignore_data_skip=True to play the rest of that epoch, where the trainer's count "
            "of steps will be off"
        )
    loader.load_state_dict(position)
