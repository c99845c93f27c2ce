"""The examples of whole ways, from the data to the last step: what they print is what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_samples_of_a_scraped_data_set_are_chosen_and_trained_on(tmp_path: Path) -> None:
    found = forked.run(EXAMPLES / "choose_samples.py", "--work", str(tmp_path / "work"), cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    counts = {name: int(count) for name, count in re.findall(r"^(.+): (\d+) samples$", found.stdout, re.MULTILINE)}
    tried, indexed, good, kept, train, val, rare = (600, *counts.values())
    assert tried > indexed > good > kept == train + val
    assert "of 600 rows, 528 give values" in found.stderr
    (listed,) = re.findall(r"^languages: .*sw (\d+)$", found.stdout, re.MULTILINE)
    assert rare == 8 * int(listed)
    steps, seen, total = map(int, re.findall(r"trained (\d+) steps on (\d+) of (\d+) samples", found.stdout)[0])
    assert steps == total // 16
    assert seen == 16 * steps
    assert total == train + rare - rare // 8
    assert int(found.stdout.rstrip().rpartition("sw ")[2]) > 0.8 * rare, "of what training saw"


@pytest.mark.slow
def test_a_language_model_has_the_same_losses_with_and_without_a_stop(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_tiny_lm.py"), "--work", str(tmp_path / "work"), "--steps", "6"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    for line in (
        "without a stop: steps 0 to 5 on 2 processes",
        "resumed: steps 3 to 5 on 1 process",
        "ok  3 steps had the same keys and tokens",
        "ok  the losses are the same",
        "ok  a loader for one replica has the same",
    ):
        assert line in found.stdout, found.stdout
    assert "BROKEN" not in found.stdout
