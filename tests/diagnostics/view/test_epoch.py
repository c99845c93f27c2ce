"""The epoch that the page shows is the one that training plays."""

from __future__ import annotations

from pathlib import Path

import pytest

import wdsdist
from wdsdist.diagnostics.view.server import View
from wdsdist.errors import ArgumentError

CHOICE = {"ranks": "2", "batch_size": "4", "seed": "7", "epoch": "3"}


def test_the_picture_names_the_shards_of_each_batch(tmp_path: Path) -> None:
    manifest = wdsdist.pack(({"cls": n} for n in range(24)), tmp_path / "shards", shard_samples=6)
    found = View(manifest, ["shards"]).epoch(CHOICE)
    assert (found["ranks"], found["batches"], found["samples"]) == ([0, 1], [0, 1, 2], 24)
    for rank in range(2):
        dataset = wdsdist.StreamingDataset(manifest, num_replicas=2, rank=rank, seed=7, decode=True)
        loader = wdsdist.StreamingDataLoader(dataset, batch_size=4, num_workers=0)
        loader.set_epoch(3)
        batches = list(loader)
        assert len(batches) == 3 == found["batches_per_rank"]
        for number, batch in enumerate(batches):
            shards = {name: batch["__shard__"].count(name) for name in set(batch["__shard__"])}
            cell = found["cells"][rank * 3 + number]
            assert {found["shards"][str(shard)]: count for shard, count in cell} == shards


def test_many_ranks_and_batches_are_spread_evenly(tmp_path: Path) -> None:
    view = View(wdsdist.pack(({"cls": 0} for _ in range(8000)), tmp_path / "shards"), ["shards"])
    found = view.epoch(CHOICE | {"ranks": "40", "batch_size": "1"})
    assert (len(found["ranks"]), len(found["batches"]), found["ranks"][-1], found["batches"][-1]) == (24, 160, 39, 199)
    assert view.epoch(CHOICE | {"ranks": "640", "batch_size": "64"})["cells"] == []
    with pytest.raises(ArgumentError, match="ranks is 0"):
        view.epoch(CHOICE | {"ranks": "0"})
