"""Type aliases of numpy arrays, for short signatures; runs, distinct values and the order of integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]


def runs(starts: Int64s, chosen: npt.NDArray[np.integer]) -> tuple[Int64s, Int64s]:
    """Return the indices of all items of chosen runs, and the start of each of these runs among them, with the total.

    >>> indices, begins = runs(np.array([0, 2, 3, 6]), np.array([2, 0]))
    >>> indices.tolist(), begins.tolist()
    ([3, 4, 5, 0, 1], [0, 3, 5])
    """
    lengths = starts[1:][chosen] - starts[:-1][chosen]
    begins = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return np.repeat(starts[:-1][chosen] - begins[:-1], lengths) + np.arange(begins[-1]), begins


def distinct(values: Int64s) -> Int64s:
    """Return the distinct values, sorted; ``np.unique`` takes four times as long, and imports ``numpy.ma`` first.

    >>> distinct(np.array([4, 1, 4])).tolist()
    [1, 4]
    """
    values = np.sort(values, axis=None)
    chosen: Int64s = values[np.append(True, values[1:] != values[:-1])[: len(values)]]
    return chosen


def radix_order(keys: Int64s) -> Int64s:
    """Return the stable order of integers from 0 on: `argsort`, in linear time unless they are large.

    >>> radix_order(np.array([65_537, 3, 65_537, 2])).tolist()
    [3, 1, 0, 2]
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")  # numpy sorts 16 bits by radix
    most = int(keys.max(initial=0))
    for shift in range(16, most.bit_length(), 16):
        order = order[np.argsort((keys >> shift).astype(np.uint16)[order], kind="stable")]
    return order
