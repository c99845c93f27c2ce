"""How commands open the data set that they are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

allow_elsewhere = click.option(
    "--allow-elsewhere", is_flag=True, help="Let an index.json name shards outside its own folder or store."
)
"""The option of every command that opens a data set."""


def opened(shards: tuple[str, ...], *, allow_elsewhere: bool) -> Manifest:
    """Open the data set that SHARDS on the command line mean."""
    from wdsdist.shards.open import open as open_shards

    return open_shards(shards[0] if len(shards) == 1 else shards, allow_elsewhere=allow_elsewhere)
