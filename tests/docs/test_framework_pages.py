"""The blocks of docs/frameworks.md run; the sections on PyTorch, Ray Train and webdataset run one by one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wdsdist
from tests.support import forked
from tests.support.pages import ROOT, blocks, program, run, section

PAGE = (ROOT / "docs" / "frameworks.md").read_text()
RAY = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
BLOCKS = [
    pytest.param(block.text, id=f"{name}:{block.line}", marks=RAY if name == "Ray Train" else [])
    for name in ("PyTorch", "Ray Train", "webdataset")
    for block in blocks(section(PAGE, name))
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Lightning", "Fabric", "Accelerate", "Transformers"])
def test_the_blocks_of_a_framework_run_from_top_to_bottom(name: str, checkout: Path) -> None:
    run(program(section(PAGE, name)), checkout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a packed data set, ``shards``."""
    folder = tmp_path_factory.mktemp("pages")
    samples = ({"npy": np.full((4, 4), number), "cls": number} for number in range(160))
    wdsdist.pack(samples, folder / "shards", shard_samples=20)
    return folder


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("block", BLOCKS)
def test_every_python_block_runs_as_it_stands(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if "init_process_group" not in block and "ray.train" not in block:
        exec(compile(block, "block", "exec"), {"__name__": "__main__"})
        return
    Path("train.py").write_text(block)
    if "ray.train" in block:
        found = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, timeout=580, check=False)
    else:
        found = forked.launch("train.py", ranks=4)
    assert found.returncode == 0, found.stderr
