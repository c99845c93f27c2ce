"""Commands that make data sets: ``pack`` and ``index``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist.cli.progress import meter
from wdsdist.cli.sizes import byte_count, contents

if TYPE_CHECKING:
    from wdsdist.catalog import IndexProgress
    from wdsdist.packing import PackProgress


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Read the values of a repeated option: ``image=jpg``."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, what = value.rpartition("=")
        if not equals or not name or name in found:
            raise click.BadParameter(f"{value!r} is not a column and its extension: write it as image=jpg", ctx, param)
        found[name] = what
    return found or None


@click.command()
@click.argument("source")
@click.argument("dest")
@click.option(
    "--shard-bytes",
    metavar="SIZE",
    callback=byte_count,
    default="64MiB",
    show_default=True,
    help="Most bytes of a shard.",
)
@click.option("--shard-samples", type=int, help="Most samples of a shard.  [default: only bytes count]")
@click.option("--workers", type=int, help="Processes that write.  [default: one for each core]")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the order of the samples.")
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the source.")
@click.option("--from", "kind", metavar="KIND", help="What SOURCE is, such as folder or csv.  [default: as it looks]")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=EXTENSION",
    callback=_pairs,
    help="Of a table, the member that a column becomes, as in image=jpg; __key__ for the key, nothing to leave it out.",
)
@click.option(
    "--class-folders/--no-class-folders",
    default=None,
    help="Give each sample a cls member, the number of its folder in SOURCE.  [default: if they look like classes]",
)
@click.option("--overwrite", is_flag=True, help="Replace another data set that wdsdist packed into DEST.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def pack(
    source: str,
    dest: str,
    shard_bytes: int,
    shard_samples: int | None,
    workers: int | None,
    seed: int,
    no_shuffle: bool,
    kind: str | None,
    columns: dict[str, str] | None,
    class_folders: bool | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Pack SOURCE into shards in the folder DEST.

    SOURCE is a folder of files, where those whose paths agree up to the first dot of their names become one sample; an
    IDX set such as mnist/train or train-images-idx3-ubyte.gz; or a table whose rows are samples: a .csv, .tsv or
    .jsonl file, .parquet or .arrow files, or a folder that datasets' save_to_disk wrote; a .zip or .tar archive of
    files, plain or compressed; WebDataset shards, by folder or pattern; or a URL of any of these. An interrupted
    command goes on where it stopped when it is run again; a finished one returns at once.
    """
    from wdsdist.packing import pack as run

    wrote = False
    with meter("packing", quiet=quiet) as shown:

        def show(state: PackProgress) -> None:
            nonlocal wrote
            wrote = True
            note = (
                f"{state.samples_done:,} of {state.samples:,} samples, {state.shards_done:,} of {state.shards:,} shards"
            )
            shown.update(state.bytes_done, state.bytes, note)

        manifest = run(
            source,
            dest,
            shard_bytes=shard_bytes,
            shard_samples=shard_samples,
            workers=workers,
            shuffle_seed=None if no_shuffle else seed,
            kind=kind,
            class_folders=class_folders,
            columns=columns,
            overwrite=overwrite,
            progress=show,
        )
    if quiet:
        return
    click.echo(f"{'packed' if wrote else 'packed already'}: {contents(manifest)}, in {manifest.base}")
    if columns := manifest.extra.get("columns"):
        click.echo("columns: " + ", ".join(f"{name} {_becomes(what)}" for name, what in columns.items()))
    if classes := manifest.extra.get("classes"):
        click.echo(f"classes: {len(classes):,}, from {classes[0]} to {classes[-1]}, as cls members")
    for what, count in manifest.extra.get("skipped", {}).items():
        click.echo(f"skipped: {count:,} x {what}")


def _becomes(extension: str) -> str:
    """Say what became of a column."""
    if not extension:
        return "left out"
    return "gives the key" if extension == "__key__" else f"as {extension}"


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--workers", type=int, help="Processes that read.  [default: one for each core]")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def index(shards: tuple[str, ...], workers: int | None, quiet: bool) -> None:
    """Index tars that other tools wrote: an index beside each, and index.json in their folder."""
    from wdsdist.catalog import index as run

    with meter("indexing", quiet=quiet) as shown:

        def show(state: IndexProgress) -> None:
            note = f"{state.shards_done:,} of {state.shards:,} shards, {state.samples_done:,} samples"
            shown.update(state.bytes_done, state.bytes, note)

        manifest = run(shards[0] if len(shards) == 1 else shards, workers=workers, progress=show)
    if not quiet:
        click.echo(f"indexed: {contents(manifest)}, in {manifest.base}")
