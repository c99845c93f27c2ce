"""Virtual epochs of one data set: each sample once before any comes again, with exact length and resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import StateError

TOTAL = 103


def test_the_state_of_another_length_is_refused(shards: Path) -> None:
    def loader(length: int) -> StreamingDataLoader:
        return StreamingDataLoader(StreamingDataset(shards, samples_per_epoch=length), 8, num_workers=0)

    with pytest.raises(StateError, match="num_samples is 40 in the state and 50 here"):
        loader(50).load_state_dict(loader(40).state_dict())


class TestLen:
    @pytest.mark.parametrize(("drop_last", "expected"), [(False, 26), (True, 25)])
    def test_is_the_samples_of_this_rank(self, shards: Path, drop_last: bool, expected: int) -> None:
        dataset = StreamingDataset(shards, num_replicas=4, rank=1, drop_last=drop_last)
        assert len(dataset) == expected == len(list(dataset))
        assert len(StreamingDataset(shards, num_replicas=4, rank=1, samples_per_epoch=41)) == 11

    def test_asks_the_launcher_for_the_rank(self, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = StreamingDataset(shards)
        assert len(dataset) == TOTAL
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert len(dataset) == 26
        assert bool(dataset)
