"""Random shard layouts and worlds, through real tars and the real loader: each sample once, equal counts everywhere."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from tests.support.loaders import batches, flat
from tests.support.tars import write_numbered
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError


@dataclass(frozen=True)
class World:
    """Shards of so many samples, and who reads them how."""

    counts: tuple[int, ...]
    ranks: int = 1
    batch_size: int = 1
    window: int = 10
    lanes: int | None = None
    drop_last: bool = False
    drop_last_batch: bool = False

    def loader(self, shards: Path, rank: int) -> StreamingDataLoader:
        dataset = StreamingDataset(
            shards, decode=True, num_replicas=self.ranks, rank=rank, shuffle_window=self.window,
            num_canonical_replicas=self.lanes, drop_last=self.drop_last,
        )  # fmt: skip
        return StreamingDataLoader(dataset, self.batch_size, num_workers=0, drop_last=self.drop_last_batch)


worlds = st.builds(
    World,
    counts=st.lists(st.integers(0, 12) | st.just(0), min_size=1, max_size=6).filter(any).map(tuple),
    ranks=st.integers(1, 8),
    batch_size=st.integers(1, 6),
    window=st.integers(1, 30),
    lanes=st.none() | st.integers(1, 9),
    drop_last=st.booleans(),
    drop_last_batch=st.booleans(),
)


@fewer()
@given(worlds)
@example(World(counts=(1,), ranks=4, batch_size=3))
@example(World(counts=(0, 0, 5, 0), ranks=8, lanes=3))
@example(World(counts=(3, 2), ranks=3, lanes=12, window=1, drop_last=True))
def test_every_layout_gives_each_sample_once_and_equal_batches(world: World) -> None:
    total = sum(world.counts)
    per_rank = total // world.ranks if world.drop_last else -(-total // world.ranks)
    with tempfile.TemporaryDirectory() as name:
        wdsdist.index(write_numbered(Path(name), world.counts), workers=1)
        loaders = [world.loader(Path(name), rank) for rank in range(world.ranks)]
        if per_rank < (world.batch_size if world.drop_last_batch else 1):
            for loader in loaders:
                with pytest.raises(ArgumentError):
                    next(iter(loader))
            return
        if world.drop_last_batch:
            per_rank -= per_rank % world.batch_size
        for _ in range(2):
            ranks = [batches(loader) for loader in loaders]
            assert {len(rank) for rank in ranks} == {len(loader) for loader in loaders}
            assert len({tuple(map(len, rank)) for rank in ranks}) == 1
            counts = Counter(chain.from_iterable(map(flat, ranks)))
            taken = world.ranks * per_rank
            assert counts.total() == taken
            # As DistributedSampler pads: the first samples of the epoch come again, all before any comes a third time.
            assert set(counts.values()) <= {taken // total, -(-taken // total)}
