"""Planned batches on the command line of ``plan``: their options, and what is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wdsdist._util.validation import human
from wdsdist.cli.options import dtypes
from wdsdist.cli.output import counted, spread

if TYPE_CHECKING:
    import numpy as np

    from wdsdist.diagnostics.epoch_report import World
    from wdsdist.diagnostics.planned_report import PlannedReport, StepFigures
    from wdsdist.loader.planned_batches import BatchOptions
    from wdsdist.shards.manifest import Manifest

_OPTIONS = (
    click.option("--max-tokens", type=int, help="Plan batches of as many samples as have so many tokens together."),
    click.option("--max-samples", type=int, help="With --max-tokens: at most so many samples a batch."),
    click.option("--length", metavar="COLUMN", help="The column of lengths, such as input_ids.tokens."),
    click.option(
        "--cost", metavar="HOW", default="linear", show_default=True,
        help="What a batch takes: linear, quadratic, or a column.",
    ),
    click.option("--oversize", default="error", show_default=True, help="Those over --max-tokens: error, drop, alone."),
    click.option("--group-by", metavar="COLUMN", help="Plan batches of --batch-size samples of like lengths."),
    click.option("--bucket-by", metavar="COLUMN", help="Plan batches of --batch-size samples of one category."),
    click.option("--pack-to", type=int, help="Plan rows of so many tokens, --batch-size rows a batch."),
    click.option("--long", default="split", show_default=True, help="Those over --pack-to: split, truncate, error."),
    click.option(
        "--dtype", "dtypes", metavar="EXT=DTYPE", multiple=True, callback=dtypes,
        help="The dtype of a raw array, as decode= has it: input_ids=int32 makes the column input_ids.tokens.",
    ),
)  # fmt: skip
CHOICES = (
    "max_tokens", "max_samples", "length", "cost", "oversize", "group_by", "bucket_by", "pack_to", "long", "dtypes"
)  # fmt: skip
"""The names of these options, as a command gets them."""


def batch_choices(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of planned batches to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class PlannedBatching:
    """An epoch of planned batches as the command line shows it."""

    options: BatchOptions
    report: PlannedReport
    figures: StepFigures

    def facts(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Return what JSON has of it, in place of what it has of batches of a fixed number of samples."""
        found = {name: fact for name, fact in plain.items() if name not in ("samples_per_rank", "mixing", "uniform")}
        found |= {name: getattr(self.options, name) for name in CHOICES if name != "dtypes"}
        return {**found, **asdict(self.report), "batches_per_rank": self.report.steps}

    @property
    def title(self) -> str:
        """The title of the plot."""
        found = self.report
        return f"{self._batches}:\n{found.steps:,} steps, fill {found.fill:.3f}, balance {found.balance:.3f}"

    @property
    def rows(self) -> dict[str, str]:
        """What is printed, by name."""
        found = self.report
        if not found.steps:
            return {"batches": f"none; {self._batches}"}
        return {
            "batches": f"{counted(found.steps, 'step')} of {self._batches} on each rank",
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

    @property
    def warnings(self) -> list[str]:
        """What is wrong with it, in words."""
        if self.report.steps:
            return []
        return ["warning: no rank gets a batch: fewer samples than ranks are left; lower --ranks, or give --keep-tail"]

    @property
    def _batches(self) -> str:
        options = self.options
        if options.max_tokens is not None:
            most = f" and {options.max_samples:,} samples" if options.max_samples else ""
            return f"batches of up to {options.max_tokens:,} tokens{most} by {options.length}"
        if options.pack_to is not None:
            return f"{counted(options.batch_size, 'row')} of {options.pack_to:,} tokens by {options.length}"
        size = counted(options.batch_size, "sample")
        like = f" of like {options.group_by}" if options.group_by else ""
        return f"batches of up to {size}{like}{f' of one {options.bucket_by}' if options.bucket_by else ''}"


def planned_options(
    batch_size: int, *, dtypes: dict[str, np.dtype[Any]], **chosen: Any
) -> tuple[BatchOptions, dict[str, int]] | None:
    """Return the options of planned batches and the item sizes of dtypes, or ``None`` where no batches are planned.

    Raises `ArgumentError` for options that do not go together.
    """
    from_where = click.get_current_context().get_parameter_source
    if all(from_where(name) is ParameterSource.DEFAULT for name in CHOICES):
        return None  # before the imports, which load torch

    from wdsdist.loader.planned_batches import BatchOptions

    options = BatchOptions(batch_size=batch_size, **chosen)
    if options.is_plain:
        if options.length or dtypes:
            raise click.UsageError("--length and --dtype go with --max-tokens, --pack-to, --group-by or --bucket-by")
        return None
    return options, {name: one.itemsize for name, one in dtypes.items()}


def plan_batches(world: World, manifest: Manifest | None, **chosen: Any) -> PlannedBatching | None:
    """Return the report of planned batches, or ``None`` where none are asked for.

    Raises `ArgumentError` for options that do not go together, and for columns that there are not.
    """
    found = planned_options(world.plan.batch_size, **chosen)
    if found is None:
        return None
    if manifest is None:
        raise click.UsageError("planned batches need the lengths of samples: give SHARDS, not --shards and --samples")
    from wdsdist.diagnostics.planned_report import report_of

    return PlannedBatching(found[0], *report_of(world, manifest, *found))
