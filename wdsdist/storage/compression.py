"""Compressed tars, decompressed as a stream of pieces into a file; and gzip in memory.

The first bytes of a file give its codec, as names are often wrong. A compressed tar can only be read from its start, so
it is decompressed once, in one pass, into a file.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from wdsdist._util.extras import extra
from wdsdist._util.files import reading, writing
from wdsdist.errors import SampleError, ShardDamagedError, StorageError, WdsdistError

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_SKIPPABLE = b"\x2a\x4d\x18"  # bytes 1 to 3 of the frame without data that pzstd begins with

_CHUNK = 1 << 20
_ZSTD_CHUNK = 2 << 10  # compressed: four bytes can stand for 128 KiB, and the result of a chunk is in memory twice
_LONGEST_WINDOW = 2**31  # bytes: of zstd's --long

_EXPANSION = 200
"""Times its own size that a file may expand to if the size of its tar is unknown. Tars of one-byte members, which are
mostly padding, reach 100; a bomb reaches 1,000 by gzip and far more by zstd."""
_ALWAYS = 256 << 20
"""Bytes that any file may expand to."""


def codec_of(path: Path) -> str | None:
    """Return the codec of a file by its first bytes; ``None`` if it is not compressed, or by an unknown codec.

    Raises `NotFoundError`, or `StorageError` if it cannot be read.
    """
    with reading(path), path.open("rb") as stream:
        start = stream.read(8)
    if start[1:4] == _SKIPPABLE:
        return "zstd"
    return next((codec for magic, codec in _MAGIC.items() if start.startswith(magic)), None)


def most_expanded(size: int) -> int:
    """Return the bytes that a file of a given size may expand to: 256 MiB, or 200 times its size."""
    return max(_ALWAYS, _EXPANSION * size)


def unpack(path: Path, target: Path, *, size: int = -1, label: str = "") -> None:
    """Decompress a file into another one.

    Args:
        path: what is compressed, by gzip or zstd.
        target: the file to write; an existing one keeps its inode.
        size: expected size; -1 if unknown, in which case the limit for bombs applies.
        label: names the file in errors; by default its path.

    Raises `ShardDamagedError` if it is cut or damaged, or expands to more than it may, `StorageError` if it cannot be
    read, and `DestinationError` if the target cannot be written.
    """
    label = label or str(path)
    remedy = f"; make room in {target.parent}, or set TMPDIR to another folder"
    flags = os.O_WRONLY | os.O_CREAT  # in place: the target may have been given its room before
    with writing(f"{label}, decompressed,", remedy), os.fdopen(os.open(target, flags, 0o666), "wb", _CHUNK) as out:
        out.writelines(_pieces(path, label, size))
        out.truncate()


def _pieces(path: Path, label: str, size: int = -1) -> Iterator[bytes]:
    """Yield the decompressed data of a file, in pieces of bounded size, up to its expected size or the bomb limit."""
    codec = codec_of(path)
    if codec is None:
        raise ShardDamagedError(
            f"{label} is not compressed by gzip or zstd: fetch it again, or unpack it to a plain .tar"
        )
    most = left = size if size >= 0 else most_expanded(path.stat().st_size)
    try:
        for piece in _zstd_pieces(path, label) if codec == "zstd" else _gzip_pieces(path):
            left -= len(piece)
            if left < 0:
                break
            yield piece
    except WdsdistError:
        raise
    except Exception as error:  # each of the packages has its own, and zstandard's is not imported here
        if isinstance(error, OSError) and error.errno:
            raise StorageError(f"{label} cannot be read: {error.strerror}") from error
        raise ShardDamagedError(f"{label} is cut or damaged ({error}): fetch it again") from error
    if size >= 0 and left:
        raise ShardDamagedError(
            f"{label} does not hold a tar of the {size:,} bytes that its index says: fetch or pack it again"
        )
    if left < 0:
        raise ShardDamagedError(
            f"{label} expands to over {most:,} bytes, more than {_EXPANSION} times its size, as a bomb does: if it is "
            f"not one, decompress it to a plain .tar, which has no limit"
        )


def _gzip_pieces(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as stream:
        while piece := stream.read(_CHUNK):
            yield piece


def _zstd_pieces(path: Path, label: str) -> Iterator[bytes]:
    zstandard = extra("zstandard", "zst", f"{label}, which is compressed by zstd,")
    decompressor = zstandard.ZstdDecompressor(max_window_size=_LONGEST_WINDOW)
    frame = None
    # Frame by frame, for the package's own reader takes a cut file for a whole one.
    with path.open("rb") as stream:
        while chunk := stream.read(_ZSTD_CHUNK):
            while chunk:
                frame = frame or decompressor.decompressobj()
                yield frame.decompress(chunk)
                chunk = b""
                if frame.eof:
                    chunk, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("it ends within a frame")


def unzip(data: bytes, most: int) -> bytes:
    """Decompress gzip in memory, all its streams.

    Raises `SampleError` if more than ``most`` bytes come out, ``EOFError`` for data that is cut short, and
    ``zlib.error`` for data that is not gzip.
    """
    parts: list[bytes] = []
    left, rest = most, data
    while rest:  # gzip files may hold several streams, one after another
        unpacker = zlib.decompressobj(wbits=31)
        parts.append(unpacker.decompress(rest, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise SampleError(f"a compressed member of {len(data):,} bytes unpacks to over {most:,} bytes")
        if not unpacker.eof:
            raise EOFError("the compressed data is cut short")
        rest = unpacker.unused_data.lstrip(b"\0")  # and zeros behind them, as gzip(1) has it
    return b"".join(parts)


class Expansion:
    """Limit on the total size that the compressed members of a shard unpack to, the same as for a compressed shard.

    A member counts once, however often it is decoded. Without the sum, each of a thousand members of a small shard
    could take what one may.
    """

    def __init__(self, size: int) -> None:
        self._most = self._left = most_expanded(size)
        self._counted: set[tuple[int, int]] = set()  # members and levels: `.gz.gz` has two

    def unzip(self, member: int, data: bytes, level: int, most: int) -> bytes:
        """Decompress a member, or at ``level`` 2 what came out of it.

        Raises `ShardDamagedError` when the shard's members unpack to more than they may, and what `unzip` raises.
        """
        content = unzip(data, most)
        if (member, level) not in self._counted:
            if len(content) > self._left:
                raise ShardDamagedError(
                    f"the compressed members of its shard unpack to over {self._most:,} bytes together, more than "
                    f"{_EXPANSION} times its size, as a bomb does: if it is not one, pack them uncompressed"
                )
            self._left -= len(content)
            self._counted.add((member, level))
        return content
