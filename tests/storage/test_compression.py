"""Compressed streams: whole or an error that names the file, never more than they may expand to."""

from __future__ import annotations

import gzip
import random
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tars import compressed
from wdsdist._util.extras import extra
from wdsdist.errors import ArgumentError, ExtraMissingError, NotFoundError, ShardDamagedError
from wdsdist.packing.options import Options
from wdsdist.storage import compression

CONTENT = random.Random(0).randbytes(5000) + bytes(300_000) + b"end"
SUFFIXES = ["gz", "zst"]
SKIPPABLE = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"  # a zstd frame without data


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def unpacked(path: Path, **options: int) -> bytes:
    target = path.with_name("target")
    compression.unpack(path, target, **options)
    return target.read_bytes()


STREAMS: dict[str, bytes] = {
    **{suffix: compressed(CONTENT, suffix) for suffix in SUFFIXES},
    **{f"parts of {suffix}": compressed(CONTENT[:9], suffix) + compressed(CONTENT[9:], suffix) for suffix in SUFFIXES},
    "frames without data": SKIPPABLE + zstandard.compress(CONTENT) + SKIPPABLE,
}


@pytest.mark.parametrize("stream", STREAMS)
def test_what_was_compressed_comes_out_whatever_the_name_says(tmp_path: Path, stream: str) -> None:
    path = write(tmp_path / "x.tar.gz", STREAMS[stream])
    assert unpacked(path) == unpacked(path, size=len(CONTENT)) == CONTENT


@given(suffix=st.sampled_from(SUFFIXES), data=st.data())
def test_a_stream_that_is_cut_anywhere_is_damage(suffix: str, data: st.DataObject) -> None:
    whole = compressed(CONTENT, suffix)
    cut = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 16, len(whole) - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / f"x.tar.{suffix}", whole[:cut])
        with pytest.raises(ShardDamagedError, match=rf"x\.tar\.{suffix} is (cut or damaged|not compressed)"):
            unpacked(path)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_what_follows_a_stream_and_is_none_is_damage(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(ShardDamagedError, match="is cut or damaged"):
        unpacked(write(tmp_path / f"x.tar.{suffix}", compressed(CONTENT, suffix) + b"<html>"))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_size_than_promised_is_damage(tmp_path: Path, suffix: str, size: int) -> None:
    path = write(tmp_path / f"x.tar.{suffix}", compressed(CONTENT, suffix))
    with pytest.raises(ShardDamagedError, match=rf"x\.tar\.{suffix} does not hold a tar of the {size:,}"):
        unpacked(path, size=size)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_does_not_fill_the_disk(tmp_path: Path, limit_expansion: Callable[..., None], pack: object) -> None:
    limit_expansion(1 << 20)
    bomb = pack(bytes(8 << 20)) * 8  # type: ignore[operator]
    path = write(tmp_path / "bomb.tar.zst", bomb)
    most = max(1 << 20, 200 * len(bomb))
    with pytest.raises(ShardDamagedError, match=rf"bomb.* expands to over {most:,} bytes, more than 200 times"):
        unpacked(path)
    assert (tmp_path / "target").stat().st_size <= most


def test_a_bomb_fills_no_memory(tmp_path: Path) -> None:
    frame = zstandard.ZstdCompressor().compressobj()
    bomb = b"".join(frame.compress(bytes(1 << 20)) for _ in range(500)) + frame.flush()
    path = write(tmp_path / "bomb.tar.zst", bomb)
    tracemalloc.start()
    try:
        with pytest.raises(ShardDamagedError, match="expands to over"):
            unpacked(path)
        assert tracemalloc.get_traced_memory()[1] < 140 << 20  # twice what a chunk can stand for
    finally:
        tracemalloc.stop()


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"x\.tar\.gz does not exist"):
        compression.codec_of(tmp_path / "x.tar.gz")


@pytest.mark.parametrize("given_", ["gz", "zst:0", "zst:23", "zst:", "zst:-1", "ZST", "", True, 3])
def test_another_way_to_compress_is_refused(given_: object) -> None:
    with pytest.raises(ArgumentError, match=r'compress is .*: it must be "zst", or "zst:LEVEL" with a level from 1 to'):
        Options(compress=given_)  # type: ignore[arg-type]


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.tar.zst", zstandard.compress(CONTENT))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    extra.cache_clear()
    with pytest.raises(
        ExtraMissingError, match=r'x\.tar\.zst, which is compressed by zstd.*pip install "wdsdist\[zst\]"'
    ):
        unpacked(path)
    with pytest.raises(ExtraMissingError, match=r'compress=\'zst\' needs.*pip install "wdsdist\[zst\]"'):
        Options(compress="zst")
