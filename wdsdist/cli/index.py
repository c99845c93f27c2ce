"""The command ``index``, for shards that other tools wrote."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted
from wdsdist.cli.options import access, command, how_to_open, key_rule, number_option, on_damage, opened, quiet_option
from wdsdist.cli.output import contents, say
from wdsdist.cli.progress import shards_meter

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest


@command(
    "wdsdist index /data/scraped",
    "wdsdist index 'https://example.org/train-{000..127}.tar' --output indexes",
    export="formats split",
    advanced="output name splits key workers",
)
@click.argument("shards", nargs=-1, required=True)
@click.option("--output", metavar="DIR", help="Folder for the indexes.  [default: next to the shards]")
@click.option(
    "--export",
    "formats",
    type=click.Choice(["dali", "energon", "wids", "timm"]),
    multiple=True,
    help="Also write the index for another tool.  [repeatable]",
)
@click.option("--split", default="train", metavar="NAME", help="Name of the split, for energon and timm.")
@number_option("--workers", help="Shards read at once.  [default: one per core, 16 for a store]")
@click.option("--name", metavar="NAME", help="Write index-NAME.json, if a folder holds several data sets.")
@click.option("--splits", is_flag=True, help="Write index-train.json and so on, one for each split in a folder.")
@key_rule
@on_damage
@access
@quiet_option
def index(
    shards: tuple[str, ...], output: str | None, formats: tuple[str, ...], split: str, workers: int | None,
    splits: bool, quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Index tars by other tools, without changing them.

    It writes an index for each tar, and one index.json. SHARDS is a folder or URL of tars, or tars, or a pattern such
    as 'train-{000..127}.tar'. The tars may be compressed. For remote tars with large members, only the headers are
    read. With --output, open the data set by that folder; with --name or --splits, by the file. With --export, an
    existing index is kept.
    """
    from wdsdist.diagnostics.exports import export

    if splits and (len(shards) > 1 or formats or options["name"]):
        raise click.UsageError("--splits goes with one folder, and without --name and --export")
    manifest = _opened(shards) if formats else None
    if manifest is None:
        options |= {"output": output, "workers": workers, **how_to_open()}
        with shards_meter("indexing", quiet=quiet) as progress:
            manifests = _indexed(shards, splits, progress=progress, **options)
        manifest = manifests[0]
        for made in () if quiet else manifests:
            _sum_up(made, made.name if splits else options["name"])
    for name in formats:
        files = export(manifest, name, output=output, split=split, workers=workers)
        if not quiet:
            say(f"exported for {name}: {counted(len(files), 'file')}, such as {files[0]}")


def _opened(shards: tuple[str, ...]) -> Manifest | None:
    """Open the data set of a folder or an index.json; ``None`` if there is no data set."""
    from wdsdist.errors import NotFoundError
    from wdsdist.shards.tar.naming import is_tar

    if len(shards) > 1 or ".tar" in shards[0] or is_tar(shards[0]):
        return None
    with contextlib.suppress(NotFoundError):
        return opened(*shards)
    return None


def _indexed(shards: tuple[str, ...], splits: bool, *, name: str | None, **options: Any) -> list[Manifest]:
    from wdsdist.shards.build_index import index, index_splits

    if splits:
        return index_splits(shards[0], **options)
    return [index(shards[0] if len(shards) == 1 else shards, name=name, **options)]


def _sum_up(manifest: Manifest, name: str | None) -> None:
    """Print a summary of an indexed data set."""
    from wdsdist.shards.manifest import index_json
    from wdsdist.storage import shown as shown_location

    file = f"/{index_json.file_name(name)}" if name else ""
    say(f"indexed: {contents(manifest)}, in {shown_location(manifest.base)}{file}")
    if (rule := manifest.key_rule) != "first-dot":
        say(f"keys: by {rule}, unlike other readers of WebDataset; `wdsdist pack` makes tars for every tool")
    for what, count in manifest.extra.get("skipped", {}).items():
        say(f"skipped: {count:,} x {what}")
    if left_out := manifest.extra.get("left_out"):
        say(f"left out: {left_out:,}, listed in {shown_location(index_json.report_of(manifest.origin))}")
