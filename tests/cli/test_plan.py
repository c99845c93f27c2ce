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


def test_no_batch_at_all_is_a_warning_in_words_and_no_nan(wdsdist: Run) -> None:
    arguments = ["plan", "--shards", 1, "--samples", 9]
    done = wdsdist(*arguments)
    assert done.returncode == 0
    assert "9 samples in 1 shard, 64.0 MiB" in done.stdout
    assert "1 rank on 1 node, 4 workers a rank" in done.stdout
    assert "warning: no rank gets a batch: an epoch has 9 samples, fewer than one global batch of 64" in done.stdout
    assert "nan" not in done.stdout
    assert "nan" not in wdsdist(*arguments, "--batch-size", 1).stdout
    assert "warning" not in wdsdist(*arguments, "--keep-tail").stdout


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
        (["--shards", 3, "--samples", 30, "--ranks", 0], "ranks is 0: it must be between 1 and 1,048,576"),
        (["--shards", 3, "--samples", 30, "--batch-size", 0], "--batch-size is 0: it must be at least 1"),
        (["--shards", 3, "--samples", 30, "--shuffle-window", 0], "--shuffle-window is 0: it must be at least 1"),
        (["--shards", 3, "--samples", 30, "--epoch", -1], "epoch is -1: it must be between 0 and"),
        (
            ["--shards", 3, "--samples", 30, "--num-canonical-replicas", 0],
            "--num-canonical-replicas is 0",
        ),
        (["--shards", 3, "--samples", 30, "--seed", 2**64], "seed is 18,446,744,073,709,551,616"),
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
