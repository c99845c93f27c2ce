"""The command ``plan``, which reports an epoch before training."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.epoch_options import epoch_options, fixed_batches, order_options, planned_batches
from wdsdist.cli.options import Finite, access, byte_count, field_list, opened
from wdsdist.cli.output import say, say_json, spread

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.diagnostics.epoch_report import EpochReport, Reads, World
    from wdsdist.diagnostics.planned_report import PlannedReport, StepFigures
    from wdsdist.sampling.epoch_plan import EpochPlan
    from wdsdist.shards.manifest import Manifest

_SHOWN = 8  # samples of a batch, and shards of a rank, that are printed before they are only counted


@click.command()
@click.argument("shards", nargs=-1)
@click.option("--shards", "num_shards", type=click.IntRange(1, 2**53), help="Instead of SHARDS: how many shards.")
@click.option("--samples", type=click.IntRange(1, 2**53), help="Instead of SHARDS: how many samples in all.")
@click.option(
    "--shard-bytes", metavar="SIZE", callback=byte_count, default="64MiB", show_default=True,
    help="Bytes of a shard, where SHARDS does not tell.",
)  # fmt: skip
@click.option("--fields", callback=field_list, help="Members to read, such as 'jpg;png,cls'.  [default: all]")
@epoch_options
@click.option("--workers", type=int, default=4, show_default=True, help="Loader workers of each rank.")
@click.option("--step", type=Finite(min=0.001), metavar="MS", help="Milliseconds of training a "
    "batch: shows the requests and bytes of a day.")  # fmt: skip
@click.option("--rank", type=int, help="Show what this rank reads.")
@access
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw when the ranks of a node read which shards, or the fill and balance of planned steps (png, svg).",
)
def plan(rank: int | None, workers: int, step: float | None, as_json: bool, plot: Path | None, **options: Any) -> None:
    """Report an epoch over SHARDS before training: no data is read.

    It shows batches, shards and bytes that each node reads, requests, the cache that is needed, and how well samples
    are mixed. For data that does not exist yet, give --shards and --samples instead. For planned batches, as the values
    of wdsdist.batching make them, it reports fill and balance, from columns alone.
    """
    from wdsdist._util.validation import check_integer
    from wdsdist.diagnostics.epoch_report import epoch_report

    if plot is not None:
        from wdsdist.cli.plotting import draw, draw_steps, new_figure

        figure = new_figure(plot)
    check_integer("workers", workers, 0)
    chosen = planned_batches(options)
    world, manifest = _world(**options)
    planned = None if chosen is None else _Planned.of(world, manifest, *chosen, drop_last=not options["keep_tail"])
    if planned is not None and rank is not None:
        raise click.UsageError("--rank shows batches of a fixed number of samples: leave it out for planned batches")
    if rank is not None:
        check_integer("rank", rank, 0, world.plan.num_replicas - 1)
    found = epoch_report(world)
    facts = _facts(world, found, workers)
    facts = facts if planned is None else planned.facts(facts)
    facts["epochs_per_day"] = _epochs_per_day(facts["batches_per_rank"], step)
    of_rank = None if rank is None else _rank_facts(world, rank, workers)
    if as_json:
        say_json({**facts, **({} if of_rank is None else {"rank": of_rank})})
    else:
        shown = _lines(world, found, workers, planned, per_day=facts["epochs_per_day"])
        for line in [*shown, *(_rank_lines(of_rank) if of_rank else ())]:
            say(line)
    if plot is not None:
        if planned is None:
            draw(figure, world, found, plot, rank=rank)
        else:
            draw_steps(figure, planned.figures, plot, title=planned.title, reads=_reads(planned.report))
        say(f"drawn: {plot}", err=True)


def _world(
    *, shards: tuple[str, ...], num_shards: int | None, samples: int | None, shard_bytes: int,
    fields: tuple[str, ...] | None, **given: Any,
) -> tuple[World, Manifest | None]:  # fmt: skip
    import numpy as np

    from wdsdist._util.validation import check_integer
    from wdsdist.diagnostics.epoch_report import World
    from wdsdist.loader.order_config import OrderConfig
    from wdsdist.samples.needed_parts import parts_read
    from wdsdist.sampling.order import EpochOrder, OrderSettings, default_window, epoch_order
    from wdsdist.sampling.plan import Position
    from wdsdist.sampling.plan import World as Ranks

    if bool(shards) == bool(num_shards and samples):
        raise click.UsageError("give either SHARDS, or both --shards and --samples")
    if fields is not None and not shards:
        raise click.UsageError("--fields needs the indexes of shards: give SHARDS, not --shards and --samples")
    manifest = None
    if shards:
        manifest = opened(*shards)
        counts = manifest.counts
        sizes = np.maximum(manifest.sizes, manifest.tar_sizes)  # as they lie in the cache
        sizes = np.where(sizes < 0, shard_bytes, sizes)
    else:
        many = num_shards or 1
        share, more = divmod(samples or 0, many)
        counts = np.full(many, share)
        counts[:more] += 1
        sizes = np.full(many, shard_bytes)
    check_integer("shard_bytes", shard_bytes, 0, 2**62 // len(counts))
    fixed, ranks, orders = fixed_batches(**given), given["ranks"], order_options(**given)
    if manifest is None:
        window, lanes, length = (
            orders[name] for name in ("shuffle_window", "num_canonical_replicas", "samples_per_epoch")
        )
        settings = OrderSettings(
            name=orders["order"], shuffle=orders["shuffle"], seed=orders["seed"],
            window=default_window(counts) if window is None else window,
            num_canonical_replicas=ranks if lanes is None else lanes,
        )  # fmt: skip
        length = int(counts.sum()) if length is None else check_integer("samples_per_epoch", length, 1, 2**53)
        make = functools.partial(epoch_order, counts, settings, given["epoch"], length)
        order = EpochOrder(num_samples=length, seed=settings.seed, label=str(settings), make=make)
        plan = fixed.plan(order, Position(given["epoch"]), Ranks(ranks))
    else:
        config = OrderConfig.of(manifest, **orders)
        settings = config.settings(ranks)
        plan = fixed.plan(config.order(settings, given["epoch"]), Position(given["epoch"]), Ranks(ranks))
    read, ranges = parts_read(counts, sizes, manifest=manifest, fields=fields)
    return World(
        counts=counts, sizes=sizes, settings=settings, plan=plan, ranks_per_node=given["ranks_per_node"], read=read,
        ranges=ranges,
    ), manifest  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Planned:
    """An epoch of planned batches as the command line shows it."""

    batches: Batches
    report: PlannedReport
    figures: StepFigures

    @classmethod
    def of(
        cls, world: World, manifest: Manifest | None, batches: Batches, itemsizes: dict[str, int], *, drop_last: bool
    ) -> _Planned:
        """Plan an epoch. Raises `ArgumentError` for unknown columns."""
        if manifest is None:
            raise click.UsageError(
                "planned batches need the lengths of samples: give SHARDS, not --shards and --samples"
            )
        from wdsdist.diagnostics.planned_report import report_of

        return cls(batches, *report_of(world, manifest, batches, itemsizes, drop_last=drop_last))

    def facts(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Return what JSON has of it, in place of what it has of batches of a fixed number of samples."""
        found = {name: fact for name, fact in plain.items() if name not in ("samples_per_rank", "mixing", "uniform")}
        return {**found, "batches": repr(self.batches), **asdict(self.report), "batches_per_rank": self.report.steps}

    @property
    def title(self) -> str:
        """The title of the plot."""
        found = self.report
        return f"{self.batches}:\n{found.steps:,} steps, fill {found.fill:.3f}, balance {found.balance:.3f}"

    @property
    def rows(self) -> dict[str, str]:
        """What is printed, by name."""
        found = self.report
        if not found.steps:
            return {"batches": f"none; {self.batches}"}
        return {
            "batches": f"{counted(found.steps, 'step')} of {self.batches} on each rank",
            "fill": f"{found.fill:.3f}, useful tokens over those there is room for",
            "balance": f"{found.balance:.3f}, the slowest rank of a step over the mean of its ranks, on average",
            "samples": f"{found.samples_per_step:,.1f} a step over all ranks, "
            f"{spread((found.least_samples_per_step, found.most_samples_per_step))}; "
            f"{found.samples_dropped:,} dropped, {found.samples_repeated:,} repeated",
            "shards opened": f"{spread(found.shards_per_node)} on each node, {sum(found.shards_per_node):,} in all, "
            f"{found.shards_over_plain:.3f} times those of plain batches",
            "bytes read": f"{spread(found.bytes_per_node, human)} on each node, {human(sum(found.bytes_per_node))} in "
            f"all, {found.bytes_over_plain:.3f} times those of plain batches",
        }


