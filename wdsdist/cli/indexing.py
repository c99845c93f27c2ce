"""The command for shards that others made: ``index``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist.cli.progress import meter
from wdsdist.cli.sizes import contents

if TYPE_CHECKING:
    from wdsdist.indexing import IndexProgress
    from wdsdist.manifest import Manifest


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--output", metavar="DIR", help="Write the indexes there.  [default: beside the shards]")
@click.option("--workers", type=int, help="Shards read at once.  [default: one for each core, 16 of a remote store]")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def index(shards: tuple[str, ...], output: str | None, workers: int | None, quiet: bool) -> None:
    """Index tars that other tools wrote: an index for each, and an index.json for all.

    SHARDS may be local or URLs. Of remote tars with large members only the headers are read. With --output, open the
    data set by DIR.
    """
    manifest = _indexed(shards, output, workers, quiet)
    if not quiet:
        click.echo(f"indexed: {contents(manifest)}, in {manifest.base}")
        for what, count in manifest.extra.get("skipped", {}).items():
            click.echo(f"skipped: {count:,} x {what}")


def _indexed(shards: tuple[str, ...], output: str | None, workers: int | None, quiet: bool) -> Manifest:
    from wdsdist.indexing import index as run

    with meter("indexing", quiet=quiet) as shown:

        def show(state: IndexProgress) -> None:
            note = f"{state.shards_done:,} of {state.shards:,} shards, {state.samples_done:,} samples"
            shown.update(state.bytes_done, state.bytes, note)

        return run(shards[0] if len(shards) == 1 else shards, output=output, workers=workers, progress=show)
