"""Counts of bytes and of things as people write and read them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from wdsdist.manifest import Manifest

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS = {"": 1, "b": 1}
_FACTORS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)}
_FACTORS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def byte_count(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Read the value of an option: ``64MiB``, ``1GB`` or a plain number of bytes.

    >>> from unittest.mock import Mock
    >>> byte_count(Mock(), Mock(), "1.5KiB"), byte_count(Mock(), Mock(), "1GB")
    (1536, 1000000000)
    """
    match = _WRITTEN.fullmatch(value.strip())
    if match is None or match[2].lower() not in _FACTORS:
        raise click.BadParameter(f"{value!r} is not a size: write it as 64MiB, 1GB or a number of bytes", ctx, param)
    return int(Decimal(match[1]) * _FACTORS[match[2].lower()])


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "shard"), counted(6553, "sample")
    ('1 shard', '6,553 samples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def contents(manifest: Manifest) -> str:
    """Say how much a data set holds."""
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.counts), "shard")
    return f"{samples} in {shards}, {human(manifest.num_bytes)}"


def human(count: float) -> str:
    """Return a byte count to three or four digits.

    >>> human(1023), human(1536), human(67_108_864)
    ('1023 B', '1.5 KiB', '64.0 MiB')
    """
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} B" if power == 0 else f"{count:.1f} {_UNITS[power]}"
