"""``wdsdist plan``: what an epoch will be like, with or without data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_it_forecasts_data_that_is_not_there(wdsdist: Run) -> None:
    done = wdsdist("plan", "--shards", 1280, "--samples", 1_281_167, "--ranks", 64, "--batch-size", 256)
    assert done.returncode == 0, done.stderr
    assert "1,281,167 samples in 1,280 shards, 80.0 GiB" in done.stdout
    assert "64 ranks on 8 nodes" in done.stdout
    assert "78 of 256 samples on each rank" in done.stdout
    assert "19,968 on each rank; 3,215 dropped, 0 repeated, of 1,281,167" in done.stdout
    assert "1.3 GiB a rank, 10.5 GiB a node, for the current and the next window" in done.stdout


def test_it_reads_the_counts_and_sizes_of_shards_that_are_there(wdsdist: Run, shards: Path) -> None:
    done = wdsdist("plan", shards, "--ranks", 2, "--batch-size", 1, "--json")
    found = json.loads(done.stdout)
    assert (found["samples"], found["shards"], found["batches_per_rank"]) == (6, 3, 3)
    assert found["bytes"] == sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert found["order"] == "shard"


def test_it_shows_what_a_rank_reads_as_the_library_deals_it(wdsdist: Run, shards: Path) -> None:
    import wdsdist as library

    done = wdsdist("plan", shards, "--ranks", 2, "--batch-size", 3, "--rank", 1, "--epoch", 4, "--json")
    batch = json.loads(done.stdout)["rank"]["batches"]["first"]
    loader = library.StreamingDataLoader(
        library.StreamingDataset(shards, fields=("jpg",), num_replicas=2, rank=1), batch_size=3, num_workers=0
    )
    loader.set_epoch(4)
    expected = next(iter(loader))["__shard__"]
    assert [f"shard-{number:06}.tar" for number in batch["shards"]] == expected
    assert "rank 1:" in wdsdist("plan", shards, "--ranks", 2, "--batch-size", 3, "--rank", 1).stdout


def test_counts_of_one_are_written_as_such(wdsdist: Run) -> None:
    done = wdsdist("plan", "--shards", 1, "--samples", 1, "--batch-size", 1, "--rank", 0)
    assert "1 of 1 sample on each rank" in done.stdout
    assert "first batch (0, worker 0), from 1 shard, as shard:sample: 0:0" in done.stdout


def test_no_batch_at_all_is_a_warning_in_words_and_no_nan(wdsdist: Run) -> None:
    arguments = ["plan", "--shards", 1, "--samples", 9]
    done = wdsdist(*arguments)
    assert done.returncode == 0
    assert "9 samples in 1 shard, 64.0 MiB" in done.stdout
    assert "1 rank on 1 node, 4 workers a rank" in done.stdout
    assert "warning: no rank gets a batch: an epoch has 9 samples, fewer than one global batch of 64" in done.stdout
    assert "nan" not in done.stdout
    assert "nan" not in wdsdist(*arguments, "--batch-size", 1).stdout
    assert json.loads(wdsdist(*arguments, "--json").stdout)["mixing"]["moved"] is None
    assert "warning" not in wdsdist(*arguments, "--keep-tail").stdout


def test_virtual_epochs_are_planned_as_the_library_deals_them(wdsdist: Run, shards: Path) -> None:
    import wdsdist as library

    arguments = ["plan", shards, "--samples-per-epoch", 4, "--batch-size", 2, "--epoch", 1]
    found = json.loads(wdsdist(*arguments, "--rank", 0, "--json").stdout)
    assert (found["samples"], found["samples_per_epoch"], found["batches_per_rank"]) == (6, 4, 2)
    assert "6 samples in 3 shards" in wdsdist(*arguments).stdout
    dataset = library.StreamingDataset(shards, fields=("jpg",), samples_per_epoch=4)
    loader = library.StreamingDataLoader(dataset, batch_size=2, num_workers=0)
    loader.set_epoch(1)
    opened = [
        {f"shard-{number:06}.tar" for number in found["rank"]["batches"][one]["shards"]} for one in ("first", "last")
    ]
    assert opened == [set(batch["__shard__"]) for batch in loader]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_it_draws_which_shards_ranks_read(wdsdist: Run, tmp_path: Path, kind: str) -> None:
    plot = tmp_path / f"plan.{kind}"
    done = wdsdist("plan", "--shards", 40, "--samples", 4000, "--ranks", 4, "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_the_drawing_counts_requests_and_says_what_is_good(wdsdist: Run, tmp_path: Path) -> None:
    plot = tmp_path / "plan.svg"
    wdsdist("plan", "--shards", 200, "--samples", 40_000, "--ranks", 16, "--batch-size", 8, "--plot", plot)
    drawn = plot.read_text()  # the texts are comments beside their outlines
    assert "100 of 200 shards, 6.2 GiB, 800 requests" in drawn
    assert "Good: above, short bars in steps" in drawn
    assert "rank 7" in drawn


def test_a_step_of_training_gives_the_requests_and_bytes_of_a_day(wdsdist: Run) -> None:
    arguments = ["plan", "--shards", 32, "--samples", 6400, "--ranks", 16, "--batch-size", 8]
    done = wdsdist(*arguments, "--step", 180_000)
    assert "128 on each node, 256 in all, to fetch each shard from a store once" in done.stdout
    assert "9.6 epochs: up to 1,229 requests and 9.6 GiB a node" in done.stdout  # of 50 steps of three minutes
    found = json.loads(wdsdist(*arguments, "--json").stdout)
    assert found["requests_per_node"] == [128, 128]
    assert found["epochs_per_day"] is None


@pytest.mark.parametrize("samples", [100_000_000, pytest.param(1_000_000_000, marks=pytest.mark.slow)])
def test_a_billion_samples_take_little_memory(samples: int) -> None:
    arguments = ["plan", "--shards", f"{samples // 10_000}", "--samples", f"{samples}", "--ranks", "512", "--json"]
    script = (
        "import sys, wdsdist.cli\n"
        "sys.argv[0] = 'wdsdist'\n"
        "try:\n    wdsdist.cli.main()\n"
        "finally:\n    print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["batches_per_rank"] == samples // 512 // 64
    assert int(done.stderr) < 200_000, "KiB: an array of all samples would take 800,000 and more"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shards", 3, "--samples", 30, "--ranks", 2, "--rank", 2], "rank is 2: it must be between 0 and 1"),
        (["--shards", 3, "--samples", 30, "--ranks", 0], "ranks is 0: it must be between 1 and 1,048,576"),
        (["--shards", 3, "--samples", 30, "--batch-size", 0], "--batch-size is 0: it must be at least 1"),
        (["--shards", 3, "--samples", 30, "--shuffle-window", 0], "--shuffle-window is 0: it must be at least 1"),
        (["--shards", 3, "--samples", 30, "--epoch", -1], "epoch is -1: it must be between 0 and"),
        (
            ["--shards", 3, "--samples", 30, "--num-canonical-replicas", 0],
            "--num-canonical-replicas is 0",
        ),
        (["--shards", 3, "--samples", 30, "--seed", 2**64], "seed is 18,446,744,073,709,551,616"),
        (["--shards", 3, "--samples", 30, "--plot", "plan.gif"], "neither a .png nor an .svg"),
        (["/no/such/folder"], "/no/such/folder does not exist"),
    ],
)
def test_bad_input_is_one_line(wdsdist: Run, arguments: list[object], message: str) -> None:
    done = wdsdist("plan", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_it_wants_either_shards_or_numbers(wdsdist: Run) -> None:
    for arguments in ([], ["--shards", 3], ["/some/folder", "--shards", 3, "--samples", 30]):
        done = wdsdist("plan", *arguments)
        assert done.returncode == 2
        assert "give either SHARDS, or both --shards and --samples" in done.stderr