def _facts(world: World, found: EpochReport, workers: int) -> dict[str, Any]:
    settings = asdict(world.settings)
    return {
        "samples": int(world.counts.sum()),
        "samples_per_epoch": world.plan.num_samples,
        "shards": len(world.counts),
        "bytes": int(world.sizes.sum()),
        "ranks": world.plan.num_replicas,
        "nodes": len(world.nodes()),
        "workers": workers,
        "batch_size": world.plan.batch_size,
        "epoch": world.plan.epoch,
        "order": settings.pop("name"),
        **settings,
        **asdict(found),
    }


def _epochs_per_day(batches: int, step: float | None) -> float | None:
    """Return the epochs that a day has room for, at so many milliseconds a batch."""
    return 86_400_000 / (batches * step) if batches and step else None


def _reads(found: Reads) -> str:
    """Say what the nodes fetch in an epoch."""
    return (
        f"{spread(found.requests_per_node)} on each node, {sum(found.requests_per_node):,} in all, to fetch each shard "
        f"from a store once"
    )


def _of_a_day(found: Reads, epochs: float) -> str:
    requests, size = (most * epochs for most in (max(found.requests_per_node), max(found.bytes_per_node)))
    return (
        f"{epochs:,.1f} epochs: up to {requests:,.0f} requests and {human(int(size))} a node, where no shard stays "
        f"cached for the next epoch"
    )


