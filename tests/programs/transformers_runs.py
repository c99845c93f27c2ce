"""What each rank does in the tests of the Trainer of Transformers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import wdsdist
from tests.programs.accelerate_runs import as_launched
from wdsdist.batching import Buckets, PackedRows, TokenBudget, batcher
from wdsdist.errors import WdsdistError

_SEEN: list[list[int]] = []


class Model(nn.Module):
    """Notes what it sees, and answers with the inputs themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        _SEEN.append(labels.tolist())
        return {"loss": self.layer(inputs[:, None]).mean(), "logits": inputs}


def as_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": float(sample["cls"]), "labels": sample["cls"]}


def make_dataset(shards: str, **more: Any) -> wdsdist.StreamingDataset:
    return wdsdist.StreamingDataset(shards, decode=True, transform=as_inputs, **more)


def make_trainer(shards: str, folder: str, *, plain: bool = False, **options: Any) -> Any:
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments

    from wdsdist.integrations.transformers import StreamingTrainer

    AcceleratorState._reset_state(reset_partial_state=True)
    quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False}
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    own = {name: options.pop(name) for name in ("batches", "data_collator") if name in options}
    arguments = TrainingArguments(output_dir=folder, **{**quiet, **sizes, **options})
    kind = Trainer if plain else StreamingTrainer
    evaluated = make_dataset(shards, shuffle=False)
    return kind(model=Model(), args=arguments, train_dataset=make_dataset(shards), eval_dataset=evaluated, **own)


def seen_by(function: Any, *args: Any, **options: Any) -> list[list[int]]:
    """Return what the model has seen in a call."""
    _SEEN.clear()
    function(*args, **options)
    return list(_SEEN)


def training(shards: str, folder: str) -> dict[str, Any]:
    """Train two epochs with checkpoints on the way, and resume from each."""
    as_launched()
    options: dict[str, Any] = {"num_train_epochs": 2, "save_steps": 1, "gradient_accumulation_steps": 3}
    trainer = make_trainer(shards, folder, dataloader_num_workers=2, **options)
    found: dict[str, Any] = {"all": seen_by(trainer.train), "steps": [trainer.state.global_step], "rest": {}}
    for step in (1, 2, 3, 4, 5):
        again = make_trainer(shards, folder, **{**options, "save_steps": 100})
        found["rest"][step] = seen_by(again.train, resume_from_checkpoint=f"{folder}/checkpoint-{step}")
        found["steps"].append(again.state.global_step)
    found["again"] = seen_by(again.train, resume_from_checkpoint=f"{folder}/checkpoint-5")
    return found


def training_on_planned_batches(shards: str, folder: str) -> dict[str, Any]:
    """Train an epoch of planned batches, resume in its middle, and return what is refused."""
    as_launched()
    options: dict[str, Any] = {"num_train_epochs": 1, "save_steps": 5}
    batches = TokenBudget(8, length="cls.bytes")
    trainer = make_trainer(shards, folder, batches=batches, dataloader_num_workers=1, **options)
    found: dict[str, Any] = {"all": seen_by(trainer.train), "steps": trainer.state.global_step}
    again = make_trainer(shards, folder, batches=batches, **options)
    found["rest"] = seen_by(again.train, resume_from_checkpoint=f"{folder}/checkpoint-5")
    options = {**options, "num_train_epochs": 1}
    cases: dict[str, dict[str, Any]] = {
        "accumulation": {"gradient_accumulation_steps": 2},
        "budget": {"batches": TokenBudget(9, length="cls.bytes")},
        "both": {"train_sampling_strategy": "group_by_length"},
        "collator": {"batches": PackedRows(4, tokens=16, length="cls.bytes"), "data_collator": list},
    }
    for case, change in cases.items():
        try:
            trainer = make_trainer(shards, folder, **{"batches": batches, **options, **change})
            found[case] = seen_by(trainer.train, resume_from_checkpoint=f"{folder}/checkpoint-5")
        except WdsdistError as error:
            found[case] = f"{type(error).__name__}: {error}"
    return found


@mock.patch.object(batcher, "BLOCK_STEPS", 1)  # so that epochs differ
def epochs_of_planned_batches(shards: str, folder: str, epochs: int) -> dict[str, Any]:
    """Train several epochs of planned batches, with two of them an update, and resume after some updates."""
    as_launched()
    options: dict[str, Any] = {"num_train_epochs": epochs, "batches": Buckets(3, by="cls.bytes")}
    options |= {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    trainer = make_trainer(shards, folder, save_steps=4, **options)
    loader = trainer.get_train_dataloader()
    lengths = [loader.planned_length(epoch) for epoch in range(epochs)]
    found: dict[str, Any] = {"all": seen_by(trainer.train), "lengths": lengths, "steps": trainer.state.global_step}
    found["rest"] = {}
    for step in (4, found["steps"] // 4 * 4):
        again = make_trainer(shards, folder, save_steps=1000, **options)
        found["rest"][step] = seen_by(again.train, resume_from_checkpoint=f"{folder}/checkpoint-{step}")
    return found


def evaluations(shards: str, folder: str) -> dict[str, Any]:
    """Evaluate and predict with batches of several sizes, and return what the trainer makes of each."""
    as_launched()
    found: dict[str, Any] = {}
    for batch_size in (4, 31, 64):
        trainer = make_trainer(shards, folder, per_device_eval_batch_size=batch_size)
        with torch.no_grad():  # the loss is the mean of the inputs
            trainer.model.layer.weight.fill_(1.0)
            trainer.model.layer.bias.zero_()
        trainer.compute_metrics = lambda predicted: {"labels": sorted(predicted.label_ids.tolist())}
        dataset = make_dataset(shards, shuffle=False, mark_padding=True)
        predicted = trainer.predict(dataset)
        metrics = trainer.evaluate(dataset)
        found[str(batch_size)] = {
            "predicted": predicted.predictions.tolist(),
            "labels": predicted.label_ids.tolist(),
            "evaluated": metrics["eval_labels"],
            "losses": [metrics["eval_loss"], predicted.metrics["test_loss"]],
        }
    return found


def refusals(shards: str, folder: str) -> dict[str, Any]:
    """Train with what would lose samples, and return what each rank is told."""
    as_launched()
    told: dict[str, Any] = {}

    def attempt(name: str, function: Any, *args: Any, **options: Any) -> None:
        try:
            told[name] = seen_by(function, *args, **options)
        except WdsdistError as error:
            told[name] = f"{type(error).__name__}: {error}"

    attempt("bare", make_trainer(shards, folder, plain=True, max_steps=2).train)
    plain = make_trainer(shards, folder, plain=True, max_steps=2)
    attempt("bare, evaluated", plain.evaluate)
    make_trainer(shards, folder, max_steps=2, save_steps=1).train()
    path = f"{folder}/checkpoint-1"
    smaller: dict[str, Any] = {"max_steps": 3, "per_device_train_batch_size": 2}
    attempt("another batch", make_trainer(shards, folder, **smaller).train, resume_from_checkpoint=path)
    smaller["ignore_data_skip"] = True
    warnings.filterwarnings("ignore", ".*")
    attempt("the rest", make_trainer(shards, folder, **smaller).train, resume_from_checkpoint=path)
    if torch.distributed.get_rank() == 0:
        state = Path(path, "trainer_state.json")
        state.write_text(state.read_text().replace("LoaderPosition", "Another"))
    torch.distributed.barrier()
    attempt("foreign", make_trainer(shards, folder, max_steps=3).train, resume_from_checkpoint=path)
    return told
