"""Parts of records: their seeds, and what replaces a bad one. `test_contract` has the promises of an epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support.tars import npy_bytes, plain_tar
from wdsdist import BadSample, StreamingDataset
from wdsdist.shards.manifest import Manifest
from wdsdist.transforms import parted, seeded, stretch

SIZES = [[3, 0, 12, 1], [], [5, 5, 24, 2, 9], [7], [1, 1, 4]]
"""Parts of each record, which are bytes of its ``txt``, in each shard."""
PARTS = Counter(
    (f"s{shard}k{record}", part, size)
    for shard, sizes in enumerate(SIZES)
    for record, size in enumerate(sizes)
    for part in range(size)
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Records with as many bytes of ``txt`` as they have parts, and an array whose item ``i`` is part ``i``."""
    folder = tmp_path_factory.mktemp("records")
    for shard, sizes in enumerate(SIZES):
        members = (
            (f"s{shard}k{record}.{name}", content)
            for record, size in enumerate(sizes)
            for name, content in (("npy", npy_bytes(np.arange(size))), ("txt", bytes(range(97, 97 + size))))
        )
        (folder / f"{shard}.tar").write_bytes(plain_tar(members))
    return wdsdist.index(folder)


def dataset(data: Any, **options: Any) -> StreamingDataset:
    return StreamingDataset(data, **{"decode": True, "num_replicas": 1, "rank": 0, "shuffle_window": 16, **options})


@parted
def cut(sample: dict[str, Any], part: int, parts: int) -> dict[str, Any]:
    """Take the part out of both members; the array is changed in place first, which no other part may see."""
    if sample["__key__"] == "s2k2" and part in (3, 4):
        raise BadSample("a clip without a picture")
    sample["npy"] += 100
    return {**sample, **{name: sample[name][stretch(len(sample[name]), part, parts)] for name in ("npy", "txt")}}


@seeded
@parted
def drawn(content: bytes, seed: int, part: int = 0, parts: int = 1) -> tuple[int, int, int]:
    return seed, part, parts


def test_each_part_has_a_seed_of_its_own_that_no_world_changes(data: Manifest) -> None:
    view = data.explode("txt.bytes")

    def seeds(ranks: int) -> dict[tuple[str, int], int]:
        found = {}
        for rank in range(ranks):
            for sample in dataset(view, fields=("txt",), decode={"txt": drawn}, num_replicas=ranks, rank=rank):
                seed, part, total = sample["txt"]
                assert (part, total) == (sample["__part__"], sample["__parts__"])
                found[sample["__key__"], part] = seed
        return found

    alone = seeds(1)
    assert len(set(alone.values())) == len(alone) == PARTS.total()
    assert seeds(3) == alone
    whole = dataset(data, fields=("txt",), decode={"txt": drawn})
    assert {sample["txt"][1:] for sample in whole} == {(0, 1)}
    assert "__part__" not in whole[0]


def test_a_bad_part_is_replaced_by_one_of_another_record(data: Manifest) -> None:
    found = Counter[tuple[str, int, int]]()
    for sample in dataset(data.explode("txt.bytes"), transform=cut, on_error="replace"):
        part = sample["__part__"]
        assert (sample["txt"], sample["npy"].tolist()) == (chr(97 + part), [100 + part])
        found[sample["__key__"], part, sample["__parts__"]] += 1
    assert found.total() == PARTS.total()
    assert {key for key in PARTS if key not in found} == {("s2k2", 3, 24), ("s2k2", 4, 24)}
