"""The demo: real data, two gloo ranks with two workers each, a stop and a restart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_keeps_every_promise_that_it_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "examples" / "train_fashion_mnist.py"), "--work", str(tmp_path / "work")]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "BROKEN" not in found.stdout
    for line in (
        "packing ran once for 2 ranks",
        "rank 0: 131 batches, 4,192 samples, rank 1: 131 batches, 4,192 samples",
        "8,384 of 8,400 samples were seen: all but the dropped tail of 16",
        "the 66 batches after the restart are those that were left",
        "epoch 2 had another order than epoch 1",
        "images/s",
        "test accuracy",
    ):
        assert line in found.stdout, found.stdout


def test_a_data_set_made_in_python_is_packed_once_and_loaded_by_every_rank(tmp_path: Path) -> None:
    found = forked.launch(ROOT / "examples" / "pack_python_dataset.py", tmp_path / "shards", ranks=2, cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    line = "10 batches of 50, the last one (50, 28, 28); 1000 samples"
    assert found.stdout.splitlines() == [line, line]
