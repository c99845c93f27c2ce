"""Random shard layouts and worlds, through real tars and the real loader: each sample once, equal counts everywhere."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from tests.support.tars import write_numbered
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError


@dataclass(frozen=True)
class World:
    """Shards of so many samples, and who reads them how."""

    counts: tuple[int, ...]
    ranks: int = 1
    batch_size: int = 1
    workers: int = 0
    window: int = 10
    lanes: int | None = None
    drop_last: bool = False
    drop_last_batch: bool = False

    @contextmanager
    def shards(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as name:
            wdsdist.index(write_numbered(Path(name), self.counts), workers=1)
            yield Path(name)

    def loader(self, shards: Path, rank: int, **more: Any) -> StreamingDataLoader:
        dataset = StreamingDataset(
            shards, decode=True, num_replicas=self.ranks, rank=rank, shuffle_window=self.window,
            num_canonical_replicas=self.lanes, drop_last=self.drop_last,
        )  # fmt: skip
        chosen = {"num_workers": self.workers, "drop_last": self.drop_last_batch, **more}
        return StreamingDataLoader(dataset, self.batch_size, **chosen)


@st.composite
def worlds(draw: st.DrawFn, most_ranks: int, most_workers: int) -> World:
    return World(
        counts=tuple(draw(st.lists(st.integers(0, 12) | st.just(0), min_size=1, max_size=6).filter(any))),
        ranks=draw(st.integers(1, most_ranks)),
        batch_size=draw(st.integers(1, 6)),
        workers=draw(st.integers(min(1, most_workers), most_workers)),
        window=draw(st.integers(1, 30)),
        lanes=draw(st.none() | st.integers(1, 9)),
        drop_last=draw(st.booleans()),
        drop_last_batch=draw(st.booleans()),
    )


def check(world: World) -> None:
    total = sum(world.counts)
    per_rank = total // world.ranks if world.drop_last else -(-total // world.ranks)
    with world.shards() as shards:
        loaders = [world.loader(shards, rank) for rank in range(world.ranks)]
        if per_rank < (world.batch_size if world.drop_last_batch else 1):
            for loader in loaders:
                with pytest.raises(ArgumentError):
                    next(iter(loader))
            return
        epochs = [[[batch["cls"].tolist() for batch in loader] for loader in loaders] for _ in range(2)]
        for ranks in epochs:
            assert {len(rank) for rank in ranks} == {len(loader) for loader in loaders}
            assert len({tuple(map(len, rank)) for rank in ranks}) == 1
            counts = Counter(chain.from_iterable(chain.from_iterable(ranks)))
            if world.drop_last_batch:
                taken = world.ranks * (per_rank // world.batch_size) * world.batch_size
            else:
                taken = world.ranks * per_rank
            assert counts.total() == taken
            # As DistributedSampler pads: the first samples of the epoch come again, all before any comes a third time.
            assert set(counts.values()) <= {taken // total, -(-taken // total)}
        if world.workers:
            alone = world.loader(shards, 0, num_workers=0)
            assert [[batch["cls"].tolist() for batch in alone] for _ in range(2)] == [ranks[0] for ranks in epochs]


@fewer()
@given(worlds(most_ranks=8, most_workers=0))
@example(World(counts=(1,), ranks=4, batch_size=3))
@example(World(counts=(0, 0, 5, 0), ranks=8, lanes=3))
@example(World(counts=(3, 2), ranks=3, lanes=12, window=1, drop_last=True))
def test_every_layout_gives_each_sample_once_and_equal_batches(world: World) -> None:
    check(world)
