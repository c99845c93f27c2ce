"""The command ``plan``, which reports an epoch before training."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wdsdist._util.validation import check_integer, counted, human
from wdsdist.cli.options import (
    ADVANCED,
    command,
    epoch_options,
    json_option,
    number_option,
    of_shards,
    opened,
    size_option,
)
from wdsdist.cli.output import say, say_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wdsdist.batching.values import Batches


@command(
    "wdsdist plan shards --ranks 16 --batch-size 256",
    "wdsdist plan shards --batches 'TokenBudget(65536, length=\"txt.bytes\")'",
    advanced=f"{ADVANCED} shard_bytes",
)
@of_shards
@epoch_options
@number_option("--workers", default=4, help="Loader workers per rank.")
@size_option("--shard-bytes", default="64MiB", help="Size of each shard, if SHARDS does not say.")
@json_option
def plan(
    shards: tuple[str, ...], workers: int, shard_bytes: int, as_json: bool, batches: Batches | None, **options: Any
) -> None:
    """Report an epoch over SHARDS before training. No data is read.

    It prints the batches per rank, the shards, bytes and requests per node, and the size of the cache needed. For
    batches of variable lengths (--batches) it also prints their fill and balance.
    """
    import numpy as np

    from wdsdist.diagnostics.epoch_report import epoch_of, epoch_report

    check_integer("workers", workers, 0)
    manifest = opened(*shards)
    check_integer("shard_bytes", shard_bytes, 0, 2**62 // max(1, len(manifest.counts)))
    sizes = np.maximum(manifest.sizes, manifest.tar_sizes)  # as they lie in the cache
    sizes = np.where(sizes < 0, shard_bytes, sizes)
    epoch = epoch_of(manifest, batches=batches, **options)
    settings, world = epoch.settings, epoch.world
    report = epoch_report(epoch.plan, settings, world, manifest.counts, sizes)
    facts: dict[str, Any] = {
        "samples": manifest.num_samples,
        "shards": len(manifest.counts),
        "bytes": int(sizes.sum()),
        "ranks": world.num_replicas,
        "nodes": len(report.shards_per_node),
        "workers": workers,
        "batch_size": None if batches else options["batch_size"],
        "batches": None if batches is None else repr(batches),
        "epoch": options["epoch"],
        **asdict(settings),
        "order": settings.name,
        **asdict(report),
    }
    if as_json:
        say_json(facts)
        return
    label: str = settings.name
    if label == "shard":
        label += f" in {counted(settings.num_canonical_replicas, 'lane')}, windows of {settings.window:,} samples"
    batch = facts["batches"] or counted(options["batch_size"], "sample")
    changes = f"{report.samples_dropped:,} dropped, {report.samples_repeated:,} repeated, of {manifest.num_samples:,}"
    samples_in_all, shards_in_all = counted(facts["samples"], "sample"), counted(facts["shards"], "shard")
    ranks = counted(world.num_replicas, "rank")
    rank_cache, node_cache = human(report.cache_bytes_per_rank), human(report.cache_bytes_per_node)
    lines = {
        "data": f"{samples_in_all} in {shards_in_all}, {human(facts['bytes'])}",
        "world": f"{ranks} on {counted(facts['nodes'], 'node')}, {counted(workers, 'worker')} a rank",
        "order": f"{label}, seed {settings.seed}, epoch {facts['epoch']}",
        "batches": f"{report.batches_per_rank:,} of {batch} on each rank",
        "samples": f"{report.samples_per_rank:,.1f}".removesuffix(".0") + f" on each rank; {changes}",
    }
    if report.fill is not None:
        lines["fill"] = f"{report.fill:.3f}, useful tokens over the tokens that fit"
        lines["balance"] = f"{report.balance:.3f}, the slowest rank of a step over the mean of its ranks"
    lines |= {
        "shards opened": _spread(report.shards_per_node),
        "bytes read": _spread(report.bytes_per_node, human),
        "requests": f"{_spread(report.requests_per_node)}, to fetch each shard from a store once",
        "cache needed": f"{rank_cache} a rank, {node_cache} a node, for the current and the next window",
    }
    for name, line in lines.items():
        say(f"{name + ':':<15}{line}")
    if not report.batches_per_rank:
        say(
            f"warning: no rank gets a batch: an epoch has {samples_in_all}, fewer than one batch on each of {ranks}; "
            f"lower --batch-size or --ranks"
        )


def _spread(values: Sequence[int], show: Callable[[int], str] = "{:,}".format) -> str:
    """Return the least and the most that a node has, and the sum of all nodes.

    >>> _spread([3000, 20]), _spread([7, 7])
    ('20 to 3,000 on each node, 3,020 in all', '7 on each node, 14 in all')
    """
    low, high = show(min(values)), show(max(values))
    return f"{low if low == high else f'{low} to {high}'} on each node, {show(sum(values))} in all"
