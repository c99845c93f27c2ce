"""Columns by which batches are planned: what processors would make different numbers of is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import wdsdist
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.batching import LengthGroups, TokenBudget
from wdsdist.errors import ArgumentError


@pytest.mark.parametrize("value", ["inf", "1e300"])
@pytest.mark.parametrize(
    "batches", [LengthGroups(2, by="size"), TokenBudget(99, length="size", oversize="drop")], ids=["groups", "tokens"]
)
def test_numbers_without_a_bound_are_refused(tmp_path: Path, value: str, batches: Any) -> None:
    data = wdsdist.pack(({"__key__": str(number), "txt": "x"} for number in range(4)), tmp_path / "shards")
    rows = (f"{number},{value if number == 2 else 1.5}\n" for number in range(4))
    (tmp_path / "sizes.csv").write_text("key,size\n" + "".join(rows))
    data.add_columns(join=tmp_path / "sizes.csv")
    dataset = StreamingDataset(data, num_replicas=1, rank=0)
    with pytest.raises(ArgumentError, match="'size' holds no lengths"):
        next(iter(StreamingDataLoader(dataset, batches=batches, num_workers=0)))
