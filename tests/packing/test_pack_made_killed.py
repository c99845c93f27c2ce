"""Packing what Python makes, killed in the middle, and the run that goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.programs import command
from wdsdist.packing import pack
from wdsdist.packing.plan import make_plan
from wdsdist.packing.sources import find
from wdsdist.packing.sources.python import spread
from wdsdist.packing.sources.source import Source

DataBytes = Callable[[Path], dict[str, bytes]]


def sample(number: int) -> dict[str, Any]:
    return {"txt": "text " * (number % 7), "cls": number}


SOURCES: dict[str, Callable[[], Any]] = {
    "data set": lambda: [sample(number) for number in range(300)],
    "iterable": lambda: map(sample, range(300)),
}


def in_the_fifth_shard(kind: str) -> int:
    """Return the number of a sample in the middle of that shard, which is not looked at beforehand."""
    if kind == "iterable":
        return 4 * 20 + 7
    source = find(SOURCES[kind]())
    assert isinstance(source, Source)
    plan = make_plan(source.contents.sizes, shuffle_seed=0, shard_bytes=64 << 20, shard_samples=20)
    return next(number for number in plan.samples(4)[3:].tolist() if number not in spread(300))


@pytest.mark.parametrize(("kind", "workers"), [("data set", 1), ("data set", 2), ("iterable", 1)])
def test_a_killed_run_is_continued_to_the_same_bytes(
    tmp_path: Path, data_bytes: DataBytes, kind: str, workers: int
) -> None:
    dest = tmp_path / "dest"
    stalling = command("stalling_samples", kind, in_the_fifth_shard(kind), dest, workers)[1:]
    forked.kill(*forked.start_until_a_byte(*stalling, pipe=tmp_path / "pipe"))

    assert list(dest.glob(".tmp-*-shard-000004.tar")), "it was killed in the middle of a shard"
    assert not (dest / "index.json").exists()
    whole = [path for path in dest.glob("*.tar") if path.with_name(path.name + ".wdsindex").exists()]
    assert whole
    before = {path: path.stat().st_ino for path in whole}

    pack(SOURCES[kind](), dest, shard_samples=20, workers=workers)
    pack(SOURCES[kind](), tmp_path / "undisturbed", shard_samples=20)
    assert data_bytes(dest) == data_bytes(tmp_path / "undisturbed")  # hence no temporary files either
    if kind == "data set":
        assert {path: path.stat().st_ino for path in whole} == before
