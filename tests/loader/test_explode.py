"""Training over the parts of records: each once on any world, and exact resumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support.tars import npy_bytes, plain_tar
from wdsdist import BadSample, StreamingDataLoader, StreamingDataset
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


@parted
def cut(sample: dict[str, Any], part: int, parts: int) -> dict[str, Any]:
    """Take the part out of both members; the array is changed in place first, which no other part may see."""
    sample["npy"] += 100
    kept = {name: sample[name] for name in ("__key__", "__part__", "__parts__", "__padding__") if name in sample}
    return {**kept, **{name: sample[name][stretch(len(sample[name]), part, parts)] for name in ("npy", "txt")}}


def dataset(data: Any, **options: Any) -> StreamingDataset:
    given = {"decode": True, "transform": cut, "num_replicas": 1, "rank": 0, "shuffle_window": 16, **options}
    return StreamingDataset(data, **given)


def loader(data: Any, batch_size: int = 4, workers: int = 0, how: str | None = None, **options: Any) -> Any:
    return StreamingDataLoader(
        dataset(data, **options), batch_size, num_workers=workers, drop_last=False, multiprocessing_context=how
    )


def parts(batches: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Return key, part and number of parts of each sample, after a check that it is what they say."""
    found = []
    for batch in batches:
        columns = zip(batch["__key__"], batch["__part__"].tolist(), batch["__parts__"].tolist(), strict=True)
        for (key, part, total), text, array in zip(columns, batch["txt"], batch["npy"].tolist(), strict=True):
            assert (text, array) == (chr(97 + part), [100 + part]), f"part {part} of {total} of {key}"
            found.append((key, part, total))
    return found


def test_each_part_has_a_seed_of_its_own_that_no_world_changes(data: Manifest) -> None:
    @seeded
    @parted
    def drawn(content: bytes, seed: int, part: int = 0, parts: int = 1) -> tuple[int, int, int]:
        return seed, part, parts

    view = data.explode("txt.bytes")

    def seeds(ranks: int) -> dict[tuple[str, int], int]:
        found = {}
        for rank in range(ranks):
            decode = {"txt": drawn}
            one = dataset(view, fields=("txt",), decode=decode, transform=None, num_replicas=ranks, rank=rank)
            for sample in one:
                seed, part, total = sample["txt"]
                assert (part, total) == (sample["__part__"], sample["__parts__"])
                found[sample["__key__"], part] = seed
        return found

    alone = seeds(1)
    assert len(set(alone.values())) == len(alone) == PARTS.total()
    assert seeds(3) == alone
    whole = StreamingDataset(data, fields=("txt",), decode={"txt": drawn}, num_replicas=1, rank=0)
    assert {sample["txt"][1:] for sample in whole} == {(0, 1)}
    assert "__part__" not in whole[0]


def test_a_bad_part_is_replaced_by_one_of_another_record(data: Manifest) -> None:
    def transform(sample: dict[str, Any]) -> Any:
        if sample["__key__"] == "s2k2" and sample["__part__"] in (3, 4):
            raise BadSample("a clip without a picture")
        return cut(sample, sample["__part__"], sample["__parts__"])

    found = Counter(parts(loader(data.explode("txt.bytes"), transform=transform, on_error="replace")))
    assert found.total() == PARTS.total()
    assert {key for key in PARTS if key not in found} == {("s2k2", 3, 24), ("s2k2", 4, 24)}
