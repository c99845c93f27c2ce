"""``wdsdist plan``: what an epoch will be like, of batches of fixed and of variable lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist as library
from tests.cli.conftest import Run
from wdsdist.batching import Buckets, LengthGroups, PackedRows, TokenBudget

BATCHES = (
    TokenBudget(512, length="input_ids.tokens"),
    PackedRows(2, tokens=128, length="input_ids.tokens"),
    LengthGroups(8, by="input_ids.bytes"),
    Buckets(8, by="cls"),
)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned") / "tokens"
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3, 1, 600), 1, 200).astype(int)
    samples = ({"input_ids": np.ones(n, np.int32), "cls": number % 3} for number, n in enumerate(lengths))
    library.pack(samples, folder, shard_samples=50)
    library.open(folder).add_columns(fields=["cls"])
    return folder


def test_it_reads_the_counts_and_sizes_of_shards(wdsdist: Run, shards: Path) -> None:
    found = json.loads(wdsdist("plan", shards, "--ranks", 2, "--batch-size", 1, "--json").stdout)
    assert (found["samples"], found["shards"], found["batches_per_rank"], found["order"]) == (6, 3, 3, "shard")
    assert found["bytes"] == sum(path.stat().st_size for path in shards.glob("*.tar"))


def test_it_shows_batches_samples_and_the_cache_of_an_epoch(wdsdist: Run, tokens: Path) -> None:
    done = wdsdist("plan", tokens, "--ranks", 16, "--batch-size", 8)
    assert done.returncode == 0, done.stderr
    for words in (
        "600 samples in 12 shards, ",
        "16 ranks on 2 nodes, 4 workers a rank",
        "4 of 8 samples on each rank",
        "32 on each rank; 88 dropped, 0 repeated, of 600",
        " a node, for the current and the next window",
    ):
        assert words in done.stdout


def test_an_epoch_without_a_batch_is_a_warning(wdsdist: Run, tokens: Path) -> None:
    for arguments in ((tokens, "--batch-size", 601), (tokens, "--batches", repr(BATCHES[0]), "--ranks", 700)):
        done = wdsdist("plan", *arguments)
        assert done.returncode == 0, done.stderr
        assert "warning: no rank gets a batch: an epoch has" in done.stdout
        assert "nan" not in done.stdout


@pytest.mark.parametrize("batches", BATCHES, ids=repr)
def test_it_counts_the_steps_that_the_loader_makes(wdsdist: Run, tokens: Path, batches: Any) -> None:
    world = ("--ranks", 2, "--ranks-per-node", 2, "--epoch", 1)
    run = wdsdist("plan", tokens, "--batches", repr(batches), *world, "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    for rank in range(2):
        dataset = library.StreamingDataset(tokens, decode={"input_ids": np.int32}, num_replicas=2, rank=rank)
        more = {} if isinstance(batches, PackedRows) else {"collate_fn": len}
        loader = library.StreamingDataLoader(dataset, batches=batches, num_workers=0, **more)
        loader.set_epoch(1)
        assert len(list(loader)) == report["batches_per_rank"]
    assert 0.7 < report["fill"] <= 1
    assert 1 <= report["balance"] < 1.2
    assert (report["samples_dropped"], report["samples_repeated"]) == (0, 0)


def test_it_reads_no_data(wdsdist: Run, tokens: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "tokens"
    hidden.mkdir()
    for path in tokens.iterdir():
        if path.suffix == ".tar":
            with (hidden / path.name).open("wb") as empty:
                empty.truncate(path.stat().st_size)
        else:
            (hidden / path.name).symlink_to(path)
    done = wdsdist("plan", hidden, "--batches", repr(BATCHES[0]), "--ranks", 4, "--ranks-per-node", 2)
    assert done.returncode == 0, done.stderr
    for words in (f" of {BATCHES[0]} on each rank", "fill: ", "balance: ", "0 dropped, 0 repeated"):
        assert words in done.stdout
