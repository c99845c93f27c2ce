"""The house stays small: lines of each room, and what a plain training loop loads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wdsdist
from tests.support.web import served

ROOT = Path(wdsdist.__file__).parent

CORE = ("_util", "distributed", "storage", "shards", "sampling", "cache", "samples", "loader")

BUDGETS = {
    "_util": 1_150,
    "distributed": 1_050,
    "storage": 2_000,
    "shards": 3_900,
    "sampling": 1_700,
    "cache": 1_700,
    "samples": 2_700,
    "loader": 3_200,
    "batching": 1_700,
    "curation": 1_500,
    "media": 700,
    "packing": 5_200,
    "diagnostics": 2_400,
    "integrations": 450,
    "cli": 1_900,
}
"""The most lines of each room."""

MOST_LOADED = {"local": 9_500, "remote": 13_000}
"""Lines of wdsdist that a plain training loop over local or remote shards may load."""

LOOPS = """
import sys, wdsdist
for location in sys.argv[2:]:
    dataset = wdsdist.StreamingDataset(location, num_replicas=1, rank=0, cache_dir=sys.argv[1])
    loader = wdsdist.StreamingDataLoader(dataset, batch_size=4, num_workers=0)
    assert sum(len(batch["__key__"]) for batch in loader) == 8
    print(*(module.__file__ for name, module in sys.modules.items()
            if name.partition(".")[0] == "wdsdist" and getattr(module, "__file__", None)), sep="\\t")
"""


def lines_of(paths: Iterator[Path] | list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_its_budget(room: str) -> None:
    assert lines_of(list((ROOT / room).rglob("*.py"))) <= BUDGETS[room]


def test_every_room_has_a_budget() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(BUDGETS)


def test_a_plain_loop_loads_the_core_alone_and_little_of_it(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    wdsdist.pack(({"__key__": f"k{number}", "bin": os.urandom(1000)} for number in range(8)), shards)
    with served(shards) as web:
        command = [sys.executable, "-c", LOOPS, str(tmp_path / "cache"), str(shards), web.url]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    for (kind, most), line in zip(MOST_LOADED.items(), run.stdout.splitlines(), strict=True):
        paths = list(map(Path, line.split("\t")))
        rooms = {path.relative_to(ROOT).parts[0] for path in paths}
        assert rooms <= {*CORE, "errors.py", "__init__.py"} - ({"cache"} if kind == "local" else set())
        assert lines_of(paths) <= most, kind
