"""Bytes of members: what is fetched of a remote shard."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory_store import Fault, MemoryStore
from tests.support.tars import plain_tar
from tests.support.web import served
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.columns import from_members as member_bytes
from wdsdist.shards.index import ShardIndex, checksums, from_members
from wdsdist.shards.tar import scan
from wdsdist.storage import StorageOptions, named

PLACES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 100_000)), max_size=20)
OPTIONS: StorageOptions = named(None, [])


@given(PLACES)
def test_ranges_hold_all_that_is_wanted_and_little_more(places: list[tuple[int, int]]) -> None:
    offsets, lengths = (np.array([place[one] for place in places], np.int64) for one in (0, 1))
    ranges = member_bytes.coalesced(offsets, lengths)
    for start, length in places:
        assert not length or any(one <= start and start + length <= end for one, end in ranges)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert all(end - start <= sum(lengths) + member_bytes._WORTH_A_REQUEST * len(places) for start, end in ranges)


def shard(count: int, size: int) -> tuple[bytes, ShardIndex]:
    data = np.random.default_rng(0).bytes(size)
    content = plain_tar((f"{number:04}.bin", data[: size - number]) for number in range(count))
    return content, from_members(scan(content, label="x"), size=len(content), sha256="", label="x")


def read_bytes(store: MemoryStore) -> int:
    sizes = [
        (len(store.files[one.path]) if one.stop is None else one.stop) - (one.start or 0)
        for one in store.requests
        if one.verb == "read"
    ]
    return sum(sizes)


def test_only_what_is_asked_for_is_fetched() -> None:
    content, index = shard(10, 300_000)
    with (
        MemoryStore({"x.tar": content}) as store,
        member_bytes.opened(f"{store.url}/x.tar", index, OPTIONS, "x") as opened,
    ):
        opened.fill(index.offsets[[2, 7]], np.array([100, 50]))
        assert not opened.is_whole
        for member, length in ((2, 100), (7, 50)):
            offset = int(index.offsets[member])
            assert bytes(opened[offset : offset + length]) == content[offset : offset + length]
        assert read_bytes(store) == 150


def test_a_shard_of_which_most_is_needed_is_fetched_whole() -> None:
    content, index = shard(10, 30_000)
    with (
        MemoryStore({"x.tar": content}) as store,
        member_bytes.opened(f"{store.url}/x.tar", index, OPTIONS, "x") as opened,
    ):
        opened.fill(index.offsets, np.full(10, 100))
        assert opened.is_whole
        assert bytes(opened[0 : len(content)]) == content


def test_a_store_that_gives_no_ranges_gives_the_whole() -> None:
    content, index = shard(10, 300_000)
    with MemoryStore({"x.tar": content}) as store:
        store.plant(Fault("x.tar", "wrong-length", times=1, verb="read"))
        with member_bytes.opened(f"{store.url}/x.tar", index, OPTIONS, "x") as opened:
            opened.fill(index.offsets[:1], np.array([100]))
            assert bytes(opened[512:612]) == content[512:612]


@pytest.mark.parametrize("count", [1, 10])
def test_wrong_bytes_of_a_server_without_ranges_are_named(count: int, tmp_path: Path) -> None:
    content, index = shard(10, 300_000)
    index, members = checksums.added(index, memoryview(content)), np.arange(count)
    tmp_path.joinpath("x.tar").write_bytes(content[:600] + bytes([content[600] ^ 1]) + content[601:])
    with (
        served(tmp_path, ranges=False) as web,
        member_bytes.opened(f"{web.url}/x.tar", index, OPTIONS, "x.tar") as opened,
    ):
        opened.fill(*checksums.needed(index, members))
        with pytest.raises(ShardDamagedError, match="member 'bin' of sample '0000'"):
            opened.check(index, members, "x.tar")
