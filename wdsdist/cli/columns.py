"""The command ``columns``, which adds columns to a data set, and refreshes them."""

from __future__ import annotations

from typing import Any

import click

from wdsdist._util.validation import counted
from wdsdist.cli.options import command, of_shards, opened, quiet_option
from wdsdist.cli.output import meter, say


@command(
    "wdsdist columns shards --field json.width --probe jpg.width",
    "wdsdist columns shards --join scores.parquet --on key=id",
    join="join on only replace",
    advanced="output workers",
)
@of_shards
@click.option(
    "--field", "fields", multiple=True, metavar="NAME", help="A value of a small member: json.width.  [repeatable]"
)
@click.option("--probe", multiple=True, metavar="NAME", help="A value of a header, such as jpg.width.  [repeatable]")
@click.option("--join", multiple=True, metavar="TABLE", help="Parquet, Arrow, CSV, TSV or JSON Lines.  [repeatable]")
@click.option("--on", default="key", metavar="COLUMN", help="Column that matches rows, such as key=id.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this column of TABLE.  [repeatable]")
@click.option("--replace", is_flag=True, help="Replace values that differ from TABLE.")
@click.option("--output", metavar="DIR", help="Folder for the columns.  [default: next to index.json]")
@click.option("--workers", type=int, metavar="N", help="Shards read at once.  [default: one per core, 16 for a store]")
@quiet_option
def columns(shards: tuple[str, ...], on: str, quiet: bool, **options: Any) -> None:
    """Add columns to SHARDS, or refresh them.

    A column has one value per sample. `wdsdist select` and batches of variable lengths use columns. --field reads small
    members: cls, txt, txt.length, json.size.width. --probe reads headers: jpg.width, image.height of any image,
    npy.shape, npy.dtype, npy.tokens, mp4.seconds, mp4.frames. --join adds the columns of a table, with rows in any
    order, and fills in missing values. Without these options, existing columns of members get the values of appended
    shards; join tables again. `wdsdist info` lists the columns.
    """
    from wdsdist._util.arrow import KINDS
    from wdsdist.curation import column_file
    from wdsdist.curation.add import add_columns
    from wdsdist.curation.columns import column

    own, _, theirs = on.partition("=")
    options["only"], options["join"] = options["only"] or None, [*options["join"]] or None
    data = opened(*shards)
    with meter("reading", quiet=quiet) as progress:
        names = add_columns(data, on={own: theirs} if theirs else own, progress=progress, **options)
    if quiet:
        return
    for name in names:
        values = column(data.whole, name)
        filled = counted(len(values) - values.null_count, "value")
        say(f"{name}: {KINDS[str(values.type)]}, {filled}, {values.null_count:,} missing")
    if not names:
        say("no column lacks values of members")
    say(f"columns: in {column_file.folders(data)[0]}")
