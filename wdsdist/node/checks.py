"""Checks of arguments that several functions of this package share."""

from __future__ import annotations

from wdsdist.errors import ArgumentError


def positive_seconds(value: object, meaning: str) -> float:
    """Return ``value`` as a number of seconds above 0; ``inf`` is one.

    Raises:
        ArgumentError: it is not a number, or not above 0.

    Example:
        >>> positive_seconds(30, "the longest wait")
        30.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentError(f"timeout is {value!r}: {meaning} must be a number of seconds")
    if not value > 0:  # also refuses nan, which would compare false with every deadline and wait for ever
        raise ArgumentError(f"timeout is {value!r}: {meaning} must be above 0 seconds")
    return float(value)
