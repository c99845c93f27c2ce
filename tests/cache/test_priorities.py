"""Whose need comes first."""

from __future__ import annotations

import errno
import os
import pkgutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import folders
from wdsdist.cache.priorities import NEVER, Need, Reader, all_needs


@pytest.fixture
def readers(tmp_path: Path) -> list[Reader]:
    made = [Reader(tmp_path) for _ in range(3)]
    for reader in made:
        reader.join()
    return made


def in_order(folder: Path) -> list[str]:
    needs = all_needs(folder)
    return sorted(needs.ranks, key=needs.rank)


def test_what_is_near_comes_before_what_is_far_whoever_needs_it(readers: list[Reader], tmp_path: Path) -> None:
    readers[0].expect([Need("a", 4), Need("b", 5), Need("c", 6)])
    readers[1].expect([Need("d", 3), Need("c", 7)])
    assert in_order(tmp_path) == ["d", "a", "b", "c"]
    assert all_needs(tmp_path).rank("e") == NEVER > all_needs(tmp_path).rank("c")
    readers[0].expect([])
    assert in_order(tmp_path) == ["d", "c"]


def test_jobs_are_compared_by_how_far_each_is_from_what_it_needs(readers: list[Reader], tmp_path: Path) -> None:
    readers[0].expect([Need("a", 100), Need("e", 103)], "one")
    readers[1].expect([Need("c", 101)], "one")
    readers[2].expect([Need("b", 0), Need("d", 2)], "another")
    assert sorted(in_order(tmp_path)[:2]) == ["a", "b"]
    assert in_order(tmp_path)[2:] == ["c", "d", "e"]


def test_batches_that_wait_come_first_the_eldest_with_all_its_shards(readers: list[Reader], tmp_path: Path) -> None:
    readers[2].expect([Need("x", 0)])
    for reader, keys in zip(readers, (["p", "q"], ["q", "r"], ["a", "b"]), strict=True):
        reader.claim(keys, all_needs(tmp_path).latest)
    first = readers[0].claimed("q")
    readers[0].claim(["q", "p"], all_needs(tmp_path).latest)
    assert first == readers[0].claimed("q") == all_needs(tmp_path).rank("q")  # asked for again, it is as old as before
    assert [set(in_order(tmp_path)[place : place + 2]) for place in (0, 3)] == [{"p", "q"}, {"a", "b"}]
    assert in_order(tmp_path)[2::3] == ["r", "x"]
    readers[0].rest()
    assert set(in_order(tmp_path)[:2]) == {"q", "r"}
    readers[0].claim(["p"], all_needs(tmp_path).latest)
    assert readers[0].claimed("p") == all_needs(tmp_path).rank("p") > all_needs(tmp_path).rank("a")


def test_each_thread_has_a_claim_of_its_own(readers: list[Reader], tmp_path: Path) -> None:
    readers[0].claim(["a"], 0)
    other = threading.Thread(target=readers[0].claim, args=(["b"], 1))
    other.start()
    other.join()
    readers[0].rest()
    assert in_order(tmp_path) == ["b"]


def test_an_epoch_that_is_left_takes_back_only_what_it_said(readers: list[Reader], tmp_path: Path) -> None:
    readers[0].expect([Need("a", 4)], "left")
    readers[0].expect([Need("b", 4)], "next")
    readers[0].expect([], "left")
    assert in_order(tmp_path) == ["b"]
    readers[0].expect([], "next")
    assert in_order(tmp_path) == []


@pytest.mark.parametrize("step", ["json.dumps", "pathlib.Path.replace"])
def test_an_epoch_may_be_collected_while_a_list_is_published(
    readers: list[Reader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The collector runs at any line; what it collects may be the reading of an epoch, which takes back its list."""
    readers[0].expect([Need("a", 4)], "left")
    owner, _, name = step.rpartition(".")
    done = getattr(pkgutil.resolve_name(owner), name)

    def collected_before(*args: Any) -> Any:
        monkeypatch.undo()
        readers[0].expect([], "left")
        return done(*args)

    monkeypatch.setattr(step, collected_before)
    publishing = threading.Thread(target=readers[0].claim, args=(["c"], 0), daemon=True)
    publishing.start()
    publishing.join(10)
    assert not publishing.is_alive()
    assert all_needs(tmp_path).ranks["c"][0] == 0


def test_a_list_for_which_there_is_no_room_is_withdrawn(
    readers: list[Reader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers[0].expect([Need("a", 0)])
    readers[1].expect([Need("b", 0)])

    def full(descriptor: int, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fchmod", full)  # the file is there, and nothing is in it
    readers[0].expect([Need("c", 1)])
    assert in_order(tmp_path) == ["b"]
    assert len(list(tmp_path.iterdir())) == 4
    monkeypatch.undo()
    readers[0].expect([Need("d", 1)])
    assert set(in_order(tmp_path)) == {"b", "d"}


def test_the_dead_need_nothing(tmp_path: Path) -> None:
    def need_and_die() -> None:
        reader = Reader(tmp_path)
        reader.join()
        reader.expect([Need("a", 0)])
        os.kill(os.getpid(), signal.SIGKILL)

    assert folders.status(folders.forked(need_and_die)) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert all_needs(tmp_path).ranks == {}
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_ends_leaves_nothing(readers: list[Reader], tmp_path: Path) -> None:
    readers[0].expect([Need("a", 0)])
    readers.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_fork_joins_anew_and_its_parent_stays(readers: list[Reader], tmp_path: Path) -> None:
    reader = readers[0]
    reader.expect([Need("a", 0)])

    def join() -> None:
        assert not reader.has_joined
        reader.rest()
        reader.join()
        reader.expect([Need("b", 0)])
        assert set(all_needs(tmp_path).ranks) == {"a", "b"}

    assert folders.status(folders.forked(join)) == 0
    assert set(all_needs(tmp_path).ranks) == {"a"}
