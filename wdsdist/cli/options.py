"""Options and arguments that several commands share, and the data set that SHARDS name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import byte_size, check_path
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from wdsdist.shards.manifest import Manifest

_ACCESS = f"{__name__}.access"


def _keep_elsewhere(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta.setdefault(_ACCESS, {})["allow_elsewhere"] = value


def _keep_storage_options(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    found: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not (name and equals):
            # The value may be a secret: it is not shown.
            raise click.BadParameter("give KEY=VALUE, such as anon=true or client_kwargs.region_name=eu", ctx, param)
        *folders, last = name.split(".")
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                raise click.BadParameter(f"{name} lies inside {folder}, which has a value of its own", ctx, param)
        try:
            place[last] = json.loads(text)
        except ValueError:
            place[last] = text
    ctx.meta.setdefault(_ACCESS, {})["storage_options"] = found or None


COMMON = (
    click.Option(
        ["--storage-option"],
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        hidden=True,
        callback=_keep_storage_options,
        help="Option of the store's client: anon=true, profile=NAME.",
    ),
    click.Option(
        ["--allow-elsewhere"],
        is_flag=True,
        expose_value=False,
        hidden=True,
        callback=_keep_elsewhere,
        help="Let an index.json name shards outside its folder.",
    ),
)
"""Options of every command that opens data sets, as `wdsdist.open` takes them; ``wdsdist --help`` lists them once."""


def access(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options by which data sets are opened, `COMMON`."""
    params = command.__dict__.setdefault("__click_params__", [])
    params[:0] = reversed(COMMON)
    return command


def storage_option(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds ``--storage-option`` alone."""
    command.__dict__.setdefault("__click_params__", []).insert(0, COMMON[0])
    return command


def how_to_open() -> dict[str, Any]:
    """Return the options of `access` as `wdsdist.open` takes them: ``allow_elsewhere``, ``storage_options``."""
    return dict(click.get_current_context().meta[_ACCESS])


class Finite(click.FloatRange):
    """Type of an option: a number in a range that is neither NaN nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number.", param, ctx)
        return found


key_rule = click.option(
    "--key",
    metavar="RULE",
    default="first-dot",
    show_default=True,
    help="Where keys end in file names: first-dot, the convention; last-dot; or a regular expression of the key.",
)
"""The option of every command that cuts names."""


on_damage = click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a sample or tar with a fault: raise stops, skip leaves it out and lists it in a report.",
)


def opened(*shards: str) -> Manifest:
    """Open the data set that SHARDS on the command line mean, as the options of `access` say."""
    from wdsdist.shards.open import open as open_shards

    return open_shards(shards[0] if len(shards) == 1 else shards, **how_to_open())


FIELDS_HELP = "What each sample must have, and not empty, as in 'jpg;png,cls,txt?'."


def field_list(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Read the value of ``--fields``: extensions with commas between them.

    >>> from unittest.mock import Mock
    >>> field_list(Mock(), Mock(), "jpg;png, cls")
    ('jpg;png', 'cls')
    """
    return None if value is None else tuple(name.strip() for name in value.split(","))


def folder(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Read the value of an option that names a folder; an empty one, as of an unset variable, is an error."""
    return None if value is None else check_path(param.opts[0], value)


def byte_count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Read the value of an option: ``64MiB``, ``1GB`` or a plain number of bytes.

    >>> from unittest.mock import Mock
    >>> byte_count(Mock(), Mock(), "1.5KiB")
    1536
    """
    try:
        return None if value is None else byte_size(value)
    except ArgumentError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def dtypes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, np.dtype[Any]]:
    """Read the values of ``--dtype``: extensions of raw arrays, each with the dtype of their items.

    >>> from unittest.mock import Mock
    >>> dtypes(Mock(), Mock(), ("input_ids=int32",))
    {'input_ids': dtype('int32')}
    """
    import numpy as np

    found = {}
    for value in values:
        extension, _, name = value.partition("=")
        try:
            if not (extension and name):
                raise TypeError
            found[extension] = np.dtype(name)
        except TypeError:
            problem = f"{value!r} is no extension with a dtype, such as input_ids=int32"
            raise click.BadParameter(problem, ctx, param) from None
    return found


dtype_option = click.option(
    "--dtype",
    "dtypes",
    metavar="EXT=DTYPE",
    multiple=True,
    callback=dtypes,
    help="The dtype of the raw arrays in members with this extension: input_ids=uint16.  [several times]",
)
cache_dir_option = click.option(
    "--cache-dir",
    metavar="DIR",
    callback=folder,
    help="The cache folder, as cache_dir of StreamingDataset.  [default: in the user's cache]",
)
