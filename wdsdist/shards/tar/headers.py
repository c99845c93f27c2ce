"""Write tar headers in bulk, with numpy: the same bytes as `header` returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wdsdist.shards.tar.blocks import Blocks
from wdsdist.shards.tar.writer import BLOCK, REGULAR

_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)


def plain_headers(names: Sequence[str], sizes: npt.NDArray[np.int64]) -> Blocks:
    """Return the plain USTAR headers of regular files: uint8 [members, 512].

    Args:
        names: ASCII without NUL, 1 to `PLAIN_NAME` bytes, no slash at their ends.
        sizes: int64 [members]: 0 to below `SIZE_LIMIT`.

    >>> from wdsdist.shards.tar import header
    >>> plain_headers(["a.jpg", "b.cls"], np.array([70_000, 1]))[1].tobytes() == header("b.cls", 1)
    True
    """
    template, template_sum = REGULAR
    blocks = np.empty((len(names), BLOCK), np.uint8)
    if not names:
        return blocks
    blocks[:] = np.frombuffer(template, np.uint8)
    letters = np.frombuffer("".join(names).encode("ascii"), np.uint8)
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    starts = np.cumsum(lengths) - lengths
    blocks.reshape(-1)[np.repeat(np.arange(len(names)) * BLOCK - starts, lengths) + np.arange(len(letters))] = letters
    digits = _octal(sizes, _SIZE)
    blocks[:, _SIZE] = digits
    sums = template_sum + np.add.reduceat(letters, starts, dtype=np.int64) + digits.sum(axis=1, dtype=np.int64)
    blocks[:, _CHECKSUM] = _octal(sums, _CHECKSUM)
    blocks[:, _CHECKSUM.stop] = 0
    return blocks


def _octal(numbers: npt.NDArray[np.int64], digits: slice) -> Blocks:
    shifts = 3 * np.arange(digits.stop - digits.start - 1, -1, -1)
    found: Blocks = ((numbers[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)
    return found
