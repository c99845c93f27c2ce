"""Training over views: the promises of a data set hold for the chosen samples, on any world, and resume exactly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import StateError
from wdsdist.shards.manifest import Manifest


def loader(view: Manifest, rank: int = 0, ranks: int = 1, batch_size: int = 4, **more: Any) -> StreamingDataLoader:
    dataset = StreamingDataset(view, decode=True, num_replicas=ranks, rank=rank, shuffle_window=16)
    return StreamingDataLoader(dataset, batch_size=batch_size, **{"num_workers": 0, "drop_last": False, **more})


def keys(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


def test_one_sample_and_mixes_and_concatenations_of_views(shards: Path) -> None:
    data = wdsdist.open(shards)
    low, high = data.select(keys=[f"k{n}" for n in range(9)]), data.select(keys=["k100", "k101"]).repeat(3)
    dataset = StreamingDataset(high, decode=True)
    assert [dataset[number]["cls"] for number in range(-6, 6)] == [100, 100, 100, 101, 101, 101] * 2
    joined = wdsdist.concat({"low": low, "high": high}, decode=True, num_replicas=1, rank=0)
    expected = Counter([*low.column("key"), *high.column("key")])
    assert Counter(sample["__key__"] for sample in joined) == expected
    assert joined.manifest.column("key").tolist() == [*low.column("key"), *high.column("key")]
    mixed = wdsdist.mix({"low": (low, 0.75), "high": (high, 0.25)}, samples_per_epoch=24, num_replicas=1, rank=0)
    assert Counter(sample["__dataset__"] for sample in mixed) == {"low": 18, "high": 6}


def test_a_state_of_another_view_is_refused_with_the_number_of_samples_that_differ(
    shards: Path, tmp_path: Path
) -> None:
    data = wdsdist.open(shards)
    one = wdsdist.open(data.select(exclude=["k1"]).save(tmp_path / "one"))
    other = wdsdist.open(data.select(exclude=["k2", "k3"]).save(tmp_path / "other"))
    state = loader(one).state_dict()
    with pytest.raises(StateError, match=r"so the views differ in 3 samples"):
        loader(other).load_state_dict(state)
    unsaved = data.select(exclude=["k2", "k3"])
    with pytest.raises(StateError, match=r"so the views differ in 1 samples at least"):
        loader(unsaved).load_state_dict(state)
    loader(other).load_state_dict(loader(unsaved).state_dict())  # the same samples, however they were named
