"""Marked padding: each sample counts once on any number of ranks, with equal batches, whoever makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import wdsdist
from wdsdist import StreamingDataLoader, StreamingDataset, unpadded

TOTAL = 103


def make_dataset(shards: Path, rank: int, world: int, **more: Any) -> StreamingDataset:
    options = {"decode": True, "fields": ("cls",), "mark_padding": True, **more}
    return StreamingDataset(shards, num_replicas=world, rank=rank, **options)


def make_loader(shards: Path, rank: int, world: int, *, workers: int = 0, batch: int = 8, **more: Any) -> Any:
    of_loader = {name: more.pop(name) for name in ("collate_fn", "drop_last") if name in more}
    return StreamingDataLoader(make_dataset(shards, rank, world, **more), batch, num_workers=workers, **of_loader)


class TestTransforms:
    def test_see_the_mark_and_what_they_return_is_marked(self, shards: Path) -> None:
        def renamed(sample: dict[str, Any]) -> dict[str, Any]:
            return {"number": -100 if sample["__padding__"] else sample["cls"]}

        last = [list(make_loader(shards, rank, 4, transform=renamed))[-1] for rank in range(4)]
        assert [batch["__padding__"].tolist() for batch in last][:3] == [[False, False]] * 3
        assert last[3]["number"].tolist()[1] == -100
        assert last[3]["__padding__"].tolist() == [False, True]

    def test_a_sample_by_number_is_no_padding(self, shards: Path) -> None:
        assert make_dataset(shards, 0, 4)[5]["__padding__"] is False


class TestOptions:
    def test_the_loader_keeps_the_last_batch_unless_it_is_told_to_drop_it(self, shards: Path) -> None:
        assert (len(make_loader(shards, 0, 4)), len(make_loader(shards, 0, 4, drop_last=True))) == (4, 3)
        assert make_loader(shards, 0, 4).drop_last is False
        assert make_loader(shards, 0, 4, mark_padding=False).drop_last is True


class TestWithOtherOptions:
    def test_a_substitute_of_a_bad_sample_is_marked_as_its_place_is(self, shards: Path) -> None:
        def picky(sample: dict[str, Any]) -> dict[str, Any]:
            if sample["cls"] % 5 == 0:
                raise wdsdist.BadSample("a multiple of five")
            return {"cls": sample["cls"], "seen": sample["__padding__"]}

        options: dict[str, Any] = {"transform": picky, "on_error": "replace", "error_budget": 1.0}
        found = [batch for rank in range(4) for batch in make_loader(shards, rank, 4, **options)]
        assert all(torch.equal(batch["seen"], batch["__padding__"]) for batch in found)
        assert sum(int(batch["__padding__"].sum()) for batch in found) == -TOTAL % 4
        assert all(number % 5 for batch in found for number in unpadded(batch)["cls"].tolist())
