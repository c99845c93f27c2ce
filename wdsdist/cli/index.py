"""The command ``index``, for shards that other tools wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted
from wdsdist.cli.options import access, how_to_open, key_rule, on_damage, opened
from wdsdist.cli.output import contents, say
from wdsdist.cli.progress import shards_meter

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--output", metavar="DIR", help="Write the indexes there.  [default: beside the shards]")
@click.option(
    "--export",
    "formats",
    type=click.Choice(["dali", "energon", "wids", "timm"]),
    multiple=True,
    help="Write that tool's index too.  [several times]",
)
@click.option("--split", default="train", show_default=True, help="What SHARDS are, for --export energon and timm.")
@click.option("--workers", type=int, help="Shards read at once.  [default: one for each core, 16 of a remote store]")
@click.option("--name", metavar="NAME", help="Write index-NAME.json, for one of several data sets in a folder.")
@click.option("--splits", is_flag=True, help="Write an index-SPLIT.json for each split that a folder holds.")
@key_rule
@on_damage
@access
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def index(
    shards: tuple[str, ...],
    output: str | None,
    formats: tuple[str, ...],
    split: str,
    workers: int | None,
    splits: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Index tars that other tools wrote, without changing them.

    Writes an index for each, and an index.json for all. SHARDS is a folder or URL of tars, or names these, as does a
    pattern such as 'train-{000..127}.tar'; they may be compressed. Of remote tars with large members only the headers
    are read. With --output, open the data set by DIR; with --name or --splits, by its file. With --export, a data set
    that has an index keeps it.
    """
    from wdsdist.diagnostics.exports import export

    if splits and (len(shards) > 1 or formats or given["name"]):
        raise click.UsageError("--splits goes with one folder, and without --name and --export")
    known = _opened(shards) if formats else None
    manifests = [known] if known else []
    if not known:
        given |= {"output": output, "workers": workers, **how_to_open()}
        manifests = _indexed(shards, splits, quiet, given)
        for manifest in () if quiet else manifests:
            _sum_up(manifest, manifest.name if splits else given["name"])
    for name in formats:
        files = export(manifests[0], name, output=output, split=split, workers=workers)
        if not quiet:
            say(f"exported for {name}: {counted(len(files), 'file')}, such as {files[0]}")


def _opened(shards: tuple[str, ...]) -> Manifest | None:
    """Open the data set of a folder or an index.json; ``None`` where there is none."""
    from wdsdist.errors import NotFoundError
    from wdsdist.shards.tar.naming import is_tar

    if len(shards) > 1 or ".tar" in shards[0] or is_tar(shards[0]):
        return None
    try:
        return opened(*shards)
    except NotFoundError:
        return None


def _indexed(shards: tuple[str, ...], splits: bool, quiet: bool, options: dict[str, Any]) -> list[Manifest]:
    from wdsdist.shards.build_index import index, index_splits

    with shards_meter("indexing", quiet=quiet) as progress:
        if splits:
            del options["name"]
            return index_splits(shards[0], progress=progress, **options)
        return [index(shards[0] if len(shards) == 1 else shards, progress=progress, **options)]


def _sum_up(manifest: Manifest, name: str | None) -> None:
    """Print a summary of an indexed data set."""
    from wdsdist.shards import index_target
    from wdsdist.shards.manifest import index_json
    from wdsdist.storage import shown as shown_location

    place = shown_location(manifest.base)
    say(f"indexed: {contents(manifest)}, in {place}{f'/{index_json.file_name(name)}' if name else ''}")
    if (rule := manifest.key_rule) != "first-dot":
        say(f"keys: by {rule}, unlike other readers of WebDataset; `wdsdist pack` makes tars that all read alike")
    for what, count in manifest.extra.get("skipped", {}).items():
        say(f"skipped: {count:,} x {what}")
    if left_out := manifest.extra.get("left_out"):
        say(f"left out: {left_out:,}, listed in {index_target.report(manifest, name)}")
