"""Verification finds every damage that a shard can have."""

from __future__ import annotations

import errno
import gzip
import json
import re
import resource
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import flip
from tests.support.memory_store import MemoryStore
from tests.support.web import Answer, Asked, answering
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, DestinationError, NotFoundError
from wdsdist.packing import pack
from wdsdist.shards import build_index as indexing
from wdsdist.shards import index as shardindex
from wdsdist.shards import open as catalog
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.progress import ShardsProgress

FIRST, SECOND, THIRD = (f"shard-{number:06}.tar" for number in range(3))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of four samples."""
    (tmp_path / "source").mkdir()
    for number in range(12):
        (tmp_path / "source" / f"{number:03}.bin").write_bytes(bytes([number]) * 900)
        (tmp_path / "source" / f"{number:03}.txt").write_text(f"sample {number}")
    pack(tmp_path / "source", tmp_path / "shards", shard_samples=4)
    return tmp_path / "shards"


def expect(folder: Path, **problems: list[str]) -> None:
    """Assert that exactly these problems are found, each matching its pattern."""
    names = {"first": FIRST, "second": SECOND, "third": THIRD}
    wanted = [(names[which], pattern) for which, patterns in problems.items() for pattern in patterns]
    for workers in (1, 2):
        found = verify(folder, workers=workers)
        assert [damage.shard for damage in found] == [shard for shard, _ in wanted], found
        for damage, (_, pattern) in zip(found, wanted, strict=True):
            assert re.search(pattern, damage.problem), damage.problem


def test_nothing_is_wrong_with_what_was_just_packed(shards: Path) -> None:
    expect(shards)


def test_a_flipped_byte_in_the_data_shows_in_the_digest_and_against_the_index(shards: Path) -> None:
    flip(shards / SECOND, 600)
    expect(shards, second=["does not have the SHA-256 digest", "disagrees with the tar in digest"])


def test_a_flipped_byte_in_a_header_shows_in_the_structure_too(shards: Path) -> None:
    flip(shards / SECOND, 3)
    expect(shards, second=["a header has a wrong checksum", "does not have the SHA-256 digest"])


@pytest.mark.parametrize("lost", [1024, 1500])
def test_a_truncated_shard_shows_in_size_structure_and_digest(shards: Path, lost: int) -> None:
    content = (shards / THIRD).read_bytes()
    (shards / THIRD).write_bytes(content[:-lost])
    expect(
        shards,
        third=[f"is {lost:,} bytes short of what index.json gives", "the tar ends|member .* has", "SHA-256 digest"],
    )


def test_an_empty_shard_is_found(shards: Path) -> None:
    (shards / FIRST).write_bytes(b"")
    expect(shards, first=["bytes short of", "the file is empty", "SHA-256 digest"])


def test_a_shard_that_has_grown_is_found(shards: Path) -> None:
    with (shards / FIRST).open("ab") as stream:
        stream.write(b"more")
    expect(shards, first=["4 bytes longer than", "data after the closing blocks", "SHA-256 digest"])


def test_a_missing_shard_is_found(shards: Path) -> None:
    (shards / FIRST).unlink()
    expect(shards, first=["is not there"])


def test_a_folder_in_the_place_of_a_shard_is_found(shards: Path) -> None:
    (shards / FIRST).unlink()
    (shards / FIRST).mkdir()
    problems = verify(shards)
    assert problems[-1].problem == "is a folder, pipe or device, not a file: remove it, and fetch it again"
    assert {damage.shard for damage in problems} == {FIRST}


def test_a_missing_index_is_found(shards: Path) -> None:
    (shards / f"{FIRST}.wdsindex").unlink()
    expect(shards, first=["has no index shard-000000.tar.wdsindex beside it"])


def test_a_damaged_index_is_found(shards: Path) -> None:
    flip(shards / f"{FIRST}.wdsindex", 200)
    expect(shards, first=["is not a shard index"])


def test_the_index_of_another_shard_is_found(shards: Path) -> None:
    (shards / f"{FIRST}.wdsindex").write_bytes((shards / f"{SECOND}.wdsindex").read_bytes())
    expect(shards, first=["disagrees with the tar in digest, keys"])


@pytest.mark.parametrize(
    ("changes", "respect"),
    [
        (lambda index: {"size": index.size + 512}, "size"),
        (lambda index: {"offsets": index.offsets + 512}, "members"),
        (lambda index: {"sizes": index.sizes[::-1]}, "members"),
        (lambda index: {"extensions": ("bin", "cls")}, "members"),
    ],
)
def test_an_index_that_is_whole_but_wrong_is_found(
    shards: Path, changes: Callable[[ShardIndex], dict[str, Any]], respect: str
) -> None:
    sidecar = shards / f"{FIRST}.wdsindex"
    index = shardindex.load(sidecar)
    sidecar.write_bytes(shardindex.dumps(replace(index, **changes(index))))
    expect(shards, first=[rf"disagrees with the tar in {respect}: "])


def test_the_index_of_another_shard_is_found_beside_a_missing_one(shards: Path) -> None:
    (shards / f"{FIRST}.wdsindex").write_bytes((shards / f"{SECOND}.wdsindex").read_bytes())
    (shards / FIRST).unlink()
    expect(shards, first=["is not there", "disagrees with index.json"])


def test_a_whole_shard_of_another_data_set_is_found(shards: Path, tmp_path: Path) -> None:
    pack(tmp_path / "source", tmp_path / "other", shard_samples=3)
    for suffix in ("", ".wdsindex"):
        (shards / (FIRST + suffix)).write_bytes((tmp_path / "other" / (FIRST + suffix)).read_bytes())
    expect(shards, first=["bytes short of", "holds 3 samples, not the 4", "SHA-256 digest"])


def test_every_damage_is_reported_in_the_order_of_the_shards(shards: Path) -> None:
    (shards / THIRD).unlink()
    flip(shards / f"{SECOND}.wdsindex", 200)
    flip(shards / FIRST, 600)
    expect(shards, first=["SHA-256", "disagrees"], second=["is not a shard index"], third=["is not there"])


def test_packing_again_mends_what_was_deleted(shards: Path, tmp_path: Path) -> None:
    flip(shards / FIRST, 600)
    (shards / FIRST).unlink()
    pack(tmp_path / "source", shards, shard_samples=4)
    expect(shards)


def test_tars_of_other_tools_are_verified_against_their_indexes(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.tar").write_bytes((shards / FIRST).read_bytes())
    indexing.index(tmp_path / "foreign")
    assert verify(tmp_path / "foreign") == []
    flip(tmp_path / "foreign" / "a.tar", 600)
    assert {damage.shard for damage in verify(tmp_path / "foreign" / "a.tar")} == {"a.tar"}


def test_progress_counts_shards_bytes_and_damage(shards: Path) -> None:
    (shards / FIRST).unlink()
    told: list[ShardsProgress] = []
    verify(shards, workers=1, progress=told.append)
    total = catalog.open(shards).num_bytes
    assert [state.shards_done for state in told] == [0, 1, 2, 3]
    assert told[-1] == ShardsProgress(3, 3, total, total, 12, damaged=1)


def test_what_is_no_data_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        verify(tmp_path)


def test_zero_workers_are_refused(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="workers is 0"):
        verify(shards, workers=0)


def test_a_shard_in_a_store_takes_a_request_for_its_size_one_for_it_and_one_for_its_index(tmp_path: Path) -> None:
    pack(({"txt": f"sample {number}"} for number in range(4)), tmp_path)
    with MemoryStore({path.name: path.read_bytes() for path in tmp_path.iterdir()}) as store:
        assert verify(store.url) == []
        asked = [(one.verb, one.path) for one in store.requests if one.path.startswith(FIRST)]
        assert sorted(asked) == [("info", FIRST), ("read", FIRST), ("read", f"{FIRST}.wdsindex")]
        del store.files[f"{FIRST}.wdsindex"]
        assert "has no index" in verify(store.url)[0].problem


def test_a_url_that_is_signed_for_a_shard_alone_is_no_damage_of_it(shards: Path) -> None:
    index = json.loads((shards / "index.json").read_text())
    index["shardlist"] = [{**one, "url": f"{one['url']}?signature={one['url']}"} for one in index["shardlist"]]
    (shards / "index.json").write_text(json.dumps(index))

    def answer(asked: Asked) -> Answer:
        name, _, query = asked.path.removeprefix("/").partition("?")
        if name != "index.json" and query != f"signature={name}":
            return 403, {}, b""
        return 200, {}, (shards / name).read_bytes()

    with answering(answer) as (url, _):
        assert verify(f"{url}/index.json") == []
        flip(shards / "shard-000000.tar", 700)
        assert {one.part for one in verify(f"{url}/index.json")} == {"tar"}


def test_no_room_for_a_shard_that_is_fetched_or_decompressed_is_an_error_and_no_damage(
    shards: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "compressed"
    packed.mkdir()
    for tar in shards.glob("*.tar"):
        (packed / f"{tar.name}.gz").write_bytes(gzip.compress(tar.read_bytes()))
    indexing.index(packed)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MemoryStore({f"train/{path.name}": path.read_bytes() for path in shards.iterdir()}) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as a full disk
        try:
            with pytest.raises(DestinationError, match=r"cannot take faulty://.*File too large"):
                verify(f"{store.url}/train", workers=1)
            with pytest.raises(DestinationError, match=r"cannot take .*decompressed \(File too large\): make"):
                verify(packed, workers=1, deep=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_folder_to_decompress_shards_into_is_an_error_and_no_damage(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    (tar, *_) = shards.glob("*.tar")
    compressed = shards.parent / "compressed"
    compressed.mkdir()
    (compressed / "0.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    indexing.index(compressed)
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(DestinationError, match="No usable temporary directory found: set TMPDIR"):
        verify(compressed, deep=True)
