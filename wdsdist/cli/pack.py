"""The command ``pack``, which writes a data set."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.options import access, byte_count, command, how_to_open, opened, quiet_option
from wdsdist.cli.output import contents, meter, say
from wdsdist.packing.options import Images, Options

if TYPE_CHECKING:
    from wdsdist.distributed.run_once import Scope
    from wdsdist.shards.manifest import Manifest
    from wdsdist.shards.progress import ShardsProgress


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Parse the values of a repeated option such as ``image=jpg``."""
    extensions: dict[str, str] = {}
    for value in values:
        name, equals, extension = value.rpartition("=")
        if not equals or not name or name in extensions:
            raise click.BadParameter(f"{value!r} is not a column and its extension: write it as image=jpg", ctx, param)
        extensions[name] = extension
    return extensions or None


def options_of(*classes: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds the options of the fields of dataclasses, from their metadata."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        every = [option for cls in classes for option in fields(cls) if not option.metadata.get("hidden")]
        for option in reversed(every):
            about, arguments = option.metadata, dict[str, Any]()
            flags = about.get("flag", f"--{option.name.replace('_', '-')}")
            if "bool" in str(option.type):
                arguments = {"default": None} if "negation" in about else {"is_flag": True}
                flags = f"{flags}/{about['negation']}" if "negation" in about else flags
            elif "choices" in about:
                arguments["type"] = click.Choice(about["choices"])
            elif str(option.type).startswith("int") and "str" not in str(option.type):
                arguments["type"] = int
            elif "Mapping" in str(option.type):
                arguments |= {"multiple": True, "callback": _pairs}
            if about.get("metavar") == "SIZE":
                arguments["callback"] = byte_count
            if option.default not in (None, False, "auto"):
                arguments |= {"default": option.default, "show_default": True}
            arguments |= {"metavar": about["metavar"]} if "metavar" in about else {}
            command = click.option(flags, option.name, help=about["help"], **arguments)(command)
        return command

    return decorated


@command(
    "wdsdist pack photos shards --class-folders",
    "wdsdist pack captions.csv s3://bucket/captions --shard-bytes 256MiB",
    source="kind key class_folders splits columns root on_error check_decode",
    shards="shard_bytes shard_samples shuffle_seed no_shuffle compress",
    images="max_side quality store max_pixels",
    advanced="append overwrite workers engine address scope",
)
@click.argument("source")
@click.argument("dest")
@options_of(Options, Images)
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the source.")
@click.option("--splits", is_flag=True, help="Make a data set from each of the folders train, val and so on.")
@click.option("--dry-run", is_flag=True, help="Print what is recognised, and write nothing.")
@access
@click.option(
    "--engine",
    type=click.Choice(["local", "dask", "ray"]),
    default="local",
    help="Where the writers run: in local processes, or on the workers of a cluster.",
)
@click.option("--address", metavar="URL", help="Address of the cluster.  [default: from the engine's settings]")
@click.option(
    "--scope",
    type=click.Choice(["node", "cluster"]),
    default="node",
    help="Under torchrun or Slurm, pack once per node or once per cluster.",
)
@quiet_option
def pack(
    source: str, dest: str, *, no_shuffle: bool, splits: bool, dry_run: bool, engine: str, address: str | None,
    scope: Scope, quiet: bool, **given: Any,
) -> None:  # fmt: skip
    """Pack SOURCE into shards in DEST, a folder or a URL.

    SOURCE is a folder of files, a .zip or .tar archive of files, a table (.csv, .tsv, .jsonl, .parquet, .arrow, or a
    folder that datasets' save_to_disk wrote), WebDataset shards, an IDX set such as mnist/train, or a URL of one of
    these. In a folder, files that share a path up to the first dot of their names are one sample; in a table, each row
    is a sample. After an interruption, the same command continues; if the data set is complete, it returns at once.
    """
    if address is not None and engine == "local":
        raise click.UsageError("--address goes with --engine dask or ray")
    given["storage_options"] = how_to_open()["storage_options"]
    shards: Any = opened(source) if how_to_open()["allow_elsewhere"] else source
    given["shuffle_seed"] = None if no_shuffle else "auto" if given["shuffle_seed"] is None else given["shuffle_seed"]
    given["images"] = Images(**{option.name: given.pop(option.name) for option in fields(Images)})
    if dry_run:
        from wdsdist.packing.run import recognise, splits_of

        for split, own in (splits_of(shards, Options(**given)) if splits else {"": {}}).items():
            if split:
                say(f"split {split}:")
            for line in recognise(shards, dest, **given, **own).lines:
                say(line)
        return
    from wdsdist.distributed.identity import identity
    from wdsdist.distributed.run_once import data_download
    from wdsdist.packing.run import pack_splits, run

    executor, logger = None, logging.getLogger("wdsdist")
    is_packed = False
    with contextlib.ExitStack() as stack:
        if not quiet:  # what is recognised, and that this process waits for the one that packs
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.INFO)
        if engine != "local":
            from wdsdist.integrations.engines import connect

            executor = stack.enter_context(connect(engine, address))
        shown = stack.enter_context(meter("packing", quiet=quiet))

        def show(state: ShardsProgress) -> None:
            nonlocal is_packed
            is_packed = True
            shown(state)

        def pack(source: Any, dest: str, options: dict[str, Any]) -> dict[str, Manifest]:
            if splits:
                return pack_splits(source, dest, executor=executor, progress=show, **options)
            return {"": run(source, dest, Options(executor=executor, **options), show)}

        once = pack
        if identity().world_size > 1:
            # Once in each launch: `run` itself checks whether an earlier one has completed the work.
            shared = Path(dest) if scope == "cluster" else None
            once = data_download(scope=scope, directory=shared, force=True)(pack)
        manifests = once(shards, dest, given)
    for split, manifest in manifests.items() if not quiet else ():
        if split:
            say(f"split {split}:")
        _sum_up(manifest, "packed" if is_packed else "packed already")


def _sum_up(manifest: Manifest, what: str) -> None:
    """Print a summary of the packed data set."""
    from wdsdist.packing.destination import REPORT
    from wdsdist.storage import shown as shown_location

    location = shown_location(manifest.base)
    say(f"{what}: {contents(manifest)}, in {location}")
    if len(lengths := manifest.generations) > 1:
        more = counted(int(manifest.counts[lengths[-2] :].sum()), "sample")
        say(f"generation: {len(lengths):,}, which added {more} in {counted(lengths[-1] - lengths[-2], 'shard')}")
    payload = manifest.extra["payload_bytes"]
    tar_bytes = manifest.num_tar_bytes
    overhead = tar_bytes - payload
    each = overhead / max(manifest.num_samples, 1)
    amounts = f"{human(overhead)} over {human(payload)} of payload, {each:,.0f} B a sample"
    say(f"overhead: {amounts}, for tar's headers and padding")
    if tar_bytes != manifest.num_bytes:
        say(f"compressed: {human(tar_bytes)} of tars to {manifest.num_bytes / tar_bytes:.1%}")
    if left_out := manifest.extra.get("left_out"):
        say(f"left out: {counted(left_out, 'sample')}, listed in {location}/{REPORT}")
