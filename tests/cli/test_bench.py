"""``wdsdist bench``: throughput with each number of workers, and a suggestion."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import wdsdist as library
from tests.cli.conftest import Run
from tests.support import tars

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


def test_it_prints_a_line_for_each_number_of_workers_and_suggests_one(wdsdist: Run, shards: Path) -> None:
    lines = wdsdist("bench", str(shards), "--decode", "rgb8", "--fields", "jpg", *QUICK).stdout.splitlines()
    assert lines[0].startswith("data: 256 samples in 1 shard")
    assert lines[1].split() == ["workers", "samples/s", "bytes/s", "first", "batch"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert lines[4].startswith(("suggestion: num_workers=0", "suggestion: num_workers=1"))


def test_json_has_the_figures(wdsdist: Run, shards: Path) -> None:
    report = json.loads(wdsdist("bench", str(shards), "--fields", "bin", "--json", *QUICK).stdout)
    assert [rate["workers"] for rate in report["rates"]] == [0, 1]
    assert report["suggested_workers"] in (0, 1)
    assert all(round(rate["bytes_per_second"] / rate["samples_per_second"]) == 200 for rate in report["rates"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "1,x"], "not a list of numbers of workers such as 0,2,4"),
        (["--workers", "-1"], "not a list of numbers of workers such as 0,2,4"),
        (["--decode", "rgb9"], "rgb9"),
        (["--batch-size", "257"], "has 256 samples, fewer than a batch of 257"),
        (["--batch-size", "0"], "--batch-size"),
        (["--seconds", "inf"], "--seconds is inf: it must be between 0 and 3,600"),
        (["--seconds", "nan"], "--seconds is nan"),
    ],
)
def test_wrong_arguments_get_one_error(wdsdist: Run, shards: Path, arguments: list[str], message: str) -> None:
    run = wdsdist("bench", str(shards), *QUICK, *arguments)
    assert run.returncode == 2
    assert message in " ".join(run.stderr.split())
