"""``wdsdist bench``: what it measures adds up, and what it says can be acted on."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import wdsdist as library
from tests.cli.conftest import Run
from tests.support import tars
from wdsdist import StreamingDataset
from wdsdist.cli.bench import reason
from wdsdist.diagnostics import profiling
from wdsdist.errors import ArgumentError

QUICK = ["--seconds", "0.05", "--workers", "0,1"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    image = io.BytesIO()
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(image, "JPEG")
    members = [
        (f"k{number}.{extension}", content)
        for number in range(256)
        for extension, content in (("bin", bytes(range(200))), ("cls", b"7"), ("jpg", image.getvalue()))
    ]
    (folder / "0.tar").write_bytes(tars.plain_tar(members))
    library.index(folder)
    return folder


def test_it_says_what_the_time_goes_into_and_suggests_workers(wdsdist: Run, shards: Path) -> None:
    lines = wdsdist("bench", str(shards), "--crop", "32", "--fields", "jpg", *QUICK).stdout.splitlines()
    assert lines[0].startswith("data:       256 samples in 1 shard")
    assert [line.split()[0] for line in lines[2:5]] == ["read:", "decode:", "transport:"]
    assert sum(int(line.split()[-1].rstrip("%")) for line in lines[2:5]) in (99, 100, 101)
    assert lines[5].split() == ["workers", "samples/s", "MiB/s", "first", "batch", "waiting"]
    assert [line.split()[0] for line in lines[6:8]] == ["0", "1"]
    assert lines[8].startswith(("suggestion: num_workers=0", "suggestion: num_workers=1"))


@pytest.mark.parametrize(
    ("part", "help_"), [("read", "a faster disk"), ("decode", "smaller images"), ("transport", "larger batches")]
)
def test_on_all_cores_it_names_what_helps_with_the_part_that_costs_most(part: str, help_: str) -> None:
    costs = profiling.Costs(**{"read": 1, "decode": 1, "transport": 1, part: 2}, sample_bytes=1)
    rates = [profiling.Rate(workers=10_000, samples_per_second=1, first_batch=1, waiting=1)]
    assert help_ in reason(rates, 10_000, 0, costs)


def test_all_cores_are_those_that_the_job_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    costs = profiling.Costs(read=1, decode=0, transport=0, sample_bytes=1)
    rates = [profiling.Rate(workers=1, samples_per_second=1, first_batch=1, waiting=1)]
    assert reason(rates, 1, 0, costs).startswith("all cores: a faster disk")


def test_json_holds_the_figures(wdsdist: Run, shards: Path) -> None:
    found = json.loads(
        wdsdist("bench", str(shards), "--fields", "bin", "--dtype", "bin=uint16", "--json", *QUICK).stdout
    )
    assert found["costs"]["sample_bytes"] == 200
    assert [one["workers"] for one in found["rates"]] == [0, 1]
    assert found["suggested_workers"] in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decode", "rgb8", "--crop", "32"], "give either --decode, or --crop and --dtype"),
        (["--workers", "1,x"], "no list of numbers of workers such as 0,2,4"),
        (["--workers", "-1"], "no list of numbers of workers such as 0,2,4"),
        (["--dtype", "bin"], "no extension with a dtype"),
        (["--decode", "rgb9"], "rgb9"),
        (["--batch-size", "257"], "has 256 samples, fewer than a batch of 257"),
        (["--batch-size", "0"], "--batch-size is 0"),
    ],
)
def test_what_cannot_be_measured_is_said(wdsdist: Run, shards: Path, arguments: list[str], message: str) -> None:
    done = wdsdist("bench", str(shards), *QUICK, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_loop_that_trains_waits_less(shards: Path) -> None:
    dataset = StreamingDataset(shards, fields=("bin",))
    idle = profiling.rate(dataset, 8, workers=0, seconds=0.1)
    busy = profiling.rate(dataset, 8, workers=0, seconds=0.1, step=0.01)
    assert busy.waiting < idle.waiting
    assert busy.samples_per_second < 8 / 0.01


def test_what_samples_are_made_into_counts_as_decoding(shards: Path) -> None:
    def slow(samples: list[object]) -> int:
        time.sleep(0.2)  # much more than reading takes on a busy machine
        return len(samples)

    dataset = StreamingDataset(shards, fields=("bin",))
    assert profiling.costs(dataset, 8, seconds=0.05).decode == 0
    assert profiling.costs(dataset, 8, seconds=0.05, collate_fn=slow).decode > 0.001


def test_a_data_set_smaller_than_a_batch_is_refused(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="fewer than a batch of 300"):
        profiling.rate(StreamingDataset(shards), 300, workers=0)
