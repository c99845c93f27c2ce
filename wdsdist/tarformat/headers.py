"""Many tar headers at once: the same bytes as `header` gives, made by arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wdsdist.tarformat.writer import BLOCK, PLAIN_NAME, SIZE_LIMIT, regular_template

Blocks = npt.NDArray[np.uint8]

_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)


def is_plain(name: str, size: int) -> bool:
    """Say whether `plain_headers` can hold a member: a name of ASCII up to 100 bytes, a size below 8 GiB.

    >>> is_plain("cat/0001.jpg", 70_000), is_plain("köln/0001.jpg", 70_000)
    (True, False)
    """
    return 0 < len(name) <= PLAIN_NAME and size < SIZE_LIMIT and name.isascii() and "\0" not in name and name[-1] != "/"


def plain_headers(names: Sequence[str], sizes: npt.NDArray[np.int64]) -> Blocks:
    """Return the headers of regular files that are plain: uint8 [members, 512].

    >>> from wdsdist.tarformat import header
    >>> plain_headers(["a.jpg", "b.cls"], np.array([70_000, 1]))[1].tobytes() == header("b.cls", 1)
    True
    """
    template, template_sum = regular_template()
    blocks = np.empty((len(names), BLOCK), np.uint8)
    blocks[:] = np.frombuffer(template, np.uint8)
    padded = np.array([name.encode() for name in names], f"S{PLAIN_NAME}")
    blocks[:, :PLAIN_NAME] = padded.view(np.uint8).reshape(-1, PLAIN_NAME)
    blocks[:, _SIZE] = _octal(sizes, _SIZE)
    written = blocks[:, :PLAIN_NAME].sum(axis=1, dtype=np.int64) + blocks[:, _SIZE].sum(axis=1, dtype=np.int64)
    blocks[:, _CHECKSUM] = _octal(template_sum + written, _CHECKSUM)
    blocks[:, _CHECKSUM.stop] = 0
    return blocks


def _octal(numbers: npt.NDArray[np.int64], digits: slice) -> npt.NDArray[np.int64]:
    shifts = 3 * np.arange(digits.stop - digits.start - 1, -1, -1)
    return (numbers[:, None] >> shifts & 7) + ord("0")
