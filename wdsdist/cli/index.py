"""The command ``index``, for shards that other tools wrote."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from wdsdist._util.validation import counted
from wdsdist.cli.options import command, how_to_open, number_option, of_shards, opened, quiet_option
from wdsdist.cli.output import contents, meter, say


@command(
    "wdsdist index /data/scraped",
    "wdsdist index 'https://example.org/train-{000..127}.tar' --output indexes",
    export="formats split",
    advanced="name splits key workers",
)
@of_shards
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
@click.option(
    "--key",
    metavar="RULE",
    default="first-dot",
    help="Where keys end in file names: first-dot, last-dot, or a regular expression of the key.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    help="How to handle a damaged sample or tar: stop, or leave it out and list it in a report.",
)
@quiet_option
def index(
    shards: tuple[str, ...], output: str | None, formats: tuple[str, ...], split: str, workers: int | None,
    name: str | None, splits: bool, quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Index tars from other tools, without changing them.

    It writes an index for each tar, and one index.json. SHARDS is a folder or URL of tars, or tars, or a pattern such
    as 'train-{000..127}.tar'. The tars may be compressed. For remote tars with large members, only the headers are
    read. With --output, open the data set by that folder; with --name or --splits, by the file. With --export, an
    existing index is kept.
    """
    from wdsdist.diagnostics.exports import export
    from wdsdist.errors import NotFoundError
    from wdsdist.shards import build_index
    from wdsdist.shards.manifest import index_json
    from wdsdist.shards.tar import FIRST_DOT, is_tar
    from wdsdist.storage import shown

    if splits and (len(shards) > 1 or formats or name):
        raise click.UsageError("--splits goes with one folder, and without --name and --export")
    manifest = None
    if formats and len(shards) == 1 and ".tar" not in shards[0] and not is_tar(shards[0]):
        with contextlib.suppress(NotFoundError):
            manifest = opened(*shards)
    if manifest is None:
        options |= {"output": output, "workers": workers, "storage_options": how_to_open()["storage_options"]}
        with meter("indexing", quiet=quiet) as progress:
            if splits:
                manifests = build_index.index_splits(shards[0], progress=progress, **options)
            else:
                tars = shards if len(shards) > 1 else shards[0]
                manifests = [build_index.index(tars, name=name, progress=progress, **options)]
        manifest = manifests[0]
        for made in () if quiet else manifests:
            file = f"/{index_json.file_name(made.name if splits else name)}" if splits or name else ""
            say(f"indexed: {contents(made)}, in {shown(made.base)}{file}")
            if made.key_rule != FIRST_DOT:
                remedy = "`wdsdist pack` makes tars for every tool"
                say(f"keys: by {made.key_rule}, unlike other readers of WebDataset; {remedy}")
            for what, count in made.extra.get("skipped", {}).items():
                say(f"skipped: {count:,} x {what}")
            if left_out := made.extra.get("left_out"):
                say(f"left out: {left_out:,}, listed in {shown(index_json.report_of(made.origin))}")
    for name in formats:
        files = export(manifest, name, output=output, split=split, workers=workers)
        if not quiet:
            say(f"exported for {name}: {counted(len(files), 'file')}, such as {files[0]}")
