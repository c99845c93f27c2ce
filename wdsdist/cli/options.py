"""Options and arguments that several commands share, and the data set that SHARDS name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import byte_size
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

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


def on_damage(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what becomes of samples and tars that cannot be read without losing some."""
    for option in (
        click.option("--salvage", is_flag=True, help="With skip, keep the samples before the damage of a tar."),
        click.option("--keep-first", is_flag=True, help="With skip, keep the first of members that are there twice."),
        click.option(
            "--on-error",
            type=click.Choice(["raise", "skip"]),
            default="raise",
            show_default=True,
            help="What becomes of a sample or tar with a fault: an error, or it is left out and listed in a report.",
        ),
    ):
        command = option(command)
    return command


def opened(shards: tuple[str, ...], *, allow_elsewhere: bool) -> Manifest:
    """Open the data set that SHARDS on the command line mean."""
    from wdsdist.shards.open import open as open_shards

    return open_shards(shards[0] if len(shards) == 1 else shards, allow_elsewhere=allow_elsewhere)


FIELDS_HELP = "What each sample must have, and not empty, as in 'jpg;png,cls,txt?'."


def field_list(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Read the value of ``--fields``: extensions with commas between them.

    >>> from unittest.mock import Mock
    >>> field_list(Mock(), Mock(), "jpg;png, cls")
    ('jpg;png', 'cls')
    """
    return None if value is None else tuple(name.strip() for name in value.split(","))


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


def extension_dtype(text: str) -> tuple[str, np.dtype[Any]]:
    """Read the value of ``--dtype``: the extension of raw arrays and their dtype.

    >>> extension_dtype("input_ids=uint16")
    ('input_ids', dtype('uint16'))
    """
    import numpy as np

    extension, _, name = text.partition("=")
    try:
        dtype = np.dtype(name) if name and extension else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.hasobject or not dtype.itemsize:
        raise click.BadParameter(
            f"{text!r} is no extension with a dtype, such as input_ids=int32", param_hint="--dtype"
        )
    return extension.lower(), dtype
