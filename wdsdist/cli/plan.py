"""The command ``plan``, which reports an epoch before training."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.epoch_options import epoch_options, fixed_batches, order_options
from wdsdist.cli.options import access, byte_count, opened
from wdsdist.cli.output import say, say_json, spread

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.diagnostics.epoch_report import EpochReport, World
    from wdsdist.diagnostics.planned_report import PlannedReport
    from wdsdist.shards.manifest import Manifest


@click.command()
@click.argument("shards", nargs=-1)
@click.option("--shards", "num_shards", type=click.IntRange(1, 2**53), help="Instead of SHARDS: number of shards.")
@click.option("--samples", type=click.IntRange(1, 2**53), help="Instead of SHARDS: number of samples in all.")
@click.option(
    "--shard-bytes",
    metavar="SIZE",
    callback=byte_count,
    default="64MiB",
    show_default=True,
    help="Bytes of a shard, if SHARDS does not say.",
)
@epoch_options
@click.option("--workers", type=int, default=4, show_default=True, help="Loader workers of each rank.")
@access
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(workers: int, as_json: bool, batches: Batches | None, **options: Any) -> None:
    """Report an epoch over SHARDS before training: no data is read.

    Prints batches, the shards and bytes that each node reads, requests, and the cache that is needed. For data that
    does not exist yet, give --shards and --samples. For planned batches (--batches), prints fill and balance, from
    columns alone.
    """
    from wdsdist._util.validation import check_integer
    from wdsdist.diagnostics.epoch_report import epoch_report

    check_integer("workers", workers, 0)
    world, manifest = _world(**options)
    report, planned = epoch_report(world), None
    if batches is not None:
        if manifest is None:
            raise click.UsageError("--batches needs the lengths of samples: give SHARDS, not --shards and --samples")
        from wdsdist.diagnostics.planned_report import report_of

        planned, _ = report_of(world, manifest, batches, drop_last=not options["keep_tail"])
    if as_json:
        facts = asdict(report) | ({} if planned is None else {"batches": repr(batches), **asdict(planned)})
        say_json({**_settings(world, workers), **facts})
        return
    for name, line in _lines(world, report, workers, planned, batches).items():
        say(f"{name + ':':<15}{line}")
    if not (planned or report).batches_per_rank:
        say(f"warning: {_no_batch(world)}")


def _world(
    *,
    shards: tuple[str, ...],
    num_shards: int | None,
    samples: int | None,
    shard_bytes: int,
    **given: Any,
) -> tuple[World, Manifest | None]:
    import numpy as np

    from wdsdist._util.validation import check_integer
    from wdsdist.diagnostics.epoch_report import World
    from wdsdist.loader.order_config import OrderConfig
    from wdsdist.sampling.order import EpochOrder, OrderSettings, default_window, epoch_order
    from wdsdist.sampling.plan import Position
    from wdsdist.sampling.plan import World as Ranks

    if bool(shards) == bool(num_shards and samples):
        raise click.UsageError("give either SHARDS, or both --shards and --samples")
    manifest = opened(*shards) if shards else None
    if manifest is not None:
        counts = manifest.counts
        sizes = np.maximum(manifest.sizes, manifest.tar_sizes)  # as they lie in the cache
        sizes = np.where(sizes < 0, shard_bytes, sizes)
    else:
        share, more = divmod(samples or 0, num_shards or 1)
        counts = np.full(num_shards or 1, share)
        counts[:more] += 1
        sizes = np.full(len(counts), shard_bytes)
    check_integer("shard_bytes", shard_bytes, 0, 2**62 // len(counts))
    fixed, ranks, options = fixed_batches(**given), given["ranks"], order_options(**given)
    if manifest is None:
        lanes, window = options["num_canonical_replicas"], options["shuffle_window"]
        settings = OrderSettings(
            name=options["name"],
            shuffle=options["shuffle"],
            seed=options["seed"],
            num_canonical_replicas=ranks if lanes is None else lanes,
            window=default_window(counts) if window is None else window,
        )
        make = functools.partial(epoch_order, counts, settings, given["epoch"], int(counts.sum()))
        order = EpochOrder(num_samples=int(counts.sum()), seed=settings.seed, label=str(settings), make=make)
    else:
        config = OrderConfig(manifest=manifest, **options)
        settings = config.settings(ranks)
        order = config.order(settings, given["epoch"])
    epoch = fixed.plan(order, Position(given["epoch"]), Ranks(ranks))
    per_node = given["ranks_per_node"]
    return World(counts=counts, sizes=sizes, settings=settings, plan=epoch, ranks_per_node=per_node), manifest


def _settings(world: World, workers: int) -> dict[str, Any]:
    settings = asdict(world.settings)
    return {
        "samples": int(world.counts.sum()),
        "shards": len(world.counts),
        "bytes": int(world.sizes.sum()),
        "ranks": world.plan.num_replicas,
        "nodes": len(world.nodes()),
        "workers": workers,
        "batch_size": world.plan.batch_size,
        "epoch": world.plan.epoch,
        "order": settings.pop("name"),
        **settings,
    }


def _lines(
    world: World, report: EpochReport, workers: int, planned: PlannedReport | None, batches: Batches | None
) -> dict[str, str]:
    """Return the lines of the report, by name."""
    epoch, settings, reads = world.plan, world.settings, planned or report
    is_windowed = settings.name == "shard" and settings.shuffle
    window = f", windows of {settings.window:,} samples" if is_windowed else ""
    lanes = f" in {counted(settings.num_canonical_replicas, 'lane')}" if settings.name == "shard" else ""
    lost = f"{reads.samples_dropped:,} dropped, {reads.samples_repeated:,} repeated"
    lines = {
        "data": f"{counted(int(world.counts.sum()), 'sample')} in {counted(len(world.counts), 'shard')}, "
        f"{human(int(world.sizes.sum()))}",
        "world": f"{counted(epoch.num_replicas, 'rank')} on {counted(len(world.nodes()), 'node')}, "
        f"{counted(workers, 'worker')} a rank",
        "order": f"{settings.name}{lanes}{window}, seed {settings.seed}, epoch {epoch.epoch}",
    }
    if planned is None:
        lines["batches"] = f"{reads.batches_per_rank:,} of {counted(epoch.batch_size, 'sample')} on each rank"
        lines["samples"] = f"{report.samples_per_rank:,} on each rank; {lost}, of {epoch.num_samples:,}"
    else:
        lines["batches"] = f"{counted(planned.batches_per_rank, 'step')} of {batches} on each rank"
        lines["samples"] = f"{planned.samples_per_step:,.1f} a step over all ranks; {lost}, of {epoch.num_samples:,}"
        lines["fill"] = f"{planned.fill:.3f}, useful tokens over the tokens that fit"
        lines["balance"] = f"{planned.balance:.3f}, the slowest rank of a step over the mean of its ranks"
    return lines | {
        "shards opened": f"{spread(reads.shards_per_node)} on each node, {sum(reads.shards_per_node):,} in all",
        "bytes read": f"{spread(reads.bytes_per_node, human)} on each node, {human(sum(reads.bytes_per_node))} in all",
        "requests": f"{spread(reads.requests_per_node)} on each node, {sum(reads.requests_per_node):,} in all, to "
        f"fetch each shard from a store once",
        "cache needed": f"{human(report.cache_bytes_per_rank)} a rank, {human(report.cache_bytes_per_node)} a node, "
        f"for the current and the next window",
    }


def _no_batch(world: World) -> str:
    """Return why an epoch has no batch, and what to do."""
    epoch = world.plan
    size = epoch.batch_size * epoch.num_replicas
    return (
        f"no rank gets a batch: an epoch has {counted(epoch.num_samples, 'sample')}, fewer than one global batch of "
        f"{size:,} ({counted(epoch.num_replicas, 'rank')} x --batch-size {epoch.batch_size}), and batches that are not "
        f"full are dropped; lower --batch-size or --ranks, or give --keep-tail"
    )
