"""Commands whose answer may be no: ``verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist.cli.progress import meter
from wdsdist.cli.sizes import contents

if TYPE_CHECKING:
    from wdsdist.verification import VerifyProgress

_DAMAGED = 1


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--workers", type=int, help="Processes that read.  [default: one for each core]")
@click.option("-q", "--quiet", is_flag=True, help="Print damage only.")
@click.pass_context
def verify(ctx: click.Context, shards: tuple[str, ...], workers: int | None, quiet: bool) -> None:
    """Read all of SHARDS and compare them with their indexes.

    Prints one line for each damage, and exits with 1 if there is any.
    """
    from wdsdist.catalog import open as open_shards
    from wdsdist.verification import verify as run

    manifest = open_shards(shards[0] if len(shards) == 1 else shards)
    with meter("verifying", quiet=quiet) as shown:

        def show(state: VerifyProgress) -> None:
            note = f"{state.shards_done:,} of {state.shards:,} shards, {state.damaged:,} damaged"
            shown.update(state.bytes_done, state.bytes, note)

        found = run(manifest, workers=workers, progress=show)
    for damage in found:
        click.echo(f"{damage.shard}: {' '.join(damage.problem.splitlines())}")
    if found:
        ctx.exit(_DAMAGED)
    if not quiet:
        click.echo(f"verified: {contents(manifest)}, no damage")
