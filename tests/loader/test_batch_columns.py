"""Columns by which batches are planned: what processors would make different numbers of is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import wdsdist
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError


@pytest.mark.parametrize("value", ["inf", "1e300"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group_by": "size"}, "'size' holds no lengths"),
        ({"max_tokens": 99, "length": "size", "oversize": "drop"}, "'size' holds no lengths"),
        ({"group_by": "bytes", "cost": "size"}, "'size' holds no costs"),
    ],
)
def test_numbers_without_a_bound_are_refused(tmp_path: Path, value: str, options: dict[str, Any], reason: str) -> None:
    data = wdsdist.pack(({"__key__": str(number), "txt": "x"} for number in range(4)), tmp_path / "shards")
    rows = (f"{number},{value if number == 2 else 1.5}\n" for number in range(4))
    (tmp_path / "sizes.csv").write_text("key,size\n" + "".join(rows))
    data.add_columns(join=tmp_path / "sizes.csv")
    dataset = StreamingDataset(data, num_replicas=1, rank=0)
    with pytest.raises(ArgumentError, match=reason):
        next(iter(StreamingDataLoader(dataset, 2, num_workers=0, **options)))
