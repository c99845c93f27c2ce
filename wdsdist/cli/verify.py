"""The command ``verify``, which checks shards and exits with 1 where they are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wdsdist.cli.options import FIELDS_HELP, access, field_list, opened
from wdsdist.cli.output import contents, say
from wdsdist.cli.progress import shards_meter

if TYPE_CHECKING:
    from wdsdist.diagnostics.verify import Damage
    from wdsdist.shards.manifest import Manifest

_DAMAGED = 1


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--deep", is_flag=True, help="Decode every member too: images, audio and video to their ends.")
@click.option("--fields", metavar="LIST", callback=field_list, help=FIELDS_HELP)
@click.option("--quarantine", metavar="FILE", help="Add each bad sample to FILE, once; select --exclude takes it.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired, and say what was done.")
@click.option("--source", metavar="PLACE", help="Folder or URL of whole copies, for --repair.")
@click.option("--workers", type=int, help="Processes that read.  [default: one for each core]")
@access
@click.option("-q", "--quiet", is_flag=True, help="Print damage only.")
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

    Prints one line for each damage, and exits with 1 if there is any that was not repaired.
    A tar is never changed but by --repair, which replaces a damaged copy by one that has proved to be whole.
    """
    from wdsdist.diagnostics.verify import verify as run
    from wdsdist.storage import shown as shown_location

    if source is not None and not repair:
        raise click.UsageError("--source says where --repair takes whole copies from: give both")
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
