"""Keys that occur again, against what a dict of all keys gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist._util.array_types import Uint64s
from wdsdist.packing.sources import renaming
from wdsdist.packing.sources.renaming import Keys, normal, renamed
from wdsdist.shards.index import ShardIndex

keys = st.lists(
    st.sampled_from(["a", "b", "ab", "a~2", "a~3", "a~2~2", "a~02", "./a", "/b", "é", "é~2", "~2"]), max_size=30
)


def index(of: list[str]) -> ShardIndex:
    encoded = [key.encode() for key in of]
    none = np.zeros(0, np.int64)
    return ShardIndex(
        size=0, sha256="", extensions=(), sample_starts=np.zeros(len(of) + 1, np.int64), offsets=none, sizes=none,
        extension_ids=none.astype(np.uint32), key_starts=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(encoded), np.uint8),
    )  # fmt: skip


def expected(of: list[str]) -> list[str]:
    found: list[str] = []
    counts: dict[str, int] = {}
    taken = set(of)
    for key in of:
        name = key
        while name in found or (name != key and name in taken):
            counts[key] = counts.get(key, 1) + 1
            name = f"{key}~{counts[key]}"
        found.append(name)
    return found


@pytest.mark.parametrize("chunk", [1, 3, 1 << 16])
@given(st.lists(keys, max_size=3))
def test_names_are_those_that_a_dict_of_all_keys_gives(chunk: int, shards: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renaming, "_CHUNK", chunk)
        found = renamed(Keys.of(map(index, shards)))
    of = [normal(key.encode()).decode() for shard in shards for key in shard]
    assert [found.key(number, key) for number, key in enumerate(of)] == expected(of)
    assert len(set(expected(of))) == len(of)


def test_keys_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = Keys.hashes
    seeds: list[int] = []

    def collide(keys: Keys, seed: int) -> Uint64s:
        seeds.append(seed)
        return hashes(keys, seed) if seed > 1 else np.zeros(len(keys), np.uint64)

    monkeypatch.setattr(Keys, "hashes", collide)
    found = renamed(Keys.of([index(["a", "b", "a"])]))
    assert (found.samples.tolist(), found.suffixes.tolist()) == ([2], [2])
    assert seeds == [0, 1, 2, 2]


def test_keys_that_all_occur_again_take_few_bytes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(renaming, "_CHUNK", 1000)  # what is hashed together takes the same for any number of keys
    indexes = [index([f"{number:08}" for number in range(50_000)]) for _ in range(2)]
    tracemalloc.start()
    try:
        found = renamed(Keys.of(indexes))
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 50_000
    assert size / 50_000 < 20
    assert peak / 100_000 < 90


def test_hashes_follow_each_letter_and_its_place() -> None:
    def some() -> Iterator[str]:
        for length in (1, 2, 3):
            for number in range(5**length):
                yield np.base_repr(number + 5**length, 5)[1:]

    listed = list(some())
    assert len(set(Keys.of([index(listed)]).hashes(0).tolist())) == len(listed)
