"""Each benchmark runs, so small that its figures mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools" / "bench"
RUNS = {
    "bench_batching": (["--ranks", "2", "--steps", "8", "--blocks", "1", "--documents", "400"], "packed rows"),
    "bench_boundary": (["--samples", "128", "--epochs", "2", "--rounds", "1", "--data", "{tmp}"], "torch    waited"),
    "bench_cache": (["--processes", "4", "--seconds", "1"], "| publish needs |"),
    "bench_columns": (["--samples", "2000", "--shards", "7", "--data", "{tmp}"], "join:"),
    "bench_decode": (["--repeat", "1", "--passes", "1"], "wdsdist / a bare loop"),
    "bench_index": (["--repeat", "1", "--samples", "500"], "x tarfile"),
    "bench_listing": (["--members", "2000"], "2,000 members"),
    "bench_media": (["--repeat", "1", "--videos", "1", "--seconds", "3"], "wdsdist / a bare loop"),
    "bench_mixing": (["--epochs", "1", "--samples", "200000", "--windows", "4"], "| uniform shuffle |"),
    "bench_pack": (["--files", "200", "20", "--rounds", "1", "--data", "{tmp}"], "|"),
    "bench_plan": (["--repeat", "1", "--smaller", "64"], "torch: memory added"),
    "bench_remote": (
        [
            *("--systems", "wdsdist", "--samples", "256", "--rounds", "1", "--workers", "1", "--data", "{tmp}"),
            *("--shards", "2", "--shard-bytes", "100000", "--latency", "0.001"),
            *("--measure", "fetch", "wire", "--links", "1e9", "--spinning", "0"),
        ],
        "A link of 1,000 MB/s, programs that spin beside: 0",
    ),
}


def test_all_are_here() -> None:
    assert {path.stem for path in TOOLS.glob("bench_*.py")} == {*RUNS, "bench_device"}  # which needs a GPU


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_it_runs(tmp_path: Path, name: str) -> None:
    arguments, line = RUNS[name]
    command = [sys.executable, str(TOOLS / f"{name}.py"), *(one.format(tmp=tmp_path) for one in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
