"""The command ``pack``, which writes a data set."""

from __future__ import annotations

import contextlib
import functools
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.options import (
    FIELDS_HELP,
    access,
    byte_count,
    field_list,
    how_to_open,
    key_rule,
    on_damage,
    opened,
)
from wdsdist.cli.output import contents, say
from wdsdist.cli.progress import meter

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from wdsdist.distributed.run_once import Scope
    from wdsdist.packing import PackProgress
    from wdsdist.shards.manifest import Manifest


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Parse the values of a repeated option such as ``image=jpg``."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, what = value.rpartition("=")
        if not equals or not name or name in found:
            raise click.BadParameter(f"{value!r} is not a column and its extension: write it as image=jpg", ctx, param)
        found[name] = what
    return found or None


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
@click.option("--seed", "shuffle_seed", type=int, help="Decides the order of the samples.  [default: 0]")
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the source.")
@click.option("--from", "kind", metavar="KIND", help="What SOURCE is, such as folder or csv.  [default: as it looks]")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=EXTENSION",
    callback=_pairs,
    help="Of a table, the member that a column becomes, as in image=jpg; __key__ for the key, nothing to leave it out.",
)
@click.option("--root", metavar="DIR", help="Of a table, the folder that paths in it start from.  [default: its own]")
@click.option("--allow-outside", is_flag=True, help="Let paths in a table lead out of that folder. Trust it first.")
@click.option(
    "--class-folders/--no-class-folders",
    default=None,
    help="Give each sample a cls member, the number of its folder in SOURCE.  [default: if they look like classes]",
)
@key_rule
@click.option("--classes-from", metavar="DATA", help="Number class folders as this packed data set, or folder, does.")
@click.option("--split", metavar="NAME", help="Pack only this folder in SOURCE, such as train.")
@click.option("--splits", is_flag=True, help="Pack each of the folders train, val, ... into a data set in DEST.")
@click.option("--encode", metavar="NAME", help="Function my_module:encode from an item of SOURCE to a sample dict.")
@click.option("--max-side", metavar="N", type=int, help="Scale images down to N pixels on the longer side.")
@click.option("--max-pixels", metavar="N", type=int, help="Most pixels of an image to decode.  [default: 89478485]")
@click.option("--quality", type=int, help="Of JPEG and WebP images that are encoded again, 1 to 95.  [default: 90]")
@click.option(
    "--store",
    type=click.Choice(["raw", "jpeg"]),
    help="Store every image as pixels that need no decoding (npy), or as JPEG.  [default: as it is]",
)
@click.option("--fields", metavar="LIST", callback=field_list, help=FIELDS_HELP)
@click.option("--check-decode", is_flag=True, help="Check that the members of --fields, or all, decode.")
@click.option("--exclude", metavar="FILE", help="Leave out the samples that a quarantine file lists.")
@click.option(
    "--compress", metavar="zst[:LEVEL]", help="Compress the shards, as .tar.zst.  [default level: 3, of 1 to 22]"
)
@access
@click.option("--overwrite", is_flag=True, help="Replace another data set that wdsdist packed into DEST.")
@click.option("--append", is_flag=True, help="Add the samples to the data set in DEST, as further shards.")
@on_damage
@click.option(
    "--scope",
    type=click.Choice(["node", "cluster"]),
    default="node",
    show_default=True,
    help="Where several processes are launched, by torchrun or Slurm: one packs on each node, or one in all.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def pack(
    source: str,
    dest: str,
    engine: str,
    address: str | None,
    shuffle_seed: int | None,
    no_shuffle: bool,
    scope: Scope,
    splits: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Pack SOURCE into shards in DEST, a folder or a URL.

    SOURCE is a folder of files, where those whose paths agree up to the first dot of their names become one sample; an
    IDX set such as mnist/train or train-images-idx3-ubyte.gz; or a table whose rows are samples: a .csv, .tsv or
    .jsonl file, .parquet or .arrow files, or a folder that datasets' save_to_disk wrote; a .zip or .tar archive of
    files, plain or compressed; WebDataset shards, by folder or pattern; or a URL of any of these. Or it names a data
    set, an iterable of samples, or a function that returns one of them, in the current folder or installed:
    my_module:make_dataset. An interrupted command goes on where it stopped when it is run again; a finished one
    returns at once.
    """
    given |= how_to_open()
    given["shuffle_seed"] = None if no_shuffle else "auto" if shuffle_seed is None else shuffle_seed
    pack_one = functools.partial(_pack_one, source, engine=engine, address=address, scope=scope, quiet=quiet)
    if not splits:
        pack_one(dest, given)
        return
    from wdsdist.packing import splits_of
    from wdsdist.storage import join

    found = splits_of(source, **{name: given[name] for name in ("kind", "key", "on_error", "storage_options")})
    for split in found:
        if not quiet:
            say(f"split {split}:")
        place = join(dest, split)
        pack_one(place, {**given, "split": split})
        if given["classes_from"] is None and opened(place).extra.get("classes"):
            given["classes_from"] = place  # the others are numbered alike


def _pack_one(
    source: str, dest: str, given: dict[str, Any], *, engine: str, address: str | None, scope: Scope, quiet: bool
) -> None:
    """Pack a source, or one split of it."""
    from wdsdist.cli.run_once import once
    from wdsdist.packing import pack as run

    last: PackProgress | None = None
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(_cluster(engine, address))
        shown = stack.enter_context(meter("packing", quiet=quiet))

        def show(state: PackProgress) -> None:
            nonlocal last
            last = state
            shown(state.bytes_done, state.bytes, _progress(state, time.monotonic() - began))

        def pack(source: str, dest: str, options: dict[str, Any]) -> Manifest:
            return run(source, dest, progress=show, executor=executor, **options)

        manifest = once(pack, (source, dest, given), scope=scope, directory=dest, quiet=quiet)
    if not quiet:
        _sum_up(manifest, last, time.monotonic() - began)


def _progress(state: PackProgress, seconds: float) -> str:
    """Return the progress of packing as text."""
    samples, shards = _of(state.samples_done, state.samples, "sample"), _of(state.shards_done, state.shards, "shard")
    note = f"{samples}, {shards}"
    if state.left_out:
        note += f", {state.left_out:,} left out"
    if state.samples_done > state.samples_kept:
        note += f", {(state.samples_done - state.samples_kept) / seconds:,.0f} samples/s"
    return note


def _sum_up(manifest: Manifest, last: PackProgress | None, seconds: float) -> None:
    """Print a summary of the packed data set."""
    from wdsdist.packing.destination import REPORT
    from wdsdist.storage import shown as shown_location

    place = shown_location(manifest.base)
    say(f"{'packed' if last else 'packed already'}: {contents(manifest)}, in {place}")
    if len(lengths := manifest.generations) > 1:
        more = counted(int(manifest.counts[lengths[-2] :].sum()), "sample")
        say(f"generation: {len(lengths):,}, which added {more} in {counted(lengths[-1] - lengths[-2], 'shard')}")
    if columns := manifest.extra.get("columns"):
        say("columns: " + ", ".join(f"{name} {_becomes(what)}" for name, what in columns.items()))
    payload = manifest.extra["payload_bytes"]
    tar_bytes = manifest.num_tar_bytes
    overhead = tar_bytes - payload
    each = overhead / max(manifest.num_samples, 1)
    note = "for tar's headers and padding"
    say(f"overhead: {human(overhead)} over {human(payload)} of payload, {each:,.0f} B a sample, {note}")
    if tar_bytes != manifest.num_bytes:
        say(f"compressed: {human(tar_bytes)} of tars to {manifest.num_bytes / tar_bytes:.1%}")
    images = manifest.extra.get("images", {})
    if (before := images.get("source_bytes")) and len(lengths) <= 1:
        times = manifest.num_bytes / before
        form = "raw pixels" if images["store"] == "raw" else f"JPEG of quality {images['quality']}"
        say(f"images: as {form}, {human(manifest.num_bytes)} on disk, {times:.2g} times {human(before)} of the source")
    if last and last.bytes_done > last.bytes_kept:
        samples, size = last.samples_done - last.samples_kept, last.bytes_done - last.bytes_kept
        say(f"time: {seconds:,.1f} s, {samples / seconds:,.0f} samples/s, {human(size / seconds)}/s")
    if rule := manifest.extra.get("source_key_rule"):
        say(f"keys: by {rule}, with dots written as %2E, so that every reader of WebDataset finds the same samples")
    if classes := manifest.extra.get("classes"):
        say(f"classes: {len(classes):,}, from {classes[0]} to {classes[-1]}, as cls members")
    for what, count in manifest.extra.get("skipped", {}).items():
        say(f"skipped: {count:,} x {what}")
    if renamed := manifest.extra.get("renamed_keys"):
        say(f"renamed: {counted(renamed, 'key')} that an earlier shard has too, by a number, such as 0001~2")
    if excluded := manifest.extra.get("excluded"):
        say(f"excluded: {counted(excluded, 'sample')}, by the file of --exclude")
    if left_out := manifest.extra.get("left_out"):
        say(f"left out: {counted(left_out, 'sample')}, listed in {shown_location(manifest.base)}/{REPORT}")


def _of(done: int, total: int | None, noun: str) -> str:
    return counted(done, noun) if total is None else f"{done:,} of {counted(total, noun)}"


def _becomes(extension: str) -> str:
    """Return what a column was packed as, as text."""
    if not extension:
        return "left out"
    return "gives the key" if extension == "__key__" else f"as {extension}".replace("*", "its files are")


def _cluster(engine: str, address: str | None) -> AbstractContextManager[Executor | None]:
    if engine == "local":
        if address is not None:
            raise click.UsageError("--address goes with --engine dask or ray")
        return contextlib.nullcontext()
    from wdsdist.integrations.engines import connect

    return connect(engine, address)
