"""Forged indexes: a typed error that names the file, or an index whose parts fit together; never much memory."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tars import plain_tar
from wdsdist.errors import IndexFormatError
from wdsdist.shards import index as shardindex
from wdsdist.shards import manifest as manifests
from wdsdist.shards.index import ShardIndex, Stored
from wdsdist.shards.manifest import Manifest, Shard
from wdsdist.shards.scan import from_tar

PREAMBLE = struct.Struct("<8sII16s")
CONTENT = plain_tar((f"{number}.{extension}", b"1") for number in range(20) for extension in ("jpg", "cls"))
INDEX = shardindex.dumps(replace(from_tar(CONTENT, label="x"), sha256="ab" * 32, stored=Stored(999, "ef" * 32)))
MANIFEST = manifests.dumps(
    Manifest.of("/data", [Shard(f"s-{number}.tar", number, 512 * number, "cd" * 32, 9) for number in range(5)])
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
odd_values = json_values | st.sampled_from([-1, 2**31, 2**63, 2**64, 10**30, "x" * 10_000, [], {}, [0], [-1, -1]])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forged")


def with_checksum(header: bytes, data: bytes) -> bytes:
    """An index file whose checksum is right, whatever it holds."""
    digest = xxhash.xxh3_128(header + data).digest()
    return PREAMBLE.pack(b"wdsindex", 2, len(header), digest) + header + data


@contextlib.contextmanager
def refused(path: Path) -> Iterator[None]:
    """Pass over a refusal that names the file."""
    try:
        yield
    except IndexFormatError as error:
        if str(path) not in str(error):
            raise


def use(index: ShardIndex) -> None:
    """Read all that an index holds."""
    for sample in range(index.num_samples):
        index.key(sample)
        for _, offset, size in index.members(sample):
            assert 0 <= offset <= offset + size <= index.size
    assert index.is_uniform in (True, False)
    assert isinstance(index.file.size, int)
    assert isinstance(index.file.sha256, str)


def load_or_refuse(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with refused(path):
        use(shardindex.load(path))


@given(st.integers(0, 2**64))
def test_an_index_with_any_bytes_altered_and_a_right_checksum_is_sound_or_refused(place: Path, seed: int) -> None:
    rng = random.Random(seed)
    _, _, length, _ = PREAMBLE.unpack_from(INDEX)
    rest = bytearray(INDEX[PREAMBLE.size :])
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(length, len(rest)) if rng.random() < 0.7 else rng.randrange(len(rest))
        rest[start : start + 1] = rng.choice([rng.randbytes(1), rng.randbytes(8), b"\xff" * 8, b"", bytes(8)])
    load_or_refuse(place / "x.wdsindex", with_checksum(bytes(rest[:length]), bytes(rest[length:])))


@given(st.data())
def test_an_index_with_a_forged_header_is_sound_or_refused(place: Path, data: st.DataObject) -> None:
    _, _, length, _ = PREAMBLE.unpack_from(INDEX)
    header = json.loads(INDEX[PREAMBLE.size : PREAMBLE.size + length])
    for _ in range(data.draw(st.integers(1, 2))):
        parent: Any = data.draw(st.sampled_from([header, header.get("lengths"), header.get("stored")]))
        if not isinstance(parent, dict) or not parent:
            break
        key = data.draw(st.sampled_from(sorted(parent)))
        count = st.integers(-2, 5000) | st.integers(-2, 2**40)
        if data.draw(st.booleans()):
            parent[key] = data.draw(odd_values | count)
        else:
            del parent[key]
    text = json.dumps(header).encode()
    load_or_refuse(place / "x.wdsindex", with_checksum(text, INDEX[PREAMBLE.size + length :]))


def test_an_index_that_claims_much_takes_no_memory(place: Path) -> None:
    _, _, length, _ = PREAMBLE.unpack_from(INDEX)
    header = json.loads(INDEX[PREAMBLE.size : PREAMBLE.size + length])
    header["lengths"]["offsets"] = 2**40
    tracemalloc.start()
    load_or_refuse(place / "x.wdsindex", with_checksum(json.dumps(header).encode(), bytes(512)))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def open_or_refuse(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with refused(path):
        manifest = manifests.load(str(path))
        assert manifest.num_samples == sum(shard.num_samples for shard in manifest.shards) >= 0
        assert all(shard.size >= -1 for shard in manifest.shards)
        assert manifest.num_bytes >= 0
        assert manifest.fingerprint
        assert manifests.dumps(manifest)


@given(st.integers(0, 2**64))
def test_an_index_json_with_any_bytes_altered_is_sound_or_refused(place: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = bytearray(MANIFEST)
    for _ in range(rng.randint(1, 5)):
        start = rng.randrange(len(content))
        content[start : start + rng.choice([0, 1, 4])] = rng.choice(
            [rng.randbytes(1), b"", b"-", b"9" * 30, b'"', b"null", b"[" * 3000, b"\\ud800"]
        )
    open_or_refuse(place / "index.json", bytes(content))


@given(st.data())
def test_an_index_json_with_forged_values_is_sound_or_refused(place: Path, data: st.DataObject) -> None:
    content = json.loads(MANIFEST)
    for _ in range(data.draw(st.integers(1, 3))):
        parent = data.draw(st.sampled_from([content, content.get("wdsdist"), *content.get("shardlist", [])][:7]))
        if isinstance(parent, dict) and parent:
            parent[data.draw(st.sampled_from(sorted(parent)))] = data.draw(odd_values)
        if not isinstance(content.get("shardlist"), list):
            break
    open_or_refuse(place / "index.json", json.dumps(content).encode())


def test_one_long_name_among_many_shards_takes_no_memory(place: Path) -> None:
    content = json.loads(MANIFEST)
    content["shardlist"] = [{"url": f"{number}", "nsamples": 0} for number in range(20_000)]
    content["shardlist"][0]["url"] = "/".join(["x" * 99] * 39)
    del content["wdsdist"]
    (place / "index.json").write_text(json.dumps(content))
    tracemalloc.start()
    with pytest.raises(IndexFormatError, match="one of its 20,000 names has 3,899 letters"):
        manifests.load(str(place / "index.json"))
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
