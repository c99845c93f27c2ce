"""The command ``plan``, which reports an epoch before training."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.epoch_options import MORE, epoch_of, epoch_options
from wdsdist.cli.options import access, byte_count, command, json_option, opened
from wdsdist.cli.output import say, say_json, spread

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.diagnostics.epoch_report import EpochReport
    from wdsdist.shards.manifest import Manifest


@command(
    "wdsdist plan shards --ranks 16 --batch-size 256",
    "wdsdist plan --shards 2000 --samples 10000000 --ranks 64",
    data_that_does_not_exist_yet="num_shards samples shard_bytes",
    advanced=MORE,
)
@click.argument("shards", nargs=-1)
@epoch_options
@click.option("--workers", type=int, metavar="N", default=4, show_default=True, help="Loader workers per rank.")
@click.option("--shards", "num_shards", type=int, metavar="N", help="Number of shards, instead of SHARDS.")
@click.option("--samples", type=int, metavar="N", help="Number of samples in all shards, instead of SHARDS.")
@click.option(
    "--shard-bytes",
    metavar="SIZE",
    callback=byte_count,
    default="64MiB",
    show_default=True,
    help="Size of each shard, if SHARDS does not say.",
)
@access
@json_option
def plan(
    shards: tuple[str, ...], workers: int, num_shards: int | None, samples: int | None, shard_bytes: int, as_json: bool,
    batches: Batches | None, **options: Any,
) -> None:  # fmt: skip
    """Report an epoch over SHARDS before training. No data is read.

    It prints the batches per rank, the shards, bytes and requests per node, and the size of the cache needed. For
    batches of variable lengths (--batches) it also prints their fill and balance.
    """
    import numpy as np

    from wdsdist._util.validation import check_integer
    from wdsdist.diagnostics.epoch_report import epoch_report, nodes_of

    check_integer("workers", workers, 0)
    if bool(shards) == bool(num_shards and samples):
        raise click.UsageError("give either SHARDS, or both --shards and --samples")
    if batches is not None and not shards:
        raise click.UsageError("--batches needs the lengths of samples: give SHARDS, not --shards and --samples")
    manifest = opened(*shards) if shards else _imagined(num_shards or 0, samples or 0)
    check_integer("shard_bytes", shard_bytes, 0, 2**62 // max(1, len(manifest.counts)))
    sizes = np.maximum(manifest.sizes, manifest.tar_sizes)  # as they lie in the cache
    sizes = np.where(sizes < 0, shard_bytes, sizes)
    epoch = epoch_of(manifest, batches=batches, **options)
    settings, world = epoch.settings, epoch.world
    report = epoch_report(epoch.plan, settings, world, manifest.counts, sizes)
    facts = {
        "samples": manifest.num_samples,
        "shards": len(manifest.counts),
        "bytes": int(sizes.sum()),
        "ranks": world.num_replicas,
        "nodes": len(nodes_of(world)),
        "workers": workers,
        "batch_size": None if batches else options["batch_size"],
        "batches": None if batches is None else repr(batches),
        "epoch": options["epoch"],
        **asdict(settings),
        "order": settings.name,
    }
    if as_json:
        say_json(facts | asdict(report))
        return
    for name, line in _lines(facts, report).items():
        say(f"{name + ':':<15}{line}")
    if not report.batches_per_rank:
        say(
            f"warning: no rank gets a batch: an epoch has {counted(facts['samples'], 'sample')}, fewer than one batch "
            f"on each of {counted(world.num_replicas, 'rank')}; lower --batch-size or --ranks"
        )


def _imagined(num_shards: int, samples: int) -> Manifest:
    """Return the manifest of a data set that does not exist: even shards of unknown sizes."""
    import numpy as np

    from wdsdist._util.validation import check_integer
    from wdsdist.shards.manifest import Manifest
    from wdsdist.shards.manifest.source import Source

    count = check_integer("num_shards", num_shards, 1, 2**53)
    share, more = divmod(check_integer("samples", samples, 1, 2**53), count)
    counts = np.full(count, share)
    counts[:more] += 1
    unknown, empty = np.full(count, -1), np.zeros(count, "S1")
    return Manifest(
        names=np.full(count, b".tar"), counts=counts, sizes=unknown, digests=empty, tar_sizes=unknown,
        sources=(Source(""),), source=np.zeros(count, np.int32),
    )  # fmt: skip


def _lines(facts: dict[str, Any], report: EpochReport) -> dict[str, str]:
    """Return the lines of the report, by name."""
    order = facts["order"]
    if order == "shard":
        order += f" in {counted(facts['num_canonical_replicas'], 'lane')}, windows of {facts['window']:,} samples"
    mine = f"{report.samples_per_rank:,.1f}".removesuffix(".0")
    batch = facts["batches"] or counted(facts["batch_size"], "sample")
    lines = {
        "data": f"{counted(facts['samples'], 'sample')} in {counted(facts['shards'], 'shard')}, "
        f"{human(facts['bytes'])}",
        "world": f"{counted(facts['ranks'], 'rank')} on {counted(facts['nodes'], 'node')}, "
        f"{counted(facts['workers'], 'worker')} a rank",
        "order": f"{order}, seed {facts['seed']}, epoch {facts['epoch']}",
        "batches": f"{report.batches_per_rank:,} of {batch} on each rank",
        "samples": f"{mine} on each rank; {report.samples_dropped:,} dropped, {report.samples_repeated:,} repeated, "
        f"of {facts['samples']:,}",
    }
    if report.fill is not None:
        lines["fill"] = f"{report.fill:.3f}, useful tokens over the tokens that fit"
        lines["balance"] = f"{report.balance:.3f}, the slowest rank of a step over the mean of its ranks"
    shards, sizes, requests = report.shards_per_node, report.bytes_per_node, report.requests_per_node
    return lines | {
        "shards opened": f"{spread(shards)} on each node, {sum(shards):,} in all",
        "bytes read": f"{spread(sizes, human)} on each node, {human(sum(sizes))} in all",
        "requests": f"{spread(requests)} on each node, {sum(requests):,} in all, to fetch each shard from a store once",
        "cache needed": f"{human(report.cache_bytes_per_rank)} a rank, {human(report.cache_bytes_per_node)} a node, "
        f"for the current and the next window",
    }
