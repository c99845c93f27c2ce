"""What each rank does in the tests of Lightning and Fabric."""

from __future__ import annotations

import os
import warnings
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor, nn, optim

import wdsdist
from wdsdist.batching import Buckets, TokenBudget, batcher

Seen = list[tuple[int, list[int]]]

# Of Lightning's warnings, those that a run as small as these deserves.
_DESERVED = "does not have many workers|Be aware that when using `ckpt_path`|Checkpoint directory .* exists"


def make_loader(shards: str, *, workers: int = 2, batch_size: int = 4, **more: Any) -> wdsdist.StreamingDataLoader:
    dataset = wdsdist.StreamingDataset(shards, decode=True, **more)
    return wdsdist.StreamingDataLoader(dataset, batch_size, num_workers=workers)


def strictly() -> None:
    """Make errors of all warnings that a user could take for a problem with the data."""
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    warnings.resetwarnings()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", FutureWarning)
    warnings.filterwarnings("ignore", message=f".*({_DESERVED})")


def fit(
    shards: str,
    folder: str,
    *,
    checkpoint: str | None = None,
    every: int = 0,
    loaders: Any = make_loader,
    **options: Any,
) -> dict[str, Any]:
    """Train, and return what each step and each validation step saw, by epoch."""
    import lightning as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.seen: Seen = []
            self.validated: Seen = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            self.seen.append((self.current_epoch, batch["cls"].tolist()))
            return self.layer(batch["cls"].float()[:, None]).mean()

        def validation_step(self, batch: dict[str, Any], index: int) -> None:
            self.validated.append((self.current_epoch, batch["cls"].tolist()))

        def configure_optimizers(self) -> optim.Optimizer:
            return optim.SGD(self.parameters(), 1e-6)

    strictly()
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=every, every_n_epochs=int(not every), save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    model = Model()
    trainer.fit(
        model,
        loaders(shards),
        make_loader(shards, workers=0, shuffle=False),
        ckpt_path=checkpoint and f"{folder}/{checkpoint}",
        weights_only=False if checkpoint else None,
    )
    return {"seen": model.seen, "validated": model.validated, "steps": trainer.global_step}


def evaluation(shards: str, folder: str) -> dict[str, Any]:
    """Validate with a metric and a sum that Lightning puts together over the ranks, and with the keys that came."""
    import lightning as pl
    import torchmetrics

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.mean = torchmetrics.MeanMetric()
            self.keys: list[str] = []
            self.sizes: list[int] = []

        def validation_step(self, batch: dict[str, Any], index: int) -> None:
            self.sizes.append(len(batch["cls"]))
            batch = wdsdist.unpadded(batch)
            self.keys += batch["__key__"]
            self.mean.update(batch["cls"])
            self.log("mean", self.mean)
            self.log("sum", batch["cls"].float().sum(), reduce_fx="sum", sync_dist=True)

    strictly()
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "default_root_dir": folder}
    found = {}
    for batch_size in (4, 30, 64):
        trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", enable_model_summary=False, **options)
        model, loader = Model(), make_loader(shards, batch_size=batch_size, shuffle=False, mark_padding=True)
        (metrics,) = trainer.validate(model, loader, verbose=False)
        found[str(batch_size)] = {"keys": model.keys, "sizes": model.sizes, **metrics}
    return found


def planned(shards: str) -> wdsdist.StreamingDataLoader:
    """Return a loader of batches of at most 8 bytes of classes."""
    dataset = wdsdist.StreamingDataset(shards, decode=True)
    return wdsdist.StreamingDataLoader(dataset, batches=TokenBudget(8, length="cls.bytes"), num_workers=1)


@mock.patch.object(batcher, "BLOCK_STEPS", 1)  # so that epochs differ
def planned_epochs(shards: str, folder: str, epochs: int, **options: Any) -> dict[str, Any]:
    """Train several epochs of planned batches, of which Lightning asks each for its length."""
    options |= {"max_epochs": epochs, "reload_dataloaders_every_n_epochs": 1}

    def loaders(shards: str) -> wdsdist.StreamingDataLoader:
        dataset = wdsdist.StreamingDataset(shards, decode=True)
        return wdsdist.StreamingDataLoader(dataset, batches=Buckets(3, by="cls.bytes"), num_workers=1, drop_last=False)

    found = fit(shards, folder, loaders=loaders, **options)
    return {**found, "lengths": list(map(loaders(shards).planned_length, range(epochs)))}


def planned_refusal(shards: str, folder: str) -> dict[str, str]:
    """Train several epochs of planned batches, and return what Lightning is told."""
    try:
        return {"told": str(fit(shards, folder, loaders=planned, max_epochs=2, limit_val_batches=0))}
    except RuntimeError as error:
        return {"told": str(error)}


def refusal(shards: str, folder: str) -> dict[str, Any]:
    """Train from torchdata's loader, and return what Lightning is told before it tells its own."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def stateful(shards: str) -> Any:
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        dataset = wdsdist.StreamingDataset(shards, decode=True, batch_size=4)
        return StatefulDataLoader(dataset, batch_size=4)

    try:
        return fit(shards, folder, loaders=stateful, max_epochs=1)
    except RuntimeError as error:
        return {"told": f"{error.__context__!r} {error!r}"}


def fabric(shards: str, folder: str) -> dict[str, Any]:
    """Train by hand for two epochs and save in the second; then do what a new process does, and go on."""
    import lightning as pl

    strictly()

    def start() -> tuple[Any, Any]:
        engine = pl.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        engine.launch()
        return engine, engine.setup_dataloaders(make_loader(shards, workers=1))

    engine, loader = start()
    first = [batch["cls"].tolist() for batch in loader]
    second = []
    for batch in loader:
        second.append(batch["cls"].tolist())
        if len(second) == 3:
            engine.save(f"{folder}/fabric.ckpt", {"loader": loader})
    third = [batch["cls"].tolist() for batch in loader]

    engine, loader = start()
    engine.load(f"{folder}/fabric.ckpt", {"loader": loader})
    resumed = [[batch["cls"].tolist() for batch in loader] for _ in range(2)]
    loader.sampler.set_epoch(1)
    again = [batch["cls"].tolist() for batch in loader]
    return {"epochs": [first, second, third], "resumed": resumed, "again": again}
