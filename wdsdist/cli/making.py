"""Commands that make data sets: ``pack`` and ``index``."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from wdsdist.cli.progress import meter
from wdsdist.cli.sizes import byte_count, contents

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from wdsdist.catalog import IndexProgress
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
@click.option(
    "--engine",
    type=click.Choice(["local", "dask", "ray"]),
    default="local",
    show_default=True,
    help="Who writes: processes here, or a cluster of yours whose workers see SOURCE and DEST.",
)
@click.option("--address", help="Where the cluster is.  [default: where the engine's own settings say]")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the order of the samples.")
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the source.")
@click.option(
    "--class-folders/--no-class-folders",
    default=None,
    help="Give each sample a cls member, the number of its folder in SOURCE.  [default: if they look like classes]",
)
@click.option("--max-side", metavar="N", type=int, help="Scale images down to N pixels on the longer side.")
@click.option("--quality", type=int, help="Of JPEG and WebP images that were scaled down, 1 to 95.  [default: 90]")
@click.option("--overwrite", is_flag=True, help="Replace another data set that wdsdist packed into DEST.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def pack(
    source: str,
    dest: str,
    shard_bytes: int,
    shard_samples: int | None,
    workers: int | None,
    engine: str,
    address: str | None,
    seed: int,
    no_shuffle: bool,
    class_folders: bool | None,
    max_side: int | None,
    quality: int | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Pack SOURCE into shards in the folder DEST.

    SOURCE is a folder of files, or an IDX set such as mnist/train or train-images-idx3-ubyte.gz. Files whose paths
    agree up to the first dot of their names become one sample. An interrupted command goes on where it stopped when
    it is run again; a finished one returns at once.
    """
    from wdsdist.packing import pack as run
    from wdsdist.storage import shown as shown_location

    wrote = False
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(_cluster(engine, address))
        shown = stack.enter_context(meter("packing", quiet=quiet))

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
            executor=executor,
            shuffle_seed=None if no_shuffle else seed,
            class_folders=class_folders,
            max_side=max_side,
            quality=quality,
            overwrite=overwrite,
            progress=show,
        )
    if quiet:
        return
    click.echo(f"{'packed' if wrote else 'packed already'}: {contents(manifest)}, in {shown_location(manifest.base)}")
    if classes := manifest.extra.get("classes"):
        click.echo(f"classes: {len(classes):,}, from {classes[0]} to {classes[-1]}, as cls members")
    for what, count in manifest.extra.get("skipped", {}).items():
        click.echo(f"skipped: {count:,} x {what}")


def _cluster(engine: str, address: str | None) -> AbstractContextManager[Executor | None]:
    if engine == "local":
        if address is not None:
            raise click.UsageError("--address goes with --engine dask or ray")
        return contextlib.nullcontext()
    from wdsdist.engines import connect

    return connect(engine, address)


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
