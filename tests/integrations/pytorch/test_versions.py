"""Ranks that would read different samples, or in another way, do not begin to train without a word."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch

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
        ("1", 4, "another epoch than rank 0 .columns is '40:.*', not '40:.*give all ranks the same samples, .*columns"),
        ("0", 5, "another epoch than rank 0 .block_samples .* most is 5, not 4"),
    ):
        planned(0, "0")
        planned(1, folder, size)
        assert re.search(message, error_of_the_second(ranks))


def test_ranks_that_choose_other_samples_are_told_before_the_first(ranks: Ranks, shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "1")  # a node may have the data set elsewhere
    for rank, folder in enumerate((shards, tmp_path / "1")):
        open_on(ranks, rank, open_view, str(folder), sample=20)
    check_alike(ranks)
    for rank in range(2):
        open_on(ranks, rank, open_view, str(shards), sample=20, seed=rank)
    assert "rank 1 reads another epoch than rank 0 (fingerprint is '" in error_of_the_second(ranks)


def open_changed(folder: str, batch_size: int = 2, change: Any = id, **options: Any) -> None:
    loader = StreamingDataLoader(StreamingDataset(folder, **options), batch_size, num_workers=0)
    change(loader)
    _loaders.append(loader)


def resume(loader: StreamingDataLoader) -> None:
    loader.load_state_dict({**loader.state_dict(), "consumed": 8})


def test_ranks_that_would_begin_another_epoch_are_told_before_the_first_batch(ranks: Ranks, shards: Path) -> None:
    for difference, options in {
        "seed is 1, not 0": {"seed": 1},
        "shuffle is False, not True": {"shuffle": False},
        "batch_size is 3, not 2": {"batch_size": 3},
        "epoch is 4, not 0": {"change": methodcaller("set_epoch", 4)},
        "consumed is 8, not 0": {"change": resume},
    }.items():
        open_on(ranks, 0, open_changed, str(shards))
        open_on(ranks, 1, open_changed, str(shards), **options)
        assert f"rank 1 reads another epoch than rank 0 ({difference}" in error_of_the_second(ranks)


def test_a_loader_is_compared_with_the_same_loader_of_other_ranks(ranks: Ranks, shards: Path) -> None:
    assert ranks.all(_two_in_turn, str(shards)) == [2, 2]


def _two_in_turn(folder: str) -> int:
    """Iterate two loaders in an order of the rank's own; rank 0 has read with a third one before."""
    rank = torch.distributed.get_rank()
    if rank == 0:
        open_changed(folder, seed=7)
        play()
    for seed in range(2):
        open_changed(folder, seed=seed)
    return len([next(iter(loader)) for loader in _loaders[-2:][:: 1 - 2 * rank]])


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
