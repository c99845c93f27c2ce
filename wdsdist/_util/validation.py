"""Validation of arguments: each function returns the value, or raises a typed error that names it and its limit.

No numpy here: the command line starts without.
"""

from __future__ import annotations

import difflib
import numbers
import os
import re
from collections.abc import Collection, Hashable
from decimal import Decimal
from pathlib import Path

from wdsdist.errors import ArgumentError

MOST_PROCESSES = 1 << 20
"""The largest world size and number of lanes: an epoch's order takes memory for each of them."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS = {"": 1, "b": 1}
_FACTORS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)}
_FACTORS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return an integer argument in ``[low, high]`` as an ``int``.

    Raises `ArgumentError` for other types, and outside the limits.

    >>> check_integer("batch_size", 64, 1)
    64
    """
    # numpy's integers count too, but the check for them costs more than the rest, and images ask five times.
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        raise ArgumentError(f"{name} is {value!r}: it must be an integer", argument=name)
    number = int(value)
    if number < low or (high is not None and number > high):
        limit = f"at least {low:,}" if high is None else f"between {low:,} and {high:,}"
        raise ArgumentError(f"{name} is {number:,}: it must be {limit}", argument=name)
    return number


def check_flag(name: str, value: object) -> bool:
    """Return a bool, 0 or 1 as a ``bool``. Raises `ArgumentError` for anything else, such as the string "no"."""
    if not isinstance(value, Hashable) or value not in (False, True):
        raise ArgumentError(f"{name} is {value!r}: it must be True or False", argument=name)
    return bool(value)


def as_number(value: object) -> int | float | None:
    """Return a real number as Python's, also one of numpy; ``None`` for anything that is not a number, such as a bool.

    >>> as_number(3), as_number(0.5), as_number(True), as_number("3")
    (3, 0.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_number(name: str, value: object, low: float, high: float) -> float:
    """Return a number argument in ``[low, high]``. Raises `ArgumentError` for other types, and outside the limits."""
    number = as_number(value)
    if number is None or not low <= number <= high:
        raise ArgumentError(f"{name} is {value!r}: it must be a number between {low:g} and {high:g}", argument=name)
    return number


def check_seconds(name: str, value: object) -> float:
    """Return a number of seconds above 0, which may be ``inf``. Raises `ArgumentError` for anything else."""
    seconds = as_number(value)
    if seconds is None or not seconds > 0:  # nan is refused too: every comparison with it is false
        raise ArgumentError(f"{name} is {value!r}: it must be a number of seconds above 0", argument=name)
    return float(seconds)


def check_path(name: str, value: object) -> Path:
    """Return a path argument, with ``~`` replaced by the home folder.

    Raises `ArgumentError` for other types, and for an empty string, which would be the current folder.
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise ArgumentError(f"{name} is {value!r}: it must be a path", argument=name)
    if not path.strip() or "\0" in path:
        raise ArgumentError(f"{name} is {path!r}: it must be a path; write '.' for the current folder", argument=name)
    return Path(path).expanduser()


def check_column(name: str, value: object) -> str:
    """Return the name of a column. Raises `ArgumentError` for other types."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is {value!r}: it must be the name of a column", argument=name)
    return value


def check_callable(name: str, value: object) -> None:
    """Raise `ArgumentError` for an optional function that cannot be called."""
    if value is not None and not callable(value):
        raise ArgumentError(f"{name} is {value!r}: it must be a function", argument=name)


def check_bytes(name: str, value: object) -> int:
    """Return a number of bytes, at least 1, given as an integer or as a string such as ``64MiB`` or ``1.5 GB``.

    Raises `ArgumentError` for other types, for a string that is not a size, and for less than 1.

    >>> check_bytes("cache_limit", "1.5KiB"), check_bytes("cache_limit", "200GB"), check_bytes("cache_limit", 4096)
    (1536, 200000000000, 4096)
    """
    match = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None and match[2].lower() in _FACTORS:
        value = int(Decimal(match[1]) * _FACTORS[match[2].lower()])
    if not isinstance(as_number(value), int):
        raise ArgumentError(
            f"{name} is {value!r}: it must be a number of bytes, or a size such as 64MiB or 200GB", argument=name
        )
    return check_integer(name, value, 1)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "shard"), counted(6553, "sample"), counted(2, "retry"), counted(2, "batch")
    ('1 shard', '6,553 samples', '2 retries', '2 batches')
    """
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}{'es' if noun.endswith(('ch', 's')) else 's'}"
    return f"{number:,} {noun}"


def human(count: float) -> str:
    """Format a byte count with three or four digits and its unit.

    >>> human(1023), human(1536), human(67_108_864)
    ('1023 B', '1.5 KiB', '64.0 MiB')
    """
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} B" if power == 0 else f"{count:.1f} {_UNITS[power]}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(42), duration(200), duration(7300)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def hint(name: str, known: Collection[str], having: str = "it has") -> str:
    """Return the "did you mean" of an error: the names that an unknown one begins, the closest name, or all.

    >>> hint("jpgg", ["cls", "jpg"]), hint("x", ["cls", "jpg"]), hint("ids", ["ids.bytes", "ids.tokens"])
    ("did you mean 'jpg'?", 'it has cls, jpg', "did you mean 'ids.bytes' or 'ids.tokens'?")
    """
    near = [other for other in known if other.startswith(f"{name}.")][:4] or difflib.get_close_matches(name, known, 1)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"{having} {', '.join(known) or 'none'}"
