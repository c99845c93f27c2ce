"""The command ``bench``, which measures the throughput of loading."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.host import cpu_count
from wdsdist._util.validation import human
from wdsdist.cli.options import Finite, access, cache_dir_option, dtype_option, field_list, opened
from wdsdist.cli.output import contents, say, say_json

if TYPE_CHECKING:
    from pathlib import Path

    from wdsdist.diagnostics.profiling import Costs, Rate
    from wdsdist.diagnostics.staging import Staging
    from wdsdist.loader.dataset import StreamingDataset

_HELP = {
    "read": "a faster disk, or fewer --fields,",
    "decode": "decoding less, or smaller images,",
    "transport": "larger batches, or fewer values in a sample,",
}
"""What makes a sample cheaper, by the part of `Costs` that is largest."""


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    """Parse a list such as ``0,2,4``; without one, double the workers up to the number of cores."""
    if value is None:
        cores = cpu_count()
        return [0, *(1 << power for power in range(cores.bit_length()) if 1 << power < cores), cores]
    try:
        found = [int(part) for part in value.split(",")]
    except ValueError:
        found = [-1]
    if min(found) < 0:
        raise click.BadParameter(f"{value!r} is no list of numbers of workers such as 0,2,4", ctx, param)
    return found


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--fields", callback=field_list, help="Members to read, such as 'jpg;png,cls'.  [default: all]")
@click.option("--decode", help="'true' for the table of extensions, or an image form such as rgb8.  [default: bytes]")
@click.option("--crop", type=click.IntRange(min=1), help="Decode images to random crops of this size.")
@dtype_option
@click.option("--batch-size", type=int, default=64, show_default=True, help="Samples a batch.")
@click.option("--workers", callback=_numbers, help="Numbers of workers to try: 0,2,4.  [default: up to the cores]")
@click.option("--seconds", type=Finite(min=0.01), default=3.0, show_default=True, help="To measure each figure.")
@click.option(
    "--step", type=Finite(0, 86_400_000), default=0.0, show_default=True, help="Milliseconds of training a batch."
)
@cache_dir_option
@access
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(
    shards: tuple[str, ...], workers: list[int], batch_size: int, seconds: float, step: float, as_json: bool, **how: Any
) -> None:
    """Measure how fast SHARDS load here, and suggest num_workers.

    First the cost of a sample on one core, by step: reading, decoding, and its transport from a worker; then the
    throughput with each number of workers.
    """
    from wdsdist.diagnostics import profiling
    from wdsdist.diagnostics.staging import staging

    dataset = _dataset(shards, **how)
    if not as_json:
        size = human(dataset.order_config.mean_sample_bytes * batch_size)
        say(f"data:       {contents(dataset.manifest)}; batches of {batch_size:,} samples, {size}")
    mount = staging(dataset.manifest, dataset.cache.folder, seconds=seconds)
    if mount and not as_json:
        say(f"mount:      {_staging(mount)}")
    found = profiling.costs(dataset, batch_size, seconds=seconds)
    if not as_json:
        _show_costs(found)
        say(f"{'workers':>7}  {'samples/s':>11}  {'MiB/s':>8}  {'first batch':>11}  {'waiting':>7}")
    rates = []
    for number in workers:
        rates.append(profiling.rate(dataset, batch_size, workers=number, seconds=seconds, step=step / 1000))
        if not as_json:
            _show_rate(rates[-1], found)
    best = profiling.suggested(rates)
    if as_json:
        rows = [asdict(one) for one in rates]
        shown = None if mount is None else {**asdict(mount), "pays": mount.pays}
        say_json({"costs": asdict(found), "rates": rows, "suggested_workers": best, "mount": shown})
        return
    say(f"suggestion: num_workers={best}, {reason(rates, best, step, found)}")


def _dataset(
    shards: tuple[str, ...],
    *,
    fields: tuple[str, ...] | None,
    decode: str | None,
    crop: int | None,
    dtypes: dict[str, Any],
    cache_dir: Path | None,
) -> StreamingDataset:
    if sum(map(bool, (decode, crop or dtypes))) > 1:
        raise click.UsageError("give either --decode, or --crop and --dtype")
    from wdsdist.loader.dataset import StreamingDataset
    from wdsdist.samples.images.transforms import RandomResizedCrop

    manifest = opened(*shards)
    how: Any = {"true": True, None: None}.get(decode, decode)
    if crop or dtypes:
        images = "npy" if manifest.has_raw_images else "image"
        how = {**dtypes, **({f"{images}?": RandomResizedCrop(crop)} if crop else {})}
    return StreamingDataset(manifest, fields=fields, decode=how, cache_dir=cache_dir)


def _staging(mount: Staging) -> str:
    """Return the read rates of a mount and of the cache's disk, and whether copies would pay, as text."""
    rates = f"{mount.mount} reads {human(int(mount.mount_rate))}/s, {mount.cache} {human(int(mount.cache_rate))}/s"
    if not mount.pays:
        return f"{rates}: stage=True would not pay"
    room = "" if mount.fits else f"; with cache_limit, for {human(mount.free_bytes)} are free"
    return (
        f"{rates}: stage=True pays from the second epoch on where training reads more than "
        f"{human(int(mount.mount_rate))}/s on this node{room}"
    )


def _show_costs(found: Costs) -> None:
    parts = {name: getattr(found, name) for name in _HELP}
    total = sum(parts.values())
    say(f"a sample:   {total * 1e6:,.1f} us of one core, {human(found.sample_bytes)} read")
    for name, cost in parts.items():
        say(f"  {name + ':':<10}{cost * 1e6:>10,.1f} us  {cost / total:>4.0%}")


def _show_rate(one: Rate, found: Costs) -> None:
    speed = one.samples_per_second * found.sample_bytes / 2**20
    say(
        f"{one.workers:>7}  {one.samples_per_second:>11,.0f}  {speed:>8,.0f}  {one.first_batch:>9.2f} s  "
        f"{one.waiting:>7.0%}"
    )


def reason(rates: list[Rate], best: int, step: float, found: Costs) -> str:
    """Return why that number of workers is suggested, and what would help where it is that of all cores."""
    chosen = next(one for one in rates if one.workers == best)
    if step:
        return f"the fewest with which training waits for {chosen.waiting:.0%} of its time"
    if best == max(one.workers for one in rates) and best >= cpu_count():
        largest = max(_HELP, key=lambda name: float(getattr(found, name)))
        return f"all cores: {_HELP[largest]} would help more than anything else"
    return "the fewest within 5 % of the best; with --step MILLISECONDS, training's time a batch, fewer may do"
