"""Marked padding: each sample counts once on any number of ranks, with equal batches, whoever makes them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import wdsdist
from tests.support.examples import fewer
from wdsdist import StreamingDataLoader, StreamingDataset, unpadded
from wdsdist.batching import LengthGroups
from wdsdist.errors import ArgumentError

TOTAL = 103


def make_dataset(shards: Path, rank: int, world: int, **more: Any) -> StreamingDataset:
    options = {"decode": True, "fields": ("cls",), "mark_padding": True, **more}
    return StreamingDataset(shards, num_replicas=world, rank=rank, **options)


def make_loader(shards: Path, rank: int, world: int, *, workers: int = 0, batch: int = 8, **more: Any) -> Any:
    of_loader = {name: more.pop(name) for name in ("collate_fn", "drop_last") if name in more}
    return StreamingDataLoader(make_dataset(shards, rank, world, **more), batch, num_workers=workers, **of_loader)


def counted(found: list[Any]) -> list[int]:
    return sorted(number for batch in found for number in unpadded(batch)["cls"].tolist())


class TestEverySample:
    @fewer()
    @given(
        world=st.integers(1, 9),
        batch=st.integers(1, 40),
        order=st.sampled_from(["shard", "sampler"]),
        shuffle=st.booleans(),
    )
    def test_counts_once_on_any_number_of_ranks(
        self, shards: Path, world: int, batch: int, order: str, shuffle: bool
    ) -> None:
        ranks = [list(make_loader(shards, r, world, batch=batch, order=order, shuffle=shuffle)) for r in range(world)]
        assert counted([one for rank in ranks for one in rank]) == list(range(TOTAL))
        assert len({tuple(len(one["cls"]) for one in rank) for rank in ranks}) == 1
        marks = sum(int(one["__padding__"].sum()) for rank in ranks for one in rank)
        assert marks == -TOTAL % world

    def test_counts_once_from_workers_too(self, shards: Path) -> None:
        ranks = [list(make_loader(shards, rank, 4, workers=2)) for rank in range(4)]
        assert counted([one for rank in ranks for one in rank]) == list(range(TOTAL))
        assert all(one["__padding__"].dtype == torch.bool for rank in ranks for one in rank)

    def test_counts_once_after_a_resume_on_another_world(self, shards: Path) -> None:
        first = [make_loader(shards, rank, 2, num_canonical_replicas=2) for rank in range(2)]
        taken = [one for loader in first for one in islice(loader, 3)]
        rest = [make_loader(shards, rank, 5, num_canonical_replicas=2) for rank in range(5)]
        for loader in rest:
            loader.load_state_dict(first[0].state_dict())
        assert counted(taken + [one for loader in rest for one in loader]) == list(range(TOTAL))

    def test_counts_once_under_a_foreign_loader(self, shards: Path) -> None:
        found = []
        for rank in range(4):
            dataset = make_dataset(shards, rank, 4, batch_size=8)
            found += list(DataLoader(dataset, batch_size=8, num_workers=2))
        assert counted(found) == list(range(TOTAL))

    def test_counts_once_in_a_mix_and_in_joined_data_sets(self, shards: Path) -> None:
        options: dict[str, Any] = {"decode": True, "mark_padding": True, "num_replicas": 4, "fields": ("cls",)}
        mixed = [wdsdist.mix({shards: 1}, samples_per_epoch=TOTAL, rank=rank, **options) for rank in range(4)]
        joined = [wdsdist.concat([shards], rank=rank, **options) for rank in range(4)]
        for several in (mixed, joined):
            found = [one for dataset in several for one in StreamingDataLoader(dataset, 8, num_workers=0)]
            assert counted(found) == list(range(TOTAL))


class TestTransforms:
    def test_see_the_mark_and_what_they_return_is_marked(self, shards: Path) -> None:
        def renamed(sample: dict[str, Any]) -> dict[str, Any]:
            return {"number": -100 if sample["__padding__"] else sample["cls"]}

        last = [list(make_loader(shards, rank, 4, transform=renamed))[-1] for rank in range(4)]
        assert [batch["__padding__"].tolist() for batch in last][:3] == [[False, False]] * 3
        assert last[3]["number"].tolist()[1] == -100
        assert last[3]["__padding__"].tolist() == [False, True]

    def test_may_return_tuples_with_the_mark_inside(self, shards: Path) -> None:
        def pair(sample: dict[str, Any]) -> tuple[int, bool]:
            return sample["cls"], sample["__padding__"]

        classes, marks = list(make_loader(shards, 3, 4, transform=pair))[-1]
        assert marks.tolist() == [False, True]
        assert len(classes) == 2

    def test_a_collate_fn_gets_the_marks(self, shards: Path) -> None:
        last = list(make_loader(shards, 3, 4, collate_fn=list))[-1]
        assert [sample["__padding__"] for sample in last] == [False, True]

    def test_a_sample_by_number_is_no_padding(self, shards: Path) -> None:
        assert make_dataset(shards, 0, 4)[5]["__padding__"] is False


class TestOptions:
    def test_without_the_option_nothing_is_marked_and_the_order_is_the_same(self, shards: Path) -> None:
        plain = list(make_loader(shards, 0, 4, mark_padding=False, drop_last=False))
        assert all("__padding__" not in batch for batch in plain)
        marked = list(make_loader(shards, 0, 4))
        assert [one["cls"].tolist() for one in plain[:-1]] == [one["cls"].tolist() for one in marked[:-1]]

    def test_the_loader_keeps_the_last_batch_unless_it_is_told_to_drop_it(self, shards: Path) -> None:
        assert (len(make_loader(shards, 0, 4)), len(make_loader(shards, 0, 4, drop_last=True))) == (4, 3)
        assert make_loader(shards, 0, 4).drop_last is False
        assert make_loader(shards, 0, 4, mark_padding=False).drop_last is True

    def test_dropping_what_is_to_be_counted_is_refused(self, shards: Path) -> None:
        with pytest.raises(ArgumentError, match=r"mark_padding is True and drop_last too.*pass drop_last=False"):
            StreamingDataset(shards, mark_padding=True, drop_last=True)


class TestWithOtherOptions:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_planned_batches_have_the_column_and_no_padding(self, shards: Path, workers: int) -> None:
        ranks = [
            StreamingDataLoader(
                make_dataset(shards, rank, 2, fields=("cls", "txt"), decode={"cls": int}),
                batches=LengthGroups(8, by="txt.bytes"),
                num_workers=workers,
            )
            for rank in range(2)
        ]
        found = [batch for rank in ranks for batch in rank]
        assert counted(found) == list(range(TOTAL))
        assert not any(bool(batch["__padding__"].any()) for batch in found)

    def test_a_substitute_of_a_bad_sample_is_marked_as_its_place_is(self, shards: Path) -> None:
        def picky(sample: dict[str, Any]) -> dict[str, Any]:
            if sample["cls"] % 5 == 0:
                raise wdsdist.BadSample("a multiple of five")
            return {"cls": sample["cls"], "seen": sample["__padding__"]}

        options: dict[str, Any] = {"transform": picky, "on_error": "replace", "error_budget": 1.0}
        found = [batch for rank in range(4) for batch in make_loader(shards, rank, 4, **options)]
        assert all(torch.equal(batch["seen"], batch["__padding__"]) for batch in found)
        assert sum(int(batch["__padding__"].sum()) for batch in found) == -TOTAL % 4
        assert all(number % 5 for number in counted(found))

    def test_planned_batches_drop_what_cannot_be_even_unless_padding_is_marked(self, shards: Path) -> None:
        options: dict[str, Any] = {"batches": LengthGroups(8, by="txt.bytes"), "num_workers": 0}

        def sizes(marks: bool, **more: Any) -> list[int]:
            dataset = make_dataset(shards, 0, 2, mark_padding=marks, samples_per_epoch=1)  # fewer samples than ranks
            return [len(batch["cls"]) for batch in StreamingDataLoader(dataset, **options, **more)]

        for more in ({}, {"drop_last": True}):
            with pytest.raises(ArgumentError, match="drop_last=True drops them all"):
                sizes(False, **more)
        assert sizes(True) == sizes(True, drop_last=False) == sizes(False, drop_last=False) == [1]
