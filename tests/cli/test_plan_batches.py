"""``wdsdist plan`` of planned batches: what it shows is what the loader then makes, and it reads no data."""

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


@pytest.mark.parametrize("batches", BATCHES, ids=repr)
def test_it_counts_the_steps_that_the_loader_makes(wdsdist: Run, tokens: Path, batches: Any) -> None:
    run = wdsdist(
        "plan", tokens, "--batches", repr(batches), "--ranks", 2, "--ranks-per-node", 2, "--epoch", 1, "--json"
    )
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


def test_it_reads_no_data_and_says_it_in_words(wdsdist: Run, tokens: Path, tmp_path: Path) -> None:
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
    assert f"steps of {BATCHES[0]} on each rank" in done.stdout
    for words in (
        "fill:",
        "balance:",
        "a step over all ranks",
        "0 dropped, 0 repeated",
        "to fetch each shard from a store once",
    ):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("TokenBudget(512)", "missing 1 required keyword-only argument: 'length'"),
        ("TokenBudget(20, length='input_ids.tokens')", "longer than tokens=20"),
        ("Budget(20)", "'Budget' is not one of Buckets, LengthGroups, PackedRows, TokenBudget"),
        ("Buckets(8, by=open('/etc/passwd'))", "malformed node"),
        ("512", "'512' is not a call"),
        ("Buckets(", "write it as in Python"),
        ("Buckets(8, by='nowhere')", "nowhere"),
    ],
)
def test_a_value_that_cannot_work_is_one_error(wdsdist: Run, tokens: Path, value: str, message: str) -> None:
    run = wdsdist("plan", tokens, "--batches", value)
    assert run.returncode == 2
    assert message in " ".join(run.stderr.split())


def test_planned_batches_need_shards(wdsdist: Run) -> None:
    run = wdsdist("plan", "--shards", 3, "--samples", 300, "--batches", "Buckets(8, by='cls')")
    assert run.returncode == 2
    assert "--batches needs the lengths of samples: give SHARDS" in run.stderr


def test_no_step_at_all_is_a_warning(wdsdist: Run, tokens: Path) -> None:
    run = wdsdist("plan", tokens, "--batches", repr(BATCHES[0]), "--ranks", 700)
    assert "warning: no rank gets a batch" in run.stdout + run.stderr
