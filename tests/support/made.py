"""What Python makes, in a module that other processes can import: data sets and iterables of samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np


class Squares:
    """A map-style data set: item ``n`` is an array whose size grows with ``n``, and ``n`` squared."""

    def __init__(self, length: int = 50) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return np.full(10 * (index + 1), index), index**2


def encode(item: tuple[np.ndarray, int]) -> dict[str, Any]:
    return {"__key__": f"squares/{math.isqrt(item[1]):03}", "npy": item[0], "cls": item[1]}


def squares() -> list[dict[str, Any]]:
    """Return the samples of `Squares`."""
    return [encode(Squares()[index]) for index in range(50)]


def samples(length: int = 50) -> Iterator[dict[str, Any]]:
    """Yield the samples of `Squares`."""
    squares = Squares(length)
    for index in range(length):
        yield encode(squares[index])
