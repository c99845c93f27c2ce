"""Read and write tars, of GNU tar, bsdtar, Python and webdataset; which files are tars, and the names of key rules."""

from __future__ import annotations

import re

FIRST_DOT, LAST_DOT = "first-dot", "last-dot"

_COMPRESSED = re.compile(r"\.(?:tar\.(?:gz|bz2|xz|zst|lz4|z)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)


def is_compressed(name: str) -> bool:
    """Return whether a shard is compressed (gzip or zstd), by the extension of its name.

    >>> is_compressed("train-00.tar.zst"), is_compressed("train-00.tar")
    (True, False)
    """
    return _COMPRESSED.search(name) is not None


def is_tar(name: str) -> bool:
    """Return whether a file is a shard, a tar or compressed tar, by the extension of its name."""
    return name.lower().endswith(".tar") or is_compressed(name)
