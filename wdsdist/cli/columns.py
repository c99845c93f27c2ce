"""The command ``columns``, which adds columns to a data set and lists those that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist._util.validation import counted
from wdsdist.cli.options import access, opened
from wdsdist.cli.output import say
from wdsdist.cli.progress import shards_meter

if TYPE_CHECKING:
    from wdsdist.shards.columns.add import Added, AddedColumn
    from wdsdist.shards.manifest import Manifest


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option(
    "--field", "fields", multiple=True, metavar="NAME", help="A value of small members, such as json.width or txt."
)
@click.option(
    "--probe", "probes", multiple=True, metavar="NAME", help="What headers say, such as jpg.width or npy.tokens."
)
@click.option("--join", "tables", multiple=True, metavar="TABLE", help="Parquet, CSV, JSON Lines or structured .npy.")
@click.option(
    "--on", default="key", metavar="COLUMN", help="Column that matches samples with rows: key, or json.uid=uid."
)
@click.option("--only", multiple=True, metavar="NAME", help="Of the columns of TABLE, just these.")
@click.option("--output", metavar="DIR", help="Keep the columns there.  [default: beside index.json]")
@click.option("--list", "lists", is_flag=True, help="List the columns that there are.")
@click.option("--workers", type=int, help="Shards read at once.  [default: one for each core, 16 of a remote store]")
@access
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def columns(
    shards: tuple[str, ...],
    fields: tuple[str, ...],
    probes: tuple[str, ...],
    tables: tuple[str, ...],
    on: str,
    only: tuple[str, ...],
    output: str | None,
    lists: bool,
    workers: int | None,
    quiet: bool,
) -> None:
    """Add columns to SHARDS, by which samples are chosen, or list them.

    A column has a value for each sample; `wdsdist select` and planned batches use it. --field reads small members: cls,
    txt, txt.length, json.size.width. --probe reads headers: jpg.width, jpg.height, npy.shape, npy.dtype, npy.tokens,
    input_ids.tokens:uint16, mp4.seconds, mp4.frames. --join adds the columns of a table, in any order of rows. Each
    option can be given several times. What is there already is kept, so the same command goes on where it was
    interrupted, and adds what is lacking after the data set has grown.
    """
    from wdsdist.shards.columns.add import add_columns

    manifest = opened(*shards)
    if fields or probes or tables or not lists:
        own, _, theirs = on.partition("=")
        with shards_meter("reading", quiet=quiet) as progress:
            added = add_columns(
                manifest, fields=fields, probe=probes, join_with=list(tables) or None,
                on={own: theirs} if theirs else own, only=only or None, output=output, workers=workers,
                progress=progress,
            )  # fmt: skip
        _report(added, quiet)
    if lists:
        _list(manifest)


def _report(added: Added, quiet: bool) -> None:
    for one in added.columns:
        if one.num_failed or (one.num_samples and one.num_missing == one.num_samples):
            say(_line(one), err=True)
        elif not quiet:
            say(_line(one))
    if quiet:
        return
    if added.join:
        say(f"joined {added.join}")
    say(f"columns: in {added.folder}")


def _line(one: AddedColumn) -> str:
    values = one.num_samples - one.num_missing
    text = f"{one.name}: {one.kind}, {counted(values, 'value')}, {one.num_missing:,} missing"
    if one.num_failed:
        text += f", {one.num_failed:,} of them in members that cannot be read, such as {one.first_failed}"
    return text if one.num_shards_made else f"{text}; it was there"


def _list(manifest: Manifest) -> None:
    """Print a line for each column: its name, kind, samples without a value, and what it was made by."""
    from wdsdist.errors import ArgumentError, IndexFormatError
    from wdsdist.shards.columns import column_file, from_index, read

    say("name", "kind", "missing", "made by")
    for name in read.names(manifest):
        stored = None
        try:
            stored = None if name in from_index.ALWAYS else column_file.load(manifest, name)
            if stored is None:
                say(name, "text" if name in ("key", "shard") else "int", "", "the shards' indexes")
                continue
            column = read.column(manifest, name)
            missing = 0 if column.is_missing is None else int(column.is_missing.sum())
            made_by = ", ".join(f"{what} {value}" for what, value in stored.made_by.items())
            say(name, column.kind, f"{missing:,}", made_by)
        except (ArgumentError, IndexFormatError) as error:
            say(name, "-", "-", str(error))
