"""The command that makes data sets: ``pack``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist.cli.progress import meter
from wdsdist.cli.sizes import byte_count, contents

if TYPE_CHECKING:
    from wdsdist.packing import PackProgress


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
    class_folders: bool | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Pack SOURCE into shards in the folder DEST.

    SOURCE is a folder of files, or an IDX set such as mnist/train or train-images-idx3-ubyte.gz. Files whose paths
    agree up to the first dot of their names become one sample. An interrupted command goes on where it stopped when
    it is run again; a finished one returns at once.
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
            class_folders=class_folders,
            overwrite=overwrite,
            progress=show,
        )
    if quiet:
        return
    click.echo(f"{'packed' if wrote else 'packed already'}: {contents(manifest)}, in {manifest.base}")
    if classes := manifest.extra.get("classes"):
        click.echo(f"classes: {len(classes):,}, from {classes[0]} to {classes[-1]}, as cls members")
    for what, count in manifest.extra.get("skipped", {}).items():
        click.echo(f"skipped: {count:,} x {what}")
