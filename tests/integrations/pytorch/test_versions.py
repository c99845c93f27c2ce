"""Ranks that read different versions of an index.json do not train on different data without a word."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.gloo_ranks import Ranks
from tests.support.web import Web, served
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.batching import LengthGroups
from wdsdist.errors import StateError


@pytest.fixture
def web(shards: Path, tmp_path: Path) -> Iterator[Web]:
    shutil.copytree(shards, tmp_path / "web")
    with served(tmp_path / "web") as running:
        yield running


_loaders: list[StreamingDataLoader] = []


def open_loader(url: str, cache: str, **options: int) -> None:
    dataset = StreamingDataset(url, decode=True, cache_dir=cache, **options)  # type: ignore[arg-type]
    _loaders.append(StreamingDataLoader(dataset, 2, num_workers=0))


def open_mix(url: str, cache: str) -> None:
    _loaders.append(StreamingDataLoader(wdsdist.mix({url: 1}, decode=True, cache_dir=cache), 2, num_workers=0))


def open_planned(folder: str, **options: object) -> None:
    dataset = StreamingDataset(folder)
    _loaders.append(StreamingDataLoader(dataset, num_workers=0, collate_fn=list, **options))  # type: ignore[arg-type]


def open_view(folder: str, **how: Any) -> None:
    view = wdsdist.open(folder).select(**how)
    _loaders.append(StreamingDataLoader(StreamingDataset(view), 2, num_workers=0))


def play() -> int:
    """Play an epoch with the loader that was opened last."""
    return sum(1 for _ in _loaders[-1])


def open_on(ranks: Ranks, rank: int, function: Any, *args: Any, **options: Any) -> None:
    ranks.tell(rank, partial(function, *args, **options))
    assert ranks.outcome(rank) is None


def error_of_the_second(ranks: Ranks) -> str:
    """Play an epoch on the first rank, which waits for nobody, and return the error of the second one's."""
    ranks.tell(0, play)
    assert ranks.outcome(0) > 0, "nobody waits for the other rank"
    ranks.tell(1, play)
    error = ranks.outcome(1)
    assert isinstance(error, StateError)
    return str(error)


def check_alike(ranks: Ranks) -> None:
    first, second = ranks.all(play)
    assert first == second


def newer(web: Web) -> None:
    """Replace the index.json by one with its first shard taken away."""
    index = web.folder / "index.json"
    data = json.loads(index.read_text())
    del data["shardlist"][0]
    data["wdsdist"] = {}
    index.write_text(json.dumps(data))


# These first: a rank that was told of a difference has compared less than the other one.
def test_ranks_that_would_plan_other_batches_are_told_before_the_first(ranks: Ranks, tmp_path: Path) -> None:
    sample = ({"__key__": str(number), "txt": "x"} for number in range(40))
    wdsdist.pack(sample, tmp_path / "packed")
    for folder, shift in (("0", 0), ("1", 1), ("alike", 0)):
        shutil.copytree(tmp_path / "packed", tmp_path / folder)
        rows = (f"{number},{1 + (number * 7 + shift) % 13}\n" for number in range(40))
        (tmp_path / f"{folder}.csv").write_text("key,size\n" + "".join(rows))
        wdsdist.open(tmp_path / folder).add_columns(join=tmp_path / f"{folder}.csv")

    def planned(rank: int, folder: str, size: int = 4) -> None:
        open_on(ranks, rank, open_planned, str(tmp_path / folder), batches=LengthGroups(size, by="size"))

    planned(0, "0")
    planned(1, "alike")  # equal values, from a table elsewhere
    check_alike(ranks)
    for folder, size, message in (
        ("1", 4, "another set of columns than rank 0 .* planned by 'size', of which all ranks need the same values"),
        ("0", 5, "another plan of batches than rank 0 .* let all ranks pass the same options"),
    ):
        planned(0, "0")
        planned(1, folder, size)
        assert re.search(message, error_of_the_second(ranks))


def test_ranks_that_choose_other_samples_are_told_before_the_first_batch(ranks: Ranks, shards: Path) -> None:
    for rank in range(2):
        open_on(ranks, rank, open_view, str(shards), sample=20)
    check_alike(ranks)
    for rank in range(2):
        open_on(ranks, rank, open_view, str(shards), sample=20, seed=rank)
    assert f"rank 1 reads another choice of samples of {shards} than rank 0" in error_of_the_second(ranks)


@pytest.mark.parametrize("opening", [open_loader, open_mix])
def test_ranks_that_read_another_version_are_told_before_the_first_batch(
    ranks: Ranks, web: Web, tmp_path: Path, opening: Any
) -> None:
    for rank in range(2):
        open_on(ranks, rank, opening, web.url, str(tmp_path / "cache"))
        newer(web)
    assert f"rank 1 reads another index.json of {web.url} than rank 0" in error_of_the_second(ranks)


def test_a_data_set_that_grows_while_the_job_runs_may_be_opened_again(ranks: Ranks, web: Web, tmp_path: Path) -> None:
    for _ in range(2):
        ranks.all(open_loader, web.url, str(tmp_path / "cache"))
        check_alike(ranks)
        newer(web)


def test_a_rank_that_reads_alone_is_not_compared(ranks: Ranks, web: Web, tmp_path: Path) -> None:
    ranks.all(open_loader, web.url, str(tmp_path / "cache"))
    ranks.all(play)
    newer(web)
    ranks.tell(1, _alone, web.url, str(tmp_path / "cache"))
    assert ranks.outcome(1) > 0


def _alone(url: str, cache: str) -> int:
    open_loader(url, cache, num_replicas=1, rank=0)
    return play()
