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
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.foreign_loaders import AcceleratedBatches
from wdsdist.loader.loader import StreamingDataLoader
from wdsdist.samples.collate import PADDING

try:
    from accelerate.utils import find_batch_size, slice_tensors
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import ExportableState, TrainerState
except ImportError as error:
    raise ImportError("StreamingTrainer needs Transformers: pip install transformers accelerate") from error

_COUNTS_EPOCHS = all(hasattr(Trainer, name) for name in ("_init_training_state", "_run_epoch"))
"""Whether the trainer asks for the steps of each epoch in methods that `StreamingTrainerMixin` can override."""


class StreamingTrainerMixin:
    """Makes any ``Trainer`` take a `StreamingDataset` for training, evaluation and prediction.

    Put it before the trainer among the bases, which handles data sets of other kinds. The loader's workers call the
    trainer's ``data_collator`` on samples, so let the data set's ``transform`` or the collator make the model's inputs.

    Args:
        batches: how to make the batches of training, as `StreamingDataLoader` takes it, such as
            ``batching.TokenBudget(8192, length="input_ids.tokens")``. With `batching.PackedRows` the model gets the
            columns that its ``forward`` names, and there is no ``data_collator``. Evaluation has batches of a fixed
            number of samples.

    Raises:
        ArgumentError: ``batches`` are combined with the trainer's own grouping by length.
        StateError: on resuming from a checkpoint without the position of the loader, with another data set, or if the
            world or the batch size has changed: the trainer counts in steps, so samples would be left out.
    """

    def __init__(self: Any, *args: Any, batches: Batches | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batches = batches
        theirs = getattr(self.args, "train_sampling_strategy", "random")
        if batches is not None and (theirs != "random" or getattr(self.args, "group_by_length", False)):
            raise ArgumentError(
                f"batches={batches} and train_sampling_strategy={theirs!r} both decide which samples a batch has: "
                f"leave out the latter",
                argument="batches",
            )
        has_collator = len(args) > 2 or kwargs.get("data_collator") is not None
        if batches is not None and has_collator and not batches.takes_collate_fn:
            raise ArgumentError(
                f"{type(batches).__name__} makes the batches itself: leave out data_collator, or pass TokenBudget "
                f"instead",
                argument="batches",
            )
        self.add_callback(LoaderPosition())
        self._rest: Iterator[Any] | None = None
        self._lengths: _EpochLengths | None = None
        """The lengths of epochs, in a run on planned batches."""

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

    def _loader(self: Any, dataset: Any, batch_size: int, *, batches: Batches | None = None, **options: Any) -> Any:
        """Return a prepared loader, by default with workers that end: Accelerate keeps each evaluation's loader."""
        collator = _Unmarked(self.data_collator) if dataset.mark_padding else self.data_collator
        loader = StreamingDataLoader(
            dataset.of_all_ranks(),  # which the trainer asks for its length
            batch_size if batches is None else None,
            batches=batches,
            **{"drop_last": False, "persistent_workers": False, **options},
            collate_fn=None if isinstance(batches, PackedRows) else collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )
        return self.accelerator.prepare(loader)

    def get_batch_samples(self: Any, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """Return the next batches; in a resumed epoch, from the position of the checkpoint.

        The trainer has then wrapped the loader in its own, which would read and drop what was consumed.
        """
        loader = self.callback_handler.train_dataloader
        if isinstance(loader, StreamingDataLoader) and isinstance(epoch_iterator, GeneratorType):
            if self._rest is None:
                self._rest = iter(loader)
            epoch_iterator = self._rest
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[misc]
        if isinstance(self._batches, PackedRows) and self.args.remove_unused_columns:
            self._set_signature_columns_if_needed()
            known = set(self._signature_columns)
            batches = [{name: value for name, value in batch.items() if name in known} for batch in batches]
        return batches, items

    def prediction_step(self: Any, model: Any, inputs: Any, prediction_loss_only: bool, *rest: Any, **more: Any) -> Any:
        """Return loss, logits and labels of a batch of evaluation; the loss is exact in the last batch too.

        Ranks may have padding there, and the trainer weighs losses as if all batches were full. If padding is marked,
        each rank computes the loss of its samples without padding, and all return the mean over all samples.
        """
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, *rest, **more)  # type: ignore[misc]
        batches = self.accelerator.gradient_state.active_dataloader
        at_end = isinstance(batches, AcceleratedBatches) and batches.end_of_dataloader and batches.remainder > 0
        if loss is None or not at_end:
            return loss, logits, labels
        size = find_batch_size(inputs)
        own = min(max(batches.remainder - self.accelerator.process_index * size, 0), size)  # padding comes last
        if batches.remainder < self.accelerator.num_processes * size:
            # On all ranks, for the model may communicate; a rank with nothing but padding adds no more than a zero.
            part = slice_tensors(inputs, slice(0, own or size))
            loss, _, _ = super().prediction_step(model, part, True, *rest, **more)  # type: ignore[misc]
        loss = loss.mean() * own if own else torch.zeros_like(loss.mean())
        total = self.accelerator.gather(loss[None]).sum() / batches.remainder
        return total, logits, labels

    # Each epoch of planned batches has its own number of steps.

    def set_initial_training_values(self: Any, args: TrainingArguments, dataloader: Any) -> Any:
        """Return the epochs and steps of a run."""
        values = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        self._lengths = None
        if not (_COUNTS_EPOCHS and isinstance(dataloader, StreamingDataLoader) and dataloader.planned_by):
            return values
        self._lengths = _EpochLengths(dataloader, args.gradient_accumulation_steps)
        steps = args.max_steps if args.max_steps > 0 else self._lengths.updates_in(args.num_train_epochs)
        epoch, rest = self._lengths.position(steps)
        return (epoch + (rest > 0), *values[1:-1], steps)

    def _init_training_state(self: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        epochs, batches = super()._init_training_state(*args, **kwargs)  # type: ignore[misc]
        if self._lengths is None:
            return epochs, batches
        epoch, updates = self._lengths.position(self.state.global_step)
        return epoch, 0 if self.args.ignore_data_skip else updates * self.args.gradient_accumulation_steps

    def _run_epoch(self: Any, *, epoch: int, **kwargs: Any) -> None:
        if self._lengths is not None:
            kwargs["steps_in_epoch"] = self._lengths.batches(epoch)
            kwargs["num_update_steps_per_epoch"] = self._lengths.updates(epoch)
        super()._run_epoch(epoch=epoch, **kwargs)  # type: ignore[misc]


class StreamingTrainer(StreamingTrainerMixin, Trainer):  # type: ignore[misc]
    """A ``Trainer`` that takes a `StreamingDataset`: see `StreamingTrainerMixin`."""


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
        """Return the updates of a number of epochs, the last of which may be partial."""
        whole = math.floor(epochs)
        part = math.ceil((epochs - whole) * self.updates(whole)) if epochs > whole else 0
        return sum(map(self.updates, range(whole))) + part

    def position(self, updates: int) -> tuple[int, int]:
        """Return the epoch that is reached after so many updates, and the updates in it."""
        epoch = 0
        while updates >= (count := self.updates(epoch)):
            epoch, updates = epoch + 1, updates - count
        return epoch, updates


@dataclass(frozen=True, slots=True)
class _Unmarked:
    """A data collator that gets samples without the mark of padding, which would be one more input of the model."""

    collator: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> Any:
        if isinstance(samples[0], dict):
            samples = [{name: value for name, value in sample.items() if name != PADDING} for sample in samples]
        return self.collator(samples)


class LoaderPosition(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Saves the state of the training loader in ``trainer_state.json``, and loads it from there."""

    def __init__(self) -> None:
        self._loader: Any = None
        self._counted: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        """Return the state of this callback for a checkpoint."""
        position = self._loader.state_dict() if isinstance(self._loader, StreamingDataLoader) else None
        return {"args": {}, "attributes": {"position": position, "counted": self._counted}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: Any, train_dataloader: Any = None, **others: Any
    ) -> None:
        """Load the checkpoint's position into the loader; raise `StateError` if the trainer counts other steps."""
        self._loader = loader = train_dataloader
        if not isinstance(loader, StreamingDataLoader):
            return
        if loader.planned_by and state.num_train_epochs > 1 and not _COUNTS_EPOCHS:
            raise ArgumentError(
                f"this Trainer would end each epoch after as many batches as the first one has, but epochs of planned "
                f"batches differ, and {state.num_train_epochs} epochs are asked for: use a later release of "
                "Transformers, such as 5.23"
            )
        # What the trainer's count of steps depends on.
        self._counted = {
            "world_size": loader.dataset.identity().world_size,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "batches": loader.planned_by or f"batch_size={loader.batch_size}",
        }
        if not state.global_step:
            return
        saved = (state.stateful_callbacks.get(type(self).__name__) or {}).get("attributes", {})
        if saved.get("position") is None:
            raise StateError(
                "the checkpoint holds no position of the loader, because no StreamingTrainer wrote it: "
                "start a new run from its weights, without resume_from_checkpoint"
            )
        if saved["counted"] != self._counted and not args.ignore_data_skip:
            raise StateError(
                f"the checkpoint counts its steps by {saved['counted']}, this run by {self._counted}: resume with the "
                "same, or pass ignore_data_skip=True to train on the rest of that epoch, with another count of steps"
            )
        loader.load_state_dict(saved["position"])
