"""How many batches cross together, and what workers keep to themselves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data._utils.pin_memory import pin_memory

from tests.support import tars
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist._util.shared_memory import AnonymousMemory
from wdsdist.loader.ipc import channel
from wdsdist.loader.ipc.channel import Channel
from wdsdist.loader.worker_iterator import NotedBatch
from wdsdist.samples.bad_samples import Replaced
from wdsdist.sampling.plan import Position, Reached
from wdsdist.shards import open as catalog
from wdsdist.shards.quarantine import BadEntry


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    return tars.write_shard(folder / "0.tar", 512)


@pytest.mark.parametrize(
    ("workers", "batch_size", "expected"),
    [(1, 4, 32), (2, 4, 16), (4, 4, 8), (4, 32, 1), (0, 4, 1)],
    ids=["many", "shared by two", "few for each", "too few", "no workers"],
)
def test_small_batches_cross_together_where_each_worker_has_many(
    many: Path, workers: int, batch_size: int, expected: int
) -> None:
    loader = StreamingDataLoader(StreamingDataset(many), batch_size, num_workers=workers)
    next(iter(loader))
    assert loader._tickets.start is not None
    assert loader._tickets.start.group == expected


def test_where_memory_is_short_batches_cross_one_by_one() -> None:
    a_twentieth = AnonymousMemory().available // 20
    assert Channel(1, 2, a_twentieth, group=32).group == 1
    assert Channel(1, 2, 1000, group=32).group == 32


def test_what_is_noted_of_a_batch_stays_with_it_when_it_is_pinned() -> None:
    replaced = Replaced(1, ((BadEntry("d001", "0.tar", "cls", "is empty"), ""),))
    noted = NotedBatch({"__key__": ["d002"]}, replaced, Reached(Position(0, 8, "2,1,9,0,4"), 1, 0.9))
    (pinned,) = pin_memory([noted])  # type: ignore[no-untyped-call]
    assert type(pinned) is NotedBatch
    assert pinned == noted
    assert type(pinned.reached.position) is Position


def frozen(samples: list[Any]) -> int:
    return gc.get_freeze_count()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """What the tests have imported, which they leave out of collections, counts again during one test."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("own", [True, False], ids=["our loader", "torch's"])
def test_a_worker_does_not_collect_what_it_inherited(many: Path, own: bool) -> None:
    if own:
        loader: Any = StreamingDataLoader(StreamingDataset(many), 4, num_workers=1, collate_fn=frozen)
    else:
        from torch.utils.data import DataLoader

        loader = DataLoader(StreamingDataset(many), 4, num_workers=1, collate_fn=frozen)
    assert next(iter(loader)) > 10_000
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_a_collection_leaves_out_what_is_there_while_a_data_set_opens_and_workers_start(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def watch(owner: Any, name: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: counts.append(gc.get_freeze_count()) or function(*a, **k))

    watch(catalog, "open")
    watch(channel, "Channel")
    next(iter(StreamingDataLoader(StreamingDataset(many), 4, num_workers=1)))
    assert len(counts) == 2
    assert min(counts) > 10_000
    assert gc.get_freeze_count() == 0


def test_what_a_program_has_frozen_stays_frozen(many: Path) -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    next(iter(StreamingDataLoader(StreamingDataset(many), 4, num_workers=1)))
    assert gc.get_freeze_count() >= 0.9 * count  # what an earlier test left may die meanwhile
