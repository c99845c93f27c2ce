"""Packing into compressed shards: the same tars as without, as whole, as resumable, as deterministic."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

import wdsdist
from tests.support.tars import listing
from wdsdist._util.extras import extra
from wdsdist.errors import ExtraMissingError
from wdsdist.packing import pack, writer
from wdsdist.packing.destination import Place
from wdsdist.packing.payloads import FilePayload, Sample
from wdsdist.shards import index as shardindex

DataBytes = Callable[[Path], dict[str, bytes]]


def plain(content: bytes) -> bytes:
    """Decompress all frames of a shard."""
    return zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()


def test_the_shards_hold_the_tars_that_packing_writes_otherwise(
    source: Path, tmp_path: Path, data_bytes: DataBytes
) -> None:
    pack(source, tmp_path / "plain", shard_bytes=20_000)
    manifest = pack(source, tmp_path / "zst", shard_bytes=20_000, compress="zst")
    expected, found = data_bytes(tmp_path / "plain"), data_bytes(tmp_path / "zst")
    tars = [name for name in expected if name.endswith(".tar")]
    assert len(tars) > 3
    assert {plain(found[f"{name}.zst"]) for name in tars} == {expected[name] for name in tars}
    assert found.keys() == {"index.json"} | {f"{name}.zst{end}" for name in tars for end in ("", ".wdsindex")}
    for name, listed in zip(sorted(tars), manifest.shards, strict=True):
        index = shardindex.load(tmp_path / "zst" / f"{name}.zst.wdsindex")
        assert index.stored == shardindex.Stored(listed.size, listed.sha256)
        assert shardindex.dumps(replace(index, stored=None)) == expected[f"{name}.wdsindex"]
        assert (listed.size, listed.tar_size) == (len(found[f"{name}.zst"]), len(expected[name]))
    assert not wdsdist.verify(tmp_path / "zst", deep=True)


def test_a_large_sample_that_breaks_off_leaves_no_trace_in_the_compressed_shard(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (3 << 12))

    def samples(*, broken: bool) -> Iterator[Sample]:
        whole, lost = FilePayload(str(large), large.stat().st_size), FilePayload("/nowhere", 5)
        yield "a", [("txt", b"1")]
        if broken:
            yield "b", [("bin", whole), ("txt", lost)]
        yield "c", [("bin", whole)]
        yield "d", [("txt", b"2")]
        if broken:
            yield "e", [("bin", whole), ("txt", lost)]

    found = []
    for number, broken in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        written = writer.write_shard(Place(str(folder)), "x.tar.zst", samples(broken=broken), "", "skip", "zst:3")
        content = (folder / "x.tar.zst").read_bytes()
        assert (written.listed.size, written.listed.tar_size) == (len(content), len(plain(content)))
        assert written.listed.sha256 == hashlib.sha256(content).hexdigest()
        assert [one.key for one in written.left_out] == ["b", "e"] * broken
        found.append(plain(content))
    assert found[0] == found[1]
    assert len(listing(found[0])) == 3


def test_without_the_package_nothing_is_begun(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    extra.cache_clear()
    with pytest.raises(ExtraMissingError, match=r'pip install "wdsdist\[zst\]"'):
        pack(source, tmp_path / "dest", compress="zst")
    assert not (tmp_path / "dest").exists()
