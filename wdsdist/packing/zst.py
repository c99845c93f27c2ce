"""The compression of shards by zstd, as ``compress=`` names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from wdsdist._util.extras import extra
from wdsdist.errors import ArgumentError

_ZST = re.compile(r"zst(?::([0-9]{1,2}))?")
_LEVEL, _HIGHEST_LEVEL = 3, 22  # zstd's own
FLUSH_FRAME = 1  # the same
_PIECE = 1 << 20


def checked(compress: str | None) -> str | None:
    """Return the codec of shards with its level, which is zstd's default unless it is given.

    Raises `ArgumentError` for a string other than ``"zst"`` and ``"zst:LEVEL"``, and `ExtraMissingError`.

    >>> checked("zst"), checked("zst:19"), checked(None)
    ('zst:3', 'zst:19', None)
    """
    if compress is None:
        return None
    match = _ZST.fullmatch(compress) if isinstance(compress, str) else None
    level = int(match[1] or _LEVEL) if match else 0
    if not 1 <= level <= _HIGHEST_LEVEL:
        raise ArgumentError(
            f'compress is {compress!r}: it must be "zst", or "zst:LEVEL" with a level from 1 to {_HIGHEST_LEVEL}',
            argument="compress",
        )
    extra("zstandard", "zst", f"compress={compress!r}")
    return f"zst:{level}"


def stream(compress: str, write: Callable[[bytes], object]) -> Any:
    """Return a zstd compression stream that writes through a function; ``compress`` comes from `checked`.

    ``flush(FLUSH_FRAME)`` ends a frame: what comes later can be dropped.
    """
    import zstandard

    compressor = zstandard.ZstdCompressor(level=int(compress.partition(":")[2]), write_checksum=True)
    return compressor.stream_writer(SimpleNamespace(write=write), write_size=_PIECE)  # type: ignore[arg-type]
