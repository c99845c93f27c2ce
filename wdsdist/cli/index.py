"""The command ``index``, for shards that other tools wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from wdsdist.cli.options import allow_elsewhere, key_rule, opened
from wdsdist.cli.output import contents, counted, say
from wdsdist.cli.progress import meter

if TYPE_CHECKING:
    from wdsdist.shards.build_index import IndexProgress
    from wdsdist.shards.manifest import Manifest


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--output", metavar="DIR", help="Write the indexes there.  [default: beside the shards]")
@click.option(
    "--export",
    "formats",
    type=click.Choice(["dali", "energon", "wids", "timm"]),
    multiple=True,
    help="Write that tool's index too.  [several times: several tools]",
)
@click.option("--split", default="train", show_default=True, help="What SHARDS are, for --export energon and timm.")
@key_rule
@click.option("--workers", type=int, help="Shards read at once.  [default: one for each core, 16 of a remote store]")
@allow_elsewhere
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def index(
    shards: tuple[str, ...],
    output: str | None,
    formats: tuple[str, ...],
    split: str,
    key: str,
    workers: int | None,
    allow_elsewhere: bool,
    quiet: bool,
) -> None:
    """Index tars that other tools wrote: an index for each, and an index.json for all.

    SHARDS may be local or URLs, plain or compressed. Of remote tars with large members only the headers are read. With
    --output, open the data set by DIR. With --export, a data set that has an index keeps it.
    """
    from wdsdist.diagnostics.exports import export
    from wdsdist.storage import shown as shown_location

    known = _opened(shards, allow_elsewhere) if formats else None
    manifest = known or _indexed(shards, output, key, workers, quiet)
    if not quiet and not known:
        say(f"indexed: {contents(manifest)}, in {shown_location(manifest.base)}")
        if (rule := manifest.key_rule) != "first-dot":
            say(f"keys: by {rule}, unlike other readers of WebDataset; `wdsdist pack` makes tars that all read alike")
        for what, count in manifest.extra.get("skipped", {}).items():
            say(f"skipped: {count:,} x {what}")
    for name in formats:
        files = export(manifest, name, output=output, split=split, workers=workers)
        if not quiet:
            say(f"exported for {name}: {counted(len(files), 'file')}, such as {files[0]}")


def _opened(shards: tuple[str, ...], allow_elsewhere: bool) -> Manifest | None:
    """Open the data set of a folder or an index.json; ``None`` where there is none."""
    from wdsdist.errors import IndexNotFoundError
    from wdsdist.shards.tar import is_tar

    if len(shards) > 1 or ".tar" in shards[0] or is_tar(shards[0]):
        return None
    try:
        return opened(shards, allow_elsewhere=allow_elsewhere)
    except IndexNotFoundError:
        return None


def _indexed(shards: tuple[str, ...], output: str | None, key: str, workers: int | None, quiet: bool) -> Manifest:
    from wdsdist.shards.build_index import index as run

    with meter("indexing", quiet=quiet) as shown:

        def show(state: IndexProgress) -> None:
            note = f"{state.shards_done:,} of {state.shards:,} shards, {state.samples_done:,} samples"
            shown.update(state.bytes_done, state.bytes, note)

        return run(shards[0] if len(shards) == 1 else shards, output=output, key=key, workers=workers, progress=show)
