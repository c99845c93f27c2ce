"""The commands ``cache warm``, ``cache info`` and ``cache clean``: what this node keeps of remote data sets."""

from __future__ import annotations

import heapq
import re
import time
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.host import shard_cache_dir
from wdsdist._util.validation import counted, human
from wdsdist.cli.epoch_options import epoch_options, fixed_batches, order_options
from wdsdist.cli.options import access, byte_count, cache_dir_option, field_list, opened
from wdsdist.cli.output import say, say_json
from wdsdist.cli.progress import meter

if TYPE_CHECKING:
    from pathlib import Path

    from wdsdist._util.array_types import Int64s
    from wdsdist.sampling.plan import Batcher
    from wdsdist.shards.manifest import Manifest

_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@click.group()
def cache() -> None:
    """Fill, show and clean the cache of remote shards on this node."""


def _age(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
    """Read the value of ``--older-than``: ``30d``, ``12h``, ``90m`` or ``2w``; return seconds.

    >>> from unittest.mock import Mock
    >>> _age(Mock(), Mock(), "1.5h")
    5400.0
    """
    if value is None:
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", value)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is no age such as 90m, 12h, 30d or 2w", ctx, param)
    return float(found[1]) * _SECONDS[found[2]]


@cache.command()
@cache_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(cache_dir: Path | None, as_json: bool) -> None:
    """Show what the cache holds, by data set.

    Each line has the data set, its shards, their bytes, the last use, and how many shards live jobs use.
    """
    from wdsdist.cache.contents import usage

    found = usage(cache_dir)
    if as_json:
        say_json([asdict(one) for one in found])
        return
    for one in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_use))
        busy = f", {one.in_use:,} in use" if one.in_use else ""
        name = one.source or "unknown, by an earlier version"
        say(name, counted(one.shards, "shard"), human(one.bytes), f"last used {used}{busy}")
    kept = f"{counted(sum(one.shards for one in found), 'shard')}, {human(sum(one.bytes for one in found))}"
    say(f"kept: {kept}, in {shard_cache_dir(cache_dir)}")


@cache.command()
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@click.option("--older-than", metavar="AGE", callback=_age, help="Only what was not used for 90m, 12h, 30d or 2w.")
@click.option("--all", "everything", is_flag=True, help="Remove all that no live job uses.")
@cache_dir_option
def clean(sources: tuple[str, ...], older_than: float, everything: bool, cache_dir: Path | None) -> None:
    """Remove copies from the cache, but none that a live job uses.

    Which, says SOURCE, --older-than, both, or --all. SOURCE is the folder or URL of a data set, as `wdsdist cache info`
    shows it; what lies below it is meant too.
    """
    from wdsdist.cache.contents import clean as clean_up

    done = clean_up(cache_dir, sources=sources, older_than=older_than, everything=everything)
    kept = f"; kept, for live jobs use them: {counted(done.in_use, 'shard')}" if done.in_use else ""
    say(f"removed: {counted(done.removed, 'shard')}, {human(done.bytes)}{kept}")


@cache.command()
@click.argument("shards", nargs=-1, required=True)
@epoch_options
@click.option("--node", type=click.IntRange(min=0), help="Number of this node.  [default: as launched, else 0]")
@click.option("--rank", type=click.IntRange(min=0), help="Fetch for this rank only.  [default: all ranks of the node]")
@click.option("--fields", callback=field_list, help="Members that training reads, as 'jpg;png,cls'.  [default: all]")
@click.option(
    "--bytes",
    "room",
    metavar="SIZE",
    callback=byte_count,
    help="Bytes to fetch, at least one shard.  [default: two shuffle windows]",
)
@click.option("--stage", is_flag=True, help="Copy local shards too, as stage=True of StreamingDataset.")
@cache_dir_option
@click.option(
    "--cache-limit",
    metavar="SIZE",
    callback=byte_count,
    help="Most bytes of the cache, as cache_limit of StreamingDataset.",
)
@access
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless something is wrong.")
def warm(
    shards: tuple[str, ...], fields: tuple[str, ...] | None, cache_dir: Path | None, cache_limit: int | None,
    quiet: bool, stage: bool, **options: Any,
) -> None:  # fmt: skip
    """Fetch the shards that training will need first into the cache.

    They are those of the ranks of this node. Give the options of the loader and data set that will train. What is there
    already is not fetched again, so an interrupted command goes on where it stopped.
    """
    from wdsdist.cache.cached_shards import CachedShards
    from wdsdist.cache.chunk_cache import ChunkCache
    from wdsdist.cache.prefetch import warm as fetch
    from wdsdist.samples.fields import Fields, with_raw_images
    from wdsdist.samples.sample_reader import SampleReader
    from wdsdist.samples.sample_spec import Decoder, SampleSpec
    from wdsdist.shards.source import CacheOptions

    manifest = opened(*shards)
    manifest = manifest.staged() if stage else manifest
    if not manifest.is_copied.any():
        say("nothing to fetch: these shards are local, and read where they lie; to copy them, give --stage")
        return
    source = CachedShards(manifest, ChunkCache(CacheOptions(cache_dir, cache_limit)))
    if fields is not None and manifest.has_raw_images:
        fields = with_raw_images(fields)
    needed = _needed(manifest, fields)
    chosen = _first(manifest, needed, fields=fields, cache_limit=cache_limit, **options)
    total = int(needed[chosen].clip(0).sum())
    reader = SampleReader(source, {0: SampleSpec(Fields(fields), Decoder(None), None)}, 0)
    with meter("fetching", quiet=quiet) as shown:

        def show(done: int, taken: int) -> None:
            shown(taken, total, f"{done:,} of {len(chosen):,}")

        fetch(source, chosen, show, needed=needed, epoch=reader.epoch_members)
    if not quiet:
        fetched = human(source.counters().bytes_fetched)
        say(f"warm: {counted(len(chosen), 'shard')}, {human(total)}; {fetched} were fetched now")


