"""Blocks that one process of a node plans for all: once, whoever waits, and by each where nothing can be kept."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from wdsdist.loader.shared_plans import shared_plan
from wdsdist.sampling.planned_epoch import NodeBatches

RANKS = range(8, 16)


@pytest.fixture(autouse=True)
def _own_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def made(number: int) -> NodeBatches:
    return NodeBatches(*(np.arange(number + column) for column in range(8)), np.zeros(0, np.bool_))


def as_lists(batches: NodeBatches) -> list[object]:
    return [column.tolist() for column in batches]


def kept(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("*/plans/*.npz"))


def test_a_block_is_planned_once_while_others_wait_for_it() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slowly() -> NodeBatches:
        begun.set()
        assert may_end.wait(60)
        return made(3)

    with ThreadPoolExecutor() as pool:
        one = pool.submit(shared_plan, "epoch", 5, RANKS, slowly)
        assert begun.wait(60)
        other = pool.submit(shared_plan, "epoch", 5, RANKS, lambda: pytest.fail("it is planned already"))
        may_end.set()
        assert as_lists(one.result(60)) == as_lists(other.result(60)) == as_lists(made(3))


def test_other_blocks_ranks_and_epochs_have_plans_of_their_own() -> None:
    places = [("epoch", 5, RANKS), ("epoch", 6, RANKS), ("epoch", 5, range(8)), ("another", 5, RANKS)]
    for _ in range(2):
        for number, place in enumerate(places):
            assert as_lists(shared_plan(*place, lambda: made(number))) == as_lists(made(number))  # noqa: B023


def test_a_damaged_plan_is_made_anew_and_old_ones_are_removed(tmp_path: Path) -> None:
    shared_plan("epoch", 0, RANKS, lambda: made(1))
    kept(tmp_path)[0].write_bytes(b"PK no archive")
    for number in range(30):
        assert as_lists(shared_plan("epoch", number, RANKS, lambda: made(2))) == as_lists(made(2))
    assert len(kept(tmp_path)) == 16


def test_without_a_directory_of_its_own_each_process_plans(tmp_path: Path) -> None:
    shared_plan("epoch", 0, RANKS, lambda: made(1))
    for folder in tmp_path.iterdir():
        folder.chmod(0o777)  # others could plant plans there
    assert as_lists(shared_plan("epoch", 0, RANKS, lambda: made(2))) == as_lists(made(2))
