"""`MemberReader` reads what it is asked for and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

import wdsdist
from tests.support.memory_store import Fault, MemoryStore
from wdsdist import storage
from wdsdist.diagnostics.view.member_reader import MemberReader
from wdsdist.errors import NotFoundError, StorageError
from wdsdist.shards.manifest import Manifest


def test_only_the_indexes_of_shards_that_are_shown_are_opened(tmp_path: Path) -> None:
    made = ({"txt": str(number)} for number in range(40))
    manifest = wdsdist.pack(made, tmp_path / "shards", shard_samples=1, shuffle_seed=None)
    reader = MemberReader(manifest)
    for number in (7, 8, 7):
        place = reader.place(number)
        assert reader.read(place, place.members[0]) == str(number).encode()
    assert reader.index.cache_info().misses == 2


def test_a_part_of_a_member_is_read_by_its_bytes(data: Manifest) -> None:
    reader = MemberReader(data)
    place = reader.place(2)
    member = next(one for one in place.members if one.extension == "txt")
    assert (reader.read(place, member, 2, 5), reader.read(place, member, 5, 99)) == (b"pti", b"on 2")


def test_a_sample_outside_and_a_shard_that_is_gone_are_named(shards: Manifest) -> None:
    reader = MemberReader(shards)
    with pytest.raises(IndexError, match="there is no sample 8: the data set has 8"):
        reader.place(8)
    place = reader.place(0)
    Path(shards.base, "shard-000000.tar").unlink()
    with pytest.raises(NotFoundError, match=r"shard-000000\.tar does not exist"):
        reader.read(place, place.members[0])


def test_wrong_bytes_of_a_store_are_fetched_once_more(tmp_path: Path) -> None:
    text = "text " * 10_000  # which lies in the middle of the shard, where the fault is
    folder = Path(wdsdist.pack([{"txt": text}], tmp_path / "shards").base)
    with MemoryStore({f"x/{path.name}": path.read_bytes() for path in folder.iterdir()}) as store:
        reader = MemberReader(wdsdist.open(f"{store.url}/x"))
        place = reader.place(0)
        store.plant(Fault("x/shard-000000.tar", "wrong-bytes", times=1))
        assert reader.read(place, place.members[0]) == text.encode()
        assert len(store.paths("read")) == 4, "index.json, the index, and the sample twice"


def test_a_shard_that_a_store_lacks_is_named(tmp_path: Path) -> None:
    folder = Path(wdsdist.pack([{"txt": "text"}], tmp_path / "shards").base)
    with MemoryStore({f"x/{path.name}": path.read_bytes() for path in folder.iterdir()}) as store:
        reader = MemberReader(wdsdist.open(f"{store.url}/x"))
        place = reader.place(0)
        del store.files["x/shard-000000.tar"]
        with pytest.raises(NotFoundError, match=r"shard shard-000000\.tar does not exist"):
            reader.read(place, place.members[0])


def test_a_store_that_does_not_answer_is_not_asked_for_the_whole_shard(tmp_path: Path) -> None:
    folder = Path(wdsdist.pack([{"txt": "text"}], tmp_path / "shards").base)
    with MemoryStore({f"x/{path.name}": path.read_bytes() for path in folder.iterdir()}) as store:
        reader = MemberReader(wdsdist.open(f"{store.url}/x"))
        place = reader.place(0)
        store.plant(Fault("x/shard-000000.tar", "error", error=ConnectionError("down")))
        soon = storage.RequestPolicy(patience=0.001, download_patience=0.001)
        with storage.use_policy(soon), pytest.raises(StorageError, match="down"):
            reader.read(place, place.members[0])
        assert not [one for one in store.requests if one.path.endswith(".tar") and one.stop is None]