def _lines(
    world: World, found: EpochReport, workers: int, planned: _Planned | None, *, per_day: float | None
) -> list[str]:
    plan, settings = world.plan, world.settings
    total = plan.num_samples
    window = f", windows of {settings.window:,} samples" if settings.name == "shard" and settings.shuffle else ""
    lanes = f" in {counted(settings.num_canonical_replicas, 'lane')}" if settings.name == "shard" else ""
    rows = {
        "data": f"{counted(int(world.counts.sum()), 'sample')} in {counted(len(world.counts), 'shard')}, "
        f"{human(int(world.sizes.sum()))}",
        "world": f"{counted(plan.num_replicas, 'rank')} on {counted(len(world.nodes()), 'node')}, "
        f"{counted(workers, 'worker')} a rank",
        "order": f"{settings.name}{lanes}{window}, seed {settings.seed}, epoch {world.plan.epoch}",
        "batches": f"{found.batches_per_rank:,} of {counted(world.plan.batch_size, 'sample')} on each rank",
        "samples": f"{found.samples_per_rank:,} on each rank; {found.samples_dropped:,} dropped, "
        f"{found.samples_repeated:,} repeated, of {total:,}",
        "shards opened": f"{spread(found.shards_per_node)} on each node, {sum(found.shards_per_node):,} in all",
        "bytes read": f"{spread(found.bytes_per_node, human)} on each node, {human(sum(found.bytes_per_node))} in all",
        "requests": _reads(found),
        "cache needed": f"{human(found.cache_bytes_per_rank)} a rank, {human(found.cache_bytes_per_node)} a node, for "
        "the current and the next window",
    }
    if planned is not None:
        before = {name: row for name, row in rows.items() if name in ("data", "world", "order")}
        rows = {**before, **planned.rows, "requests": _reads(planned.report), "cache needed": rows["cache needed"]}
    if per_day:
        rows["a day"] = _of_a_day(found if planned is None else planned.report, per_day)
    if planned is not None:
        less = "fewer samples than ranks are left; lower --ranks, or give --keep-tail"
        return _table(rows) + ([] if planned.report.steps else [f"warning: no rank gets a batch: {less}"])
    mixing = {
        "same shard": (found.mixing.same_shard, found.uniform.same_shard, "of neighbours in a batch", 3),
        "moved": (found.mixing.moved, found.uniform.moved, "of the data set, on average", 3),
        "entropy": (
            found.mixing.batch_entropy, found.uniform.batch_entropy, "bits in a batch, if 100 classes lay in order", 2
        ),
    }  # fmt: skip
    known = {name: row for name, row in mixing.items() if not math.isnan(row[0])}
    if known:
        rows["mixing"] = "of this order, and of a uniform shuffle"
    for name, (ours, uniform, what, digits) in known.items():
        rows[f"  {name}"] = f"{ours:<7.{digits}f}{uniform:<7.{digits}f}{what}"
    return _table(rows) + _warnings(plan, missing=mixing.keys() - known)


def _table(rows: dict[str, str]) -> list[str]:
    return [f"{name + ':':<15}{text}" for name, text in rows.items()]


def _warnings(plan: EpochPlan, *, missing: Collection[str]) -> list[str]:
    """Return what is wrong with a plan, in words."""
    if not plan.batches_per_rank:
        size = plan.batch_size * plan.num_replicas
        return [
            f"warning: no rank gets a batch: an epoch has {counted(plan.num_samples, 'sample')}, fewer than one global "
            f"batch of {size:,} ({counted(plan.num_replicas, 'rank')} x --batch-size {plan.batch_size}), and batches "
            f"that are not full are dropped; lower --batch-size or --ranks, or give --keep-tail"
        ]
    if missing:
        return ["note: how neighbours in a batch mix is not measured: batches of 2 samples or more are needed"]
    return []


def _rank_facts(world: World, rank: int, workers: int) -> dict[str, Any]:
    """Return the first, the middle and the last batch of a rank, and the shards that it reads, in order."""
    order, plan = world.order(), world.plan
    picked = {"first": 0, "middle": plan.batches_per_rank // 2, "last": plan.batches_per_rank - 1}
    batches = {}
    for name, number in picked.items() if plan.batches_per_rank else ():
        shards, samples = order.locate(plan.positions(rank=rank, batch=number))
        batches[name] = {
            "batch": number,
            "worker": number % workers if workers else None,
            "shards": shards.tolist(),
            "samples": samples.tolist(),
        }
    return {"rank": rank, "batches": batches}


def _rank_lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"rank {facts['rank']}:"]
    for name, batch in facts["batches"].items():
        pairs = [f"{shard}:{sample}" for shard, sample in zip(batch["shards"], batch["samples"], strict=True)]
        more = f", ... ({len(pairs)} in all)" if len(pairs) > _SHOWN else ""
        worker = "" if batch["worker"] is None else f", worker {batch['worker']}"
        shards = counted(len(set(batch["shards"])), "shard")
        lines.append(
            f"  {name} batch ({batch['batch']:,}{worker}), from {shards}, as shard:sample: "
            f"{', '.join(pairs[:_SHOWN])}{more}"
        )
    return lines
