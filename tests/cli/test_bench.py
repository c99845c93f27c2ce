"""``wdsdist bench``: throughput with each number of workers, and a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

import wdsdist as library
from tests.cli.conftest import Run
from tests.support.photos import encode, photo

QUICK = ["--seconds", "0.05", "--workers", "0,1"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = encode(photo(64, 64))
    samples = ({"bin": bytes(range(200)), "cls": 7, "jpg": image} for _ in range(256))
    library.pack(samples, folder := tmp_path_factory.mktemp("shards"))
    return folder


def test_it_prints_a_line_for_each_number_of_workers_and_suggests_one(wdsdist: Run, shards: Path) -> None:
    lines = wdsdist("bench", str(shards), "--decode", "rgb8", "--fields", "jpg", *QUICK).stdout.splitlines()
    assert lines[0].startswith("data: 256 samples in 1 shard")
    assert lines[1].split() == ["workers", "samples/s", "bytes/s", "first", "batch"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert lines[4].startswith(("suggestion: num_workers=0", "suggestion: num_workers=1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "1,x"], "not a list of numbers of workers such as 0,2,4"),
        (["--workers", "-1"], "not a list of numbers of workers such as 0,2,4"),
        (["--decode", "rgb9"], "rgb9"),
        (["--batch-size", "257"], "has 256 samples, fewer than one global batch of 257"),
        (["--batch-size", "0"], "--batch-size"),
        (["--seconds", "inf"], "--seconds is inf: it must be a number between 0.001 and 3600"),
        (["--seconds", "nan"], "--seconds is nan"),
    ],
)
def test_wrong_arguments_get_one_error(wdsdist: Run, shards: Path, arguments: list[str], message: str) -> None:
    run = wdsdist("bench", str(shards), *QUICK, *arguments)
    assert run.returncode == 2
    assert message in " ".join(run.stderr.split())
