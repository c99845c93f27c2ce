"""Keys that several shards hold, against what a dict of all keys gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.packing.sources.webdataset import Shards, packed_key
from wdsdist.shards.index import ShardIndex

keys = st.lists(
    st.sampled_from(["a", "b", "ab", "a~2", "a~~2", "a~", "a~2~2", "a~02", "./a", "/b", "é", "é~2", "~2"]),
    max_size=9,
    unique_by=packed_key,  # a shard holds a key only once
)


def index(of: list[str]) -> ShardIndex:
    """An index of samples with one member each."""
    encoded = [key.encode() for key in of]
    zeros = np.zeros(len(of), np.int64)
    return ShardIndex(
        size=0, sha256="", extensions=("x",), sample_starts=np.arange(len(of) + 1), offsets=zeros, sizes=zeros,
        extension_ids=zeros.astype(np.uint32), key_starts=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(encoded), np.uint8),
    )  # fmt: skip


def packed(shards: list[list[str]], *, escape: bool = False) -> tuple[list[str], str]:
    """Return the keys that the samples of some shards are packed under, and what stands before the numbers."""
    merged = Shards(["a.tar"] * len(shards), [index(shard) for shard in shards], escape)
    samples = merged.contents({}, ()).take(np.arange(sum(map(len, shards))))
    return [key for key, *_ in samples.samples], merged.repeated_keys()[1]  # type: ignore[attr-defined]


def expected(shards: list[list[str]], separator: str) -> list[str]:
    of = [(number, packed_key(key)) for number, shard in enumerate(shards, 1) for key in shard]
    assert set(separator) == {"~"}
    assert not any(separator in key for _, key in of)
    found, seen = [], set()
    for number, key in of:
        found.append(f"{key}{separator}{number}" if key in seen else key)
        seen.add(key)
    return found


@pytest.mark.parametrize("escape", [False, True])
@given(st.lists(keys, min_size=1, max_size=12))
def test_a_key_that_an_earlier_shard_holds_carries_the_number_of_its_own(escape: bool, shards: list[list[str]]) -> None:
    found, separator = packed(shards, escape=escape)
    assert found == expected(shards, separator)
    assert len(set(found)) == len(found)


def test_keys_that_all_occur_again_take_few_bytes_each() -> None:
    import tracemalloc

    indexes = [index([f"{number:08}" for number in range(10_000)]) for _ in range(2)]
    tracemalloc.start()
    try:
        found, _ = Shards(["a.tar"] * 2, indexes).repeated_keys()
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.sum() == 10_000
    assert size / 20_000 < 2
    assert peak / 20_000 < 90
