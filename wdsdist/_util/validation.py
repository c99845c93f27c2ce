"""Checks of arguments: each returns the value or raises a typed error that names it and its limit."""

from __future__ import annotations

import numpy as np

from wdsdist.errors import ArgumentError, ArgumentTypeError

MOST_PROCESSES = 1 << 20
"""The largest world size and number of lanes: an epoch's order takes memory for each of them."""


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return ``value`` when it is an integer in ``[low, high]``.

    Raises `ArgumentTypeError` for what is no integer, and `ArgumentError` outside the limits.

    >>> check_integer("batch_size", 64, 1)
    64
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentTypeError(f"{name} is {value!r}: it must be an integer")
    if value < low or (high is not None and value > high):
        limit = f"at least {low:,}" if high is None else f"between {low:,} and {high:,}"
        raise ArgumentError(f"{name} is {value:,}: it must be {limit}")
    return int(value)


def check_seconds(name: str, value: object) -> float:
    """Return ``value`` as a number of seconds above 0; ``inf`` is one.

    Raises `ArgumentError` for what is not a number, or not above 0.

    >>> check_seconds("timeout", 30)
    30.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentError(f"{name} is {value!r}: it must be a number of seconds")
    if not value > 0:  # also refuses nan, which would compare false with every deadline and wait for ever
        raise ArgumentError(f"{name} is {value!r}: it must be above 0 seconds")
    return float(value)
