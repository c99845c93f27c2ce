"""The comparison with other loaders: its data, its statistics, its page, and one small run without the peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import wdsdist

TOOLS = Path(__file__).parents[2] / "tools" / "bench"


@pytest.fixture(autouse=True)
def peers_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


@pytest.mark.parametrize(("files", "about"), [("jpeg70k", 70_000), ("png2k", 2500), ("tokens", 4096)])
def test_samples_have_the_size_they_promise_and_depend_on_number_and_seed_only(files: str, about: int) -> None:
    from peers.data import sample

    sizes = [len(sample(files, number)) for number in range(4)]
    assert np.mean(sizes) == pytest.approx(about, rel=0.15)
    assert sample(files, 3) == sample(files, 3)
    assert len({sample(files, 3), sample(files, 4), sample(files, 3, seed=1)}) == 3


def test_a_column_and_a_list_of_the_same_bytes_leave_the_same_tally() -> None:
    from peers.kinds import PAGE, Tally

    strings = [np.random.default_rng(n).bytes(size) for n, size in enumerate([1, PAGE, PAGE + 1, 0, 3 * PAGE - 1])]
    listed, column = Tally(), Tally()
    listed.add("raw", strings)
    column.add("raw", wdsdist.Ragged.of(strings))
    assert listed == column
    assert listed.size == sum(map(len, strings))


def test_an_epoch_that_lost_a_sample_is_an_error() -> None:
    from peers.kinds import TOKENS, Tally

    tally = Tally()
    tally.add("tokens", torch.zeros(63, TOKENS, dtype=torch.uint16))
    with pytest.raises(ValueError, match="samples=63"):
        tally.check(Tally(64, 64 * 4096, 0), "tokens")


def test_the_page_shows_losses_and_failures_and_keeps_what_was_written_by_hand() -> None:
    from peers.report import markdown
    from peers.runs import Cell

    rounds = [{"wdsdist": {"value": 100.0}, "hf": {"value": 200.0}}] * 3
    missing = "ModuleNotFoundError: No module named 'grain'"
    cell = Cell("rate", "jpeg70k", 4, rounds, {"litdata": "ValueError: no | such thing", "grain": missing})
    page = markdown({"machine": "this one"}, [cell])
    row = {line.split(" | ")[0]: line for line in page.split("## Settings")[0].splitlines() if line.startswith("| ")}
    assert "0.50 (0.50 to 0.50) | **wdsdist loses**" in row["| HF datasets"]
    assert "failed: `ValueError: no / such thing`" in row["| LitData"]
    assert f"not installed: `{missing}`" in row["| Grain"]

    begin = "<!-- written by hand: begin rate -->\n"
    written = page.replace(begin, begin + "Why it is so.\n")
    assert "Why it is so." in markdown({"machine": "another"}, [cell], before=written)
    assert "Why it is so." in markdown({}, [Cell("pack", "jpeg70k", 0)], before=written)


@pytest.mark.slow
def test_a_small_run_compares_wdsdist_with_a_folder(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(TOOLS / "compare.py"), "--kind", "png2k", "--measure", "rate"]
    command += ["--workers", "0", "--systems", "wdsdist", "folder", "--trials", "1", "--samples", "128"]
    command += ["--seconds", "0", "--data", str(tmp_path / "data"), "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(figures.read_text())["cells"]
    assert not cell["errors"]
    assert set(cell["rounds"][0]) == {"wdsdist", "folder"}
    assert "| wdsdist |" in done.stdout
