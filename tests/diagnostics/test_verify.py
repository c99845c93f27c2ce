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
from wdsdist.errors import DestinationError
from wdsdist.packing import pack
from wdsdist.shards import build_index as indexing
from wdsdist.shards import index as shardindex
from wdsdist.shards import open as catalog
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.progress import ShardsProgress

FIRST, SECOND, THIRD = (f"shard-{number:06}.tar" for number in range(3))


def cut(shards: Path, name: str, lost: int) -> None:
    (shards / name).write_bytes((shards / name).read_bytes()[:-lost])


def lose(shards: Path, *names: str) -> None:
    for name in names:
        (shards / name).unlink()


def copy(shards: Path, source: Path, *names: str) -> None:
    for name in names:
        (shards / name).write_bytes(source.read_bytes())


def change_index(shards: Path, changes: Callable[[ShardIndex], dict[str, Any]]) -> None:
    sidecar = shards / f"{FIRST}.wdsindex"
    index = shardindex.load(sidecar)
    sidecar.write_bytes(shardindex.dumps(replace(index, **changes(index))))


def swap(shards: Path) -> None:
    """Replace a shard by a whole one of another data set."""
    pack(shards.parent / "source", shards.parent / "other", shard_samples=3)
    for name in (FIRST, f"{FIRST}.wdsindex"):
        copy(shards, shards.parent / "other" / name, name)


def damage_all(shards: Path) -> None:
    lose(shards, THIRD)
    flip(shards / f"{SECOND}.wdsindex", 200)
    flip(shards / FIRST, 600)


SIDECAR = f"{FIRST}.wdsindex"
DAMAGES: list[tuple[str, Callable[[Path], None], dict[str, list[str]]]] = [
    ("nothing", lambda shards: None, {}),
    ("data", lambda shards: flip(shards / SECOND, 600),
     {SECOND: ["does not have the SHA-256 digest", "disagrees with the tar in digest"]}),
    ("header", lambda shards: flip(shards / SECOND, 3),
     {SECOND: ["a header has a wrong checksum", "does not have the SHA-256 digest"]}),
    *((f"cut {lost}", lambda shards, lost=lost: cut(shards, THIRD, lost),
       {THIRD: [f"is {lost:,} bytes short of what index.json gives", "the tar ends|member .* has", "SHA-256 digest"]})
      for lost in (1024, 1500)),
    ("empty", lambda shards: (shards / FIRST).write_bytes(b""),
     {FIRST: ["bytes short of", "closing blocks of zeros at byte 0 of 0", "SHA-256 digest"]}),
    ("grown", lambda shards: (shards / FIRST).write_bytes((shards / FIRST).read_bytes() + b"more"),
     {FIRST: ["4 bytes longer than", "data after the closing blocks", "SHA-256 digest"]}),
    ("missing", lambda shards: lose(shards, FIRST), {FIRST: ["is not there"]}),
    ("folder", lambda shards: (lose(shards, FIRST), (shards / FIRST).mkdir()),  # type: ignore[func-returns-value]
     {FIRST: ["is a folder, pipe or device, not a file: remove it, and fetch it again"]}),
    ("no index", lambda shards: lose(shards, SIDECAR), {FIRST: [f"has no index {SIDECAR} beside it"]}),
    ("index", lambda shards: flip(shards / SIDECAR, 200), {FIRST: ["is not a shard index"]}),
    ("index of another", lambda shards: copy(shards, shards / f"{SECOND}.wdsindex", SIDECAR),
     {FIRST: ["disagrees with the tar in digest, keys"]}),
    ("index of another beside a missing one",
     lambda shards: (copy(shards, shards / f"{SECOND}.wdsindex", SIDECAR), lose(shards, FIRST)),  # type: ignore[func-returns-value]
     {FIRST: ["is not there", "disagrees with index.json"]}),
    *((f"wrong {respect}", lambda shards, changes=changes: change_index(shards, changes),
       {FIRST: [rf"disagrees with the tar in {respect}: "]})
      for respect, changes in (
          ("size", lambda index: {"size": index.size + 512}),
          ("members", lambda index: {"offsets": index.offsets + 512}),
          ("members", lambda index: {"sizes": index.sizes[::-1]}),
          ("members", lambda index: {"extensions": ("bin", "cls")}))),
    ("another data set", swap, {FIRST: ["bytes short of", "holds 3 samples, not the 4", "SHA-256 digest"]}),
    ("all", damage_all,
     {FIRST: ["SHA-256", "disagrees"], SECOND: ["is not a shard index"], THIRD: ["is not there"]}),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "problems"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES])
def test_every_damage_is_found_in_the_order_of_the_shards(
    shards: Path, harm: Callable[[Path], None], problems: dict[str, list[str]]
) -> None:
    harm(shards)
    expected = [(name, pattern) for name, patterns in problems.items() for pattern in patterns]
    for workers in (1, 2):
        found = verify(shards, workers=workers)
        assert [damage.shard for damage in found] == [name for name, _ in expected], found
        for damage, (_, pattern) in zip(found, expected, strict=True):
            assert re.search(pattern, damage.problem), damage.problem


def test_progress_counts_shards_bytes_and_damage(shards: Path) -> None:
    (shards / FIRST).unlink()
    told: list[ShardsProgress] = []
    verify(shards, workers=1, progress=told.append)
    total = catalog.open(shards).num_bytes
    assert [state.shards_done for state in told] == [0, 1, 2, 3]
    assert told[-1] == ShardsProgress(3, 3, total, total, 12, damaged=1)


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


def gzipped(shards: Path) -> Path:
    """Make compressed copies of shards, with indexes."""
    folder = shards.parent / "compressed"
    folder.mkdir()
    for tar in shards.glob("*.tar"):
        (folder / f"{tar.name}.gz").write_bytes(gzip.compress(tar.read_bytes()))
    indexing.index(folder)
    return folder


def test_no_room_for_a_shard_that_is_fetched_or_decompressed_is_an_error_and_no_damage(shards: Path) -> None:
    packed = gzipped(shards)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MemoryStore({f"train/{path.name}": path.read_bytes() for path in shards.iterdir()}) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as a full disk
        try:
            with pytest.raises(DestinationError, match=r"a copy of faulty://.* cannot be written: File too large"):
                verify(f"{store.url}/train", workers=1)
            with pytest.raises(DestinationError, match=r"decompressed, cannot be written: File too large; make"):
                verify(packed, workers=1, deep=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_folder_to_decompress_shards_into_is_an_error_and_no_damage(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    compressed = gzipped(shards)
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(DestinationError, match="No usable temporary directory found: set TMPDIR"):
        verify(compressed, deep=True)
