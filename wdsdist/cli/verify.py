"""The command ``verify``, which checks shards and exits with 1 if they are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wdsdist.cli.options import access, command, field_list, opened, quiet_option, workers_option
from wdsdist.cli.output import contents, say
from wdsdist.cli.progress import shards_meter

if TYPE_CHECKING:
    from wdsdist.diagnostics.verify import Damage
    from wdsdist.shards.manifest import Manifest

_DAMAGED = 1


@command(
    "wdsdist verify shards",
    "wdsdist verify shards --deep --fields jpg,cls --quarantine bad.jsonl",
    samples="deep fields quarantine",
    repair="repair source",
)
@click.argument("shards", nargs=-1, required=True)
@click.option("--deep", is_flag=True, help="Decode every member, images and media to their ends.")
@click.option(
    "--fields", metavar="LIST", callback=field_list, help="Fields that every sample must have, such as 'jpg;png,cls'."
)
@click.option("--quarantine", metavar="FILE", help="Add each bad sample to FILE, which select --exclude takes.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired, and print what was done.")
@click.option("--source", metavar="PLACE", help="Folder or URL of intact copies, for --repair.")
@workers_option
@access
@quiet_option
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    shards: tuple[str, ...],
    deep: bool,
    repair: bool,
    source: str | None,
    workers: int | None,
    quiet: bool,
    **about_samples: Any,
) -> None:
    """Read all of SHARDS and compare them with their indexes.

    It prints the problems of each shard, and exits with status 1 if a problem remains. Only --repair changes files: it
    rebuilds indexes, and replaces a damaged tar with a verified copy.
    """
    from wdsdist.diagnostics.verify import verify as run
    from wdsdist.storage import shown as shown_location

    if source is not None and not repair:
        raise click.UsageError("--source goes with --repair: give both")
    manifest = opened(*shards)
    with shards_meter("verifying", quiet=quiet) as shown:
        found = run(manifest, deep=deep, workers=workers, progress=shown, **about_samples)
    for damage in found:
        say(f"{shown_location(damage.shard)}: {_line(damage.problem)}")
    if found and not (repair and _repaired(manifest, found, source)):
        ctx.exit(_DAMAGED)
    if not quiet:
        verdict = "all damage repaired" if found else "no damage"
        say(f"verified: {contents(manifest)}, {verdict}")


def _repaired(manifest: Manifest, found: list[Damage], source: str | None) -> bool:
    from wdsdist.diagnostics.repair import repair
    from wdsdist.storage import shown as shown_location

    repairs = repair(manifest, found, source=source)
    for one in repairs:
        say(f"{'repaired' if one.done else 'not repaired'}: {shown_location(one.shard)}: {_line(one.what)}")
    return all(one.done for one in repairs)


def _line(text: str) -> str:
    return " ".join(text.splitlines())
