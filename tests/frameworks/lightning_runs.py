"""What each rank does in the tests of Lightning and Fabric."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn, optim

import wdsdist

Seen = list[tuple[int, list[int]]]

# Of Lightning's warnings, those that a run as small as these deserves.
_DESERVED = "does not have many workers|Be aware that when using `ckpt_path`|Checkpoint directory .* exists"


def make_loader(shards: str, *, workers: int = 2, **more: Any) -> wdsdist.StreamingDataLoader:
    return wdsdist.StreamingDataLoader(wdsdist.StreamingDataset(shards, decode=True, **more), 4, num_workers=workers)


def strictly() -> None:
    """Make errors of all warnings that a user could take for a problem with the data."""
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    warnings.resetwarnings()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", FutureWarning)
    warnings.filterwarnings("ignore", message=f".*({_DESERVED})")


def fit(shards: str, folder: str, *, checkpoint: str | None = None, every: int = 0, **options: Any) -> dict[str, Any]:
    """Train, and return what each step and each validation step saw, by epoch."""
    import lightning as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.seen: Seen = []
            self.validated: Seen = []

        def training_step(self, batch: dict[str, Any], index: int) -> Tensor:
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
        make_loader(shards),
        make_loader(shards, workers=0, shuffle=False),
        ckpt_path=checkpoint and f"{folder}/{checkpoint}",
        weights_only=False if checkpoint else None,
    )
    return {"seen": model.seen, "validated": model.validated, "steps": trainer.global_step}


def fabric(shards: str, folder: str) -> dict[str, Any]:
    """Train by hand for two epochs and save in the second; then do what a new process does, and go on."""
    import lightning as pl

    strictly()

    def start() -> tuple[Any, Any]:
        engine = pl.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        engine.launch()
        return engine, engine.setup_dataloaders(make_loader(shards))

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
