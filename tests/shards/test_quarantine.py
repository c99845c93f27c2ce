"""Quarantine files: each bad sample is read once, whoever appends to the file, and whatever killed writers left."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from tests.support.quarantine import read
from wdsdist.shards.quarantine import BadEntry, Quarantine

ENTRIES = [BadEntry(f"k{number}", "0.tar", "jpg", "is empty", "f" * 32) for number in range(200)]


def add_all(path: Path, start: int) -> None:
    quarantine = Quarantine(str(path))
    for place in range(len(ENTRIES)):
        quarantine.add([ENTRIES[(start + place) % len(ENTRIES)]])


def test_what_is_added_is_read() -> None:
    odd = BadEntry("k\udcff\n\u2028", "a/0.tar", "", "two\nlines", "f", "web")
    assert BadEntry(**json.loads(odd.line())) == odd
    assert "\n" not in odd.line()


def test_entries_of_several_processes_do_not_mix_and_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add_all, args=(path, start)) for start in (0, 50, 190)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(entry.key for entry in read(path)) == sorted(entry.key for entry in ENTRIES)


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_line_that_a_killed_writer_left_torn_is_skipped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    whole = f"{ENTRIES[0].line()}\n{ENTRIES[1].line()}".encode()
    path.write_bytes(whole[: len(whole) - cut])
    assert read(path) == (ENTRIES[:1] if cut else ENTRIES[:2])
    Quarantine(str(path)).add(ENTRIES[1:3])
    assert read(path) == ENTRIES[:3]


def test_a_process_lists_a_sample_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    quarantine = Quarantine(str(path))
    for _ in range(3):
        quarantine.add(ENTRIES[:3])
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    found = {"key": "k0", "shard": "0.tar", "field": "jpg", "reason": "is empty", "fingerprint": "f" * 32}
    assert json.loads(lines[0]) == found
