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

LENGTH = ("--length", "input_ids.tokens", "--dtype", "input_ids=int32")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned") / "tokens"
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3, 1, 600), 1, 200).astype(int)
    samples = ({"input_ids": np.ones(n, np.int32).tobytes(), "cls": number % 3} for number, n in enumerate(lengths))
    library.pack(samples, folder, shard_samples=50)
    library.open(folder).add_columns(fields=["cls"])
    return folder


@pytest.mark.parametrize(
    ("arguments", "batches"),
    [
        (("--max-tokens", 512, *LENGTH), TokenBudget(512, length="input_ids.tokens")),
        (("--pack-to", 128, "--batch-size", 2, *LENGTH), PackedRows(2, tokens=128, length="input_ids.tokens")),
        (("--group-by", "input_ids.bytes", "--batch-size", 8), LengthGroups(8, by="input_ids.bytes")),
        (("--bucket-by", "cls", "--batch-size", 8), Buckets(8, by="cls")),
    ],
)
def test_it_shows_the_steps_that_the_loader_makes(
    wdsdist: Run, tokens: Path, arguments: tuple[Any, ...], batches: Any
) -> None:
    done = wdsdist("plan", tokens, *arguments, "--ranks", 2, "--ranks-per-node", 2, "--epoch", 1, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for rank in range(2):
        dataset = library.StreamingDataset(tokens, decode={"input_ids": np.int32}, num_replicas=2, rank=rank)
        collate_fn = None if isinstance(batches, PackedRows) else len
        loader = library.StreamingDataLoader(dataset, batches=batches, num_workers=0, collate_fn=collate_fn)
        loader.set_epoch(1)
        assert len(list(loader)) == found["steps"] == found["batches_per_rank"]
    assert 0.7 < found["fill"] <= 1
    assert 1 <= found["balance"] < 1.2
    assert (found["samples_dropped"], found["samples_repeated"]) == (0, 0)


def test_it_reads_no_data_and_says_it_in_words(wdsdist: Run, tokens: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "tokens"
    hidden.mkdir()
    for path in tokens.iterdir():
        if path.suffix == ".tar":
            with (hidden / path.name).open("wb") as empty:
                empty.truncate(path.stat().st_size)
        else:
            (hidden / path.name).symlink_to(path)
    done = wdsdist("plan", hidden, "--max-tokens", 512, *LENGTH, "--ranks", 4, "--ranks-per-node", 2)
    assert done.returncode == 0, done.stderr
    assert "steps of TokenBudget(512, length='input_ids.tokens') on each rank" in done.stdout
    for words in (
        "fill:",
        "balance:",
        "a step over all ranks",
        "0 dropped, 0 repeated",
        "times those of plain batches",
        "to fetch each shard from a store once",
    ):
        assert words in done.stdout


def test_it_draws_fill_and_balance(wdsdist: Run, tokens: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plan.svg"
    done = wdsdist("plan", tokens, "--max-tokens", 512, *LENGTH, "--ranks", 2, "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes()[:5] == b"<?xml"
    assert "Good: a fill near 1" in plot.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", 512], "--max-tokens needs --length"),
        (["--max-tokens", 20, *LENGTH], "longer than tokens=20, by input_ids.tokens"),
        (["--max-tokens", 512, "--length", "input_ids.tokens"], "or --dtype input_ids=int32, makes it of a raw array"),
        (["--max-tokens", 512, "--pack-to", 9, *LENGTH], "--max-tokens, --pack-to: give one of"),
        (LENGTH[:2], "--length: give one of --max-tokens"),
        (["--bucket-by", "cls", "--rank", 0], "--rank shows batches of a fixed number"),
        (["--bucket-by", "cls", "--dtype", "input_ids=nothing"], "is no extension with a dtype"),
    ],
)
def test_bad_choices_are_named(wdsdist: Run, tokens: Path, arguments: list[object], message: str) -> None:
    done = wdsdist("plan", tokens, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_planned_batches_need_shards(wdsdist: Run) -> None:
    done = wdsdist("plan", "--shards", 3, "--samples", 300, "--bucket-by", "cls")
    assert done.returncode == 2
    assert "planned batches need the lengths of samples: give SHARDS" in done.stderr


def test_no_step_at_all_is_a_warning(wdsdist: Run, tokens: Path) -> None:
    done = wdsdist("plan", tokens, "--max-tokens", 512, *LENGTH, "--ranks", 700)
    assert "warning: no rank gets a batch" in done.stdout
    assert "nan" not in done.stdout
