"""The command ``verify``, which checks shards and exits with 1 if they are damaged."""

from __future__ import annotations

from typing import Any

import click

from wdsdist.cli.options import command, field_list, number_option, of_shards, opened, quiet_option
from wdsdist.cli.output import contents, meter, say


@command(
    "wdsdist verify shards",
    "wdsdist verify shards --deep --fields jpg,cls --quarantine bad.jsonl",
    samples="deep fields quarantine",
    repair="repair source",
    advanced="workers",
)
@of_shards
@click.option("--deep", is_flag=True, help="Decode every member, images and media to their ends.")
@click.option(
    "--fields", metavar="LIST", callback=field_list, help="Fields that every sample must have, such as 'jpg;png,cls'."
)
@click.option("--quarantine", metavar="FILE", help="Add each bad sample to FILE, which select --exclude takes.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired, and print what was done.")
@click.option("--source", metavar="PLACE", help="Folder or URL of intact copies, for --repair.")
@number_option("--workers", help="Processes that read.  [default: one per core]")
@quiet_option
@click.pass_context
def verify(
    ctx: click.Context, /, shards: tuple[str, ...], repair: bool, source: str | None, quiet: bool, **options: Any
) -> None:
    """Read all of SHARDS and compare them with their indexes.

    It prints the problems of each shard, and exits with status 1 if a problem remains. Only --repair changes files: it
    rebuilds indexes, and replaces a damaged tar with a verified copy.
    """
    from wdsdist.diagnostics import verify as diagnostics
    from wdsdist.storage import shown

    if source is not None and not repair:
        raise click.UsageError("--source goes with --repair: give both")
    manifest = opened(*shards)
    with meter("verifying", quiet=quiet) as progress:
        damage = diagnostics.verify(manifest, progress=progress, **options)
    for problem in damage:
        say(f"{shown(problem.shard)}: {' '.join(problem.problem.splitlines())}")
    repairs = diagnostics.repair(manifest, damage, source=source) if repair else []
    for result in repairs:
        say(f"{'' if result.done else 'not '}repaired: {shown(result.shard)}: {' '.join(result.what.splitlines())}")
    if damage and not (repairs and all(result.done for result in repairs)):
        ctx.exit(1)
    if not quiet:
        say(f"verified: {contents(manifest)}, {'all damage repaired' if damage else 'no damage'}")
