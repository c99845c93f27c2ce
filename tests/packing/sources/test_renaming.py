"""Keys that several shards hold, against what a dict of all keys gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.packing.sources.webdataset import contents_of, packed_key
from wdsdist.shards.index import ShardIndex

keys = st.lists(
    st.sampled_from(["a", "b", "ab", "a~2", "a~~2", "a~", "./a", "/b", "é", "~2"]),
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


@pytest.mark.parametrize("escape", [False, True])
@given(st.lists(keys, min_size=1, max_size=12))
def test_a_key_that_an_earlier_shard_holds_carries_the_number_of_its_own(escape: bool, shards: list[list[str]]) -> None:
    merged = contents_of(["a.tar"] * len(shards), [index(shard) for shard in shards], {}, escape=escape)
    samples = merged.take(np.arange(sum(map(len, shards))))
    expected, seen, separator = [], set(), "~"
    while any(separator in key for shard in shards for key in shard):
        separator += "~"
    for number, key in ((number, packed_key(key)) for number, shard in enumerate(shards, 1) for key in shard):
        expected.append(f"{key}{separator}{number}" if key in seen else key)
        seen.add(key)
    assert [key for key, _ in samples] == expected
