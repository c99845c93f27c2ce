"""Counts of bytes and of things, as options and in what is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist._util.validation import byte_size, human
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

__all__ = ["byte_count", "contents", "counted", "human"]


def byte_count(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Read the value of an option: ``64MiB``, ``1GB`` or a plain number of bytes.

    >>> from unittest.mock import Mock
    >>> byte_count(Mock(), Mock(), "1.5KiB")
    1536
    """
    try:
        return byte_size(value)
    except ArgumentError as error:
        raise click.BadParameter(str(error), ctx, param) from None


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
