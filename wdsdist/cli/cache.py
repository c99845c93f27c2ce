"""The commands ``cache warm``, ``cache info`` and ``cache clean``: what this node keeps of remote data sets."""

from __future__ import annotations

import heapq
import time
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.host import shard_cache_dir
from wdsdist._util.validation import check_integer, counted, human
from wdsdist.cli.options import (
    ADVANCED,
    cache_dir_option,
    command,
    epoch_options,
    json_option,
    number_option,
    of_shards,
    opened,
    quiet_option,
    size_option,
)
from wdsdist.cli.output import meter, say, say_json

if TYPE_CHECKING:
    from pathlib import Path


@click.group()
def cache() -> None:
    """Fill, show and clean the cache of remote shards on this node.

    \b
    Examples:
      wdsdist cache warm s3://bucket/train --ranks 64
      wdsdist cache info
    """


@command("wdsdist cache info", "wdsdist cache info --cache-dir /local/cache --json")
@cache_dir_option
@json_option
def info(cache_dir: Path | None, as_json: bool) -> None:
    """Show what the cache holds, by data set.

    Each line shows a data set, its shards, their bytes, the last use, and the number of shards that live jobs use.
    Without --cache-dir, the command shows the default folder, and each folder that a live job uses.
    """
    from wdsdist.cache.folder import folders_in_use
    from wdsdist.diagnostics.cache_contents import usage

    folders = [cache_dir] if cache_dir else sorted({shard_cache_dir(None), *folders_in_use()})
    contents = {folder: usage(folder) for folder in folders}
    if as_json:
        say_json([{"folder": str(folder)} | asdict(store) for folder in folders for store in contents[folder]])
        return
    for folder, stores in contents.items():
        for store in stores:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(store.last_use))
            busy = f", {store.in_use:,} in use" if store.in_use else ""
            say(store.source, counted(store.shards, "shard"), human(store.bytes), f"last used {used}{busy}")
        shards, size = sum(store.shards for store in stores), sum(store.bytes for store in stores)
        say(f"kept: {counted(shards, 'shard')}, {human(size)}, in {folder}")


@command("wdsdist cache clean s3://bucket/old", "wdsdist cache clean --all")
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove all copies.")
@cache_dir_option
def clean(sources: tuple[str, ...], everything: bool, cache_dir: Path | None) -> None:
    """Remove copies that no live job uses from the cache.

    Select copies by SOURCE, or pass --all. SOURCE is the folder or URL of a data set, as `wdsdist cache info` shows it,
    or a parent folder of several data sets.
    """
    from wdsdist.diagnostics.cache_contents import clean as clean_up

    removed, freed, in_use = clean_up(cache_dir, sources=sources, everything=everything)
    kept = f"; kept, because live jobs use them: {counted(in_use, 'shard')}" if in_use else ""
    say(f"removed: {counted(removed, 'shard')}, {human(freed)}{kept}")


@command(
    "wdsdist cache warm s3://bucket/train --ranks 64 --node 3",
    "wdsdist cache warm s3://bucket/train --seed 1 --bytes 10GB",
    cache="cache_dir cache_limit room stage",
    advanced=ADVANCED,
)
@of_shards
@epoch_options
@number_option("--node", help="Number of this node.  [default: from the launcher, otherwise 0]")
@size_option("--bytes", "room", help="Bytes to fetch.  [default: two shuffle windows]")
@click.option("--stage", is_flag=True, help="Copy local shards too, for a slow mount.")
@cache_dir_option
@size_option("--cache-limit", help="Maximum size of the cache.")
@quiet_option
def warm(
    shards: tuple[str, ...], cache_dir: Path | None, cache_limit: int | None, quiet: bool, stage: bool,
    node: int | None, room: int | None, **options: Any,
) -> None:  # fmt: skip
    """Fetch the shards that training will need first into the cache.

    It fetches for the ranks of one node. Pass the options of the training data set and loader. Existing copies are not
    fetched again, so the same command continues after an interruption.
    """
    import numpy as np

    from wdsdist._util.pools import pool
    from wdsdist.cache.cached_shards import CachedShards
    from wdsdist.cache.chunk_cache import ChunkCache
    from wdsdist.diagnostics.epoch_report import epoch_of
    from wdsdist.distributed.identity import identity
    from wdsdist.samples.fields import Fields
    from wdsdist.sampling.shard_schedule import check_limit, copy_sizes
    from wdsdist.shards.progress import reported
    from wdsdist.shards.source import CacheOptions, picks_of

    manifest = opened(*shards)
    manifest = manifest.staged() if stage else manifest
    if not manifest.is_copied.any():
        say("nothing to fetch: these shards are local, and are read in place; to copy them, pass --stage")
        return
    cache = ChunkCache(CacheOptions(cache_dir, cache_limit))
    source = CachedShards(manifest, cache)
    # The shards that the ranks of the node need first, as many as the room holds.
    config, settings, world, batcher, plan = epoch_of(manifest, cache_limit=cache_limit, **options)
    nodes = -(-world.num_replicas // world.per_node)
    node = check_integer("node", identity().node_rank if node is None else node, 0, nodes - 1)
    batcher.check(config.num_samples, world.num_replicas)
    ranks = world.node_of(node * world.per_node)
    if cache_limit is not None:
        check_limit(config, settings, num_replicas=world.num_replicas, ranks=len(ranks), limit=cache_limit)
    room = config.bytes_at_once(settings, world.num_replicas, len(ranks)) if room is None else room
    room = room if cache_limit is None else min(room, cache_limit)
    sizes = manifest.needed_sizes.clip(0)
    in_cache = copy_sizes(manifest.counts, np.where(manifest.is_copied, manifest.needed_sizes, 0))
    uses = [filter(None, plan.uses(rank=rank, waits=True)) for rank in ranks]
    first: dict[int, None] = {}
    for use in heapq.merge(*uses, key=attrgetter("first")):
        if manifest.is_copied[use.shard] and use.shard not in first:
            room -= int(in_cache[use.shard])
            if room < 0 and first:
                break
            first[use.shard] = None

    def fetch(shard: int) -> None:
        cache.fetch_all(source.shard(shard), Fields(None).of_epoch(picks_of(manifest, shard)))

    # What is needed sooner is not evicted for the rest.
    cache.catalog.expect("warm", 0, {source.shard(shard).key: number for number, shard in enumerate(first)})
    try:
        with meter("fetching", quiet=quiet) as show, pool(None, max(1, len(first)), remote=True) as executor:
            futures = {executor.submit(fetch, shard): shard for shard in first}
            for _ in reported(futures, sizes, manifest.counts, show):
                pass
    finally:
        cache.catalog.expect("warm", 0, {})
    if not quiet:
        now = human(source.counters().bytes_fetched)
        say(f"warm: {counted(len(first), 'shard')}, {human(int(sizes[[*first]].sum()))}; {now} were fetched now")


for _command in (warm, info, clean):
    cache.add_command(_command)
