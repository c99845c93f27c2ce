"""Options and arguments that several commands share, and the data set that SHARDS name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist._util.validation import byte_size
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

allow_elsewhere = click.option(
    "--allow-elsewhere", is_flag=True, help="Let an index.json name shards outside its own folder or store."
)
"""The option of every command that opens a data set."""


key_rule = click.option(
    "--key",
    metavar="RULE",
    default="auto",
    show_default=True,
    help="Where keys end in file names: first-dot, the convention; last-dot; or a regular expression of the key. auto "
    "is first-dot unless the names show that it would put samples together.",
)
"""The option of every command that cuts names."""


def opened(shards: tuple[str, ...], *, allow_elsewhere: bool) -> Manifest:
    """Open the data set that SHARDS on the command line mean."""
    from wdsdist.shards.open import open as open_shards

    return open_shards(shards[0] if len(shards) == 1 else shards, allow_elsewhere=allow_elsewhere)


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
