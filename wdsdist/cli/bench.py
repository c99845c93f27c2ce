"""The command ``bench``, which measures the throughput of loading."""

from __future__ import annotations

import click

from wdsdist._util.host import cpu_count
from wdsdist._util.validation import human
from wdsdist.cli.options import command, field_list, number_option, of_shards, opened
from wdsdist.cli.output import contents, say


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    """Parse a list such as ``0,2,4``; without one, double the workers up to the number of cores."""
    if value is None:
        cores = cpu_count()
        return [0, *(1 << power for power in range(cores.bit_length()) if 1 << power < cores), cores]
    numbers = [int(part) if part.strip().isdecimal() else -1 for part in value.split(",")]
    if min(numbers) < 0:
        raise click.BadParameter(f"{value!r} is not a list of numbers of workers such as 0,2,4", ctx, param)
    return numbers


@command("wdsdist bench shards", "wdsdist bench shards --decode rgb8 --batch-size 1 --workers 0,2,4")
@of_shards
@click.option(
    "--fields", metavar="LIST", callback=field_list, help="Only these fields, such as 'jpg;png,cls'.  [default: all]"
)
@click.option("--decode", metavar="HOW", help="true, or an image form such as rgb8.  [default: bytes]")
@number_option("--batch-size", default=64, help="Samples per batch; 1 for decoded images of different sizes.")
@click.option(
    "--workers", metavar="N,N,...", callback=_numbers, help="Numbers of workers to try.  [default: up to the cores]"
)
@click.option("--seconds", type=float, metavar="S", default=3.0, help="Seconds for each number of workers.")
def bench(
    shards: tuple[str, ...], fields: tuple[str, ...] | None, decode: str | None, workers: list[int], batch_size: int,
    seconds: float,
) -> None:  # fmt: skip
    """Measure how fast SHARDS load here, and suggest num_workers."""
    from wdsdist.diagnostics import throughput
    from wdsdist.loader.dataset import StreamingDataset

    dataset = StreamingDataset(opened(*shards), fields=fields, decode=True if decode == "true" else decode)
    say(f"data: {contents(dataset.manifest)}; batches of {batch_size:,} samples")
    say(f"{'workers':>7}  {'samples/s':>11}  {'bytes/s':>11}  {'first batch':>11}")
    rates = []
    for number in workers:
        rates.append(rate := throughput.measure(dataset, batch_size, workers=number, seconds=seconds))
        size = human(int(rate.bytes_per_second))
        say(f"{number:>7}  {rate.samples_per_second:>11,.0f}  {size:>11}  {rate.first_batch:>9.2f} s")
    best = max(rate.samples_per_second for rate in rates)
    fewest = min(rate.workers for rate in rates if rate.samples_per_second >= 0.95 * best)  # more gain is noise
    say(f"suggestion: num_workers={fewest}, the fewest within 5 % of the best")