def _needed(manifest: Manifest, fields: tuple[str, ...] | None) -> Int64s:
    """Return the bytes that an epoch needs of each shard, int64 [shards]; of some fields as in the largest shard.

    Raises `ArgumentError` for a field that the samples lack.
    """
    import numpy as np

    from wdsdist.cache.chunk_cache import chunks_of_members
    from wdsdist.cache.chunk_file import CHUNK
    from wdsdist.errors import ArgumentError, SampleError
    from wdsdist.samples.fields import Fields
    from wdsdist.shards.manifest import THIN
    from wdsdist.shards.shard_indexes import shard_index

    whole = manifest.needed_sizes
    if fields is None or manifest.is_staged:
        return whole
    index = shard_index(manifest, int(np.argmax(manifest.counts)))
    chosen = Fields(fields)
    try:
        chosen.choose(tuple(extension.lower() for extension in index.extensions))
    except SampleError as error:
        raise ArgumentError(f"fields is {fields!r}, but a shard of {manifest.shown} {error}") from None
    chunks = chunks_of_members(index, chosen.members(index, np.arange(index.num_samples)))
    share = len(chunks) * CHUNK / index.size
    return whole if share >= THIN else np.ceil(whole * share).astype(np.int64)


def _first(
    manifest: Manifest, needed: Int64s, *, fields: tuple[str, ...] | None, node: int | None, rank: int | None,
    room: int | None, cache_limit: int | None, **given: Any,
) -> list[int]:  # fmt: skip
    """Return the shards that the ranks of a node need first; ``given`` are `epoch_options`."""
    from wdsdist._util.validation import check_integer
    from wdsdist.cache.prefetch import first_shards
    from wdsdist.distributed.identity import Identity, identity
    from wdsdist.loader.order_config import OrderConfig
    from wdsdist.sampling.plan import Position, World

    ranks, position = given["ranks"], Position(given["epoch"])
    batcher: Batcher = fixed_batches(**given)
    if given["batches"] is not None:
        batcher = given["batches"].batcher(manifest, drop_last=not given["keep_tail"])
    per_node = min(ranks, check_integer("ranks_per_node", given["ranks_per_node"], 1))
    if rank is None:
        first = per_node * (identity().node_rank if node is None else node)
        mine = range(first, min(first + per_node, ranks))
    else:
        mine = range(rank, rank + 1)
    if not mine or mine[-1] >= ranks:
        what = f"node {first // per_node:,}" if rank is None else f"rank {rank:,}"
        whole = f"{counted(ranks, 'rank')}, {per_node:,} on each node"
        raise click.UsageError(f"there is no {what}: ranks and nodes count from 0, and --ranks gives {whole}")
    config = OrderConfig(manifest=manifest, **order_options(**given))
    own = Identity(mine[0], ranks, mine[0] % per_node, per_node, mine[0] // per_node, "arguments")
    settings = config.settings(ranks)
    if cache_limit is not None and fields is None:
        config.check_room(settings, own, cache_limit)
    batcher.check(config.num_samples, ranks)
    window = None if cache_limit is None else settings.window * settings.num_canonical_replicas
    world = World(ranks, 1 if ranks % per_node else per_node)
    order, block = config.order(settings, position.epoch), batcher.block_samples(ranks, window)
    plan = batcher.plan(order, position, world, block=block)
    uses = [filter(None, plan.uses(rank=rank, waits=True)) for rank in mine]
    room = config.bytes_at_once(settings, own, len(mine)) if room is None else room
    room = room if cache_limit is None else min(room, cache_limit)
    return first_shards(manifest, heapq.merge(*uses, key=attrgetter("first")), room, needed)
