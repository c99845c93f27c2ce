"""Compressed tars, decompressed once, in one pass, into a temporary file.

Such an archive can only be read from its start, and a shuffled shard holds samples from all over it: read in place,
it would have to be decompressed once for every shard. A temporary file costs the disk space of the tar while it is
packed, and makes everything else that of a plain tar. Nothing is unpacked under the names in the archive.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from wdsdist.errors import SourceError

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_CHUNK = 1 << 20
_LONGEST_WINDOW = 2**31  # bytes: of zstd's --long


def codec_of(path: Path) -> str | None:
    """Say by what a file is compressed, as its first bytes tell; ``None`` where it is not, or in an unknown way."""
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    return next((codec for magic, codec in _MAGIC.items() if start.startswith(magic)), None)


def unpacked(path: Path, codec: str, folder: Path) -> Path:
    """Decompress a file into one in a folder, and return that.

    Raises `SourceError` where it is cut or damaged.
    """
    target = folder / "unpacked.tar"
    with target.open("wb") as out:
        for piece in _pieces(path, codec):
            out.write(piece)
    return target


def _pieces(path: Path, codec: str) -> Iterator[bytes]:
    try:
        with _opened(path, codec) as stream:
            while piece := stream.read(_CHUNK):
                yield piece
    except SourceError:
        raise
    except Exception as error:  # each of the packages has its own, and zstandard's is not imported here
        raise SourceError(f"{path} is cut or damaged ({error}): fetch it again") from error


def _opened(path: Path, codec: str) -> IO[bytes]:
    if codec == "gzip":
        return cast("IO[bytes]", gzip.open(path))
    if codec == "bzip2":
        return cast("IO[bytes]", bz2.open(path))
    if codec == "xz":
        return cast("IO[bytes]", lzma.open(path))
    try:
        import zstandard
    except ImportError as error:
        raise SourceError(
            f'{path} is compressed by zstd, which needs a package that is not installed: pip install "wdsdist[zst]"'
        ) from error
    reader = zstandard.ZstdDecompressor(max_window_size=_LONGEST_WINDOW)
    return cast("IO[bytes]", reader.stream_reader(path.open("rb"), read_across_frames=True, closefd=True))
