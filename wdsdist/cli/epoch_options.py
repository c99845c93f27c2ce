"""Options that say how training goes through an epoch, shared by ``plan`` and ``cache warm``, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wdsdist.cli.options import dtype_option

if TYPE_CHECKING:
    from wdsdist._util.array_types import Int64s
    from wdsdist.loader.planned_batches import BatchOptions
    from wdsdist.sampling.epoch_plan import EpochPlan
    from wdsdist.sampling.order import OrderSettings

_EPOCH = (
    click.option("--ranks", type=int, default=1, show_default=True, help="World size."),
    click.option(
        "--ranks-per-node", type=int, default=8, show_default=True, help="Ranks of one node, which share a cache."
    ),
    click.option("--batch-size", type=int, default=64, show_default=True, help="Samples a batch on each rank."),
    click.option("--epoch", type=int, default=0, show_default=True, help="Number of the epoch; the first is 0."),
    click.option("--samples-per-epoch", type=int, help="Length of an epoch.  [default: all samples once]"),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order, as of StreamingDataset."),
    click.option(
        "--order",
        type=click.Choice(["shard", "sampler"]),
        default="shard",
        show_default=True,
        help="shard reads almost in sequence and shuffles within windows; sampler is that of DistributedSampler.",
    ),
    click.option("--no-shuffle", is_flag=True, help="Keep the order of the shards, as shuffle=False."),
    click.option("--shuffle-window", type=int, help="Samples shuffled together.  [default: 16 shards' worth]"),
    click.option(
        "--num-canonical-replicas",
        type=int,
        help="Lanes of the order, which ranks divide among them.  [default: the world size]",
    ),
    click.option(
        "--keep-tail", is_flag=True, help="Keep last batches that are not full, as drop_last=False of the loader."
    ),
)
_BATCHES = (
    click.option("--max-tokens", type=int, help="Plan batches of as many samples as have so many tokens together."),
    click.option("--max-samples", type=int, help="With --max-tokens: most samples of a batch."),
    click.option(
        "--length", metavar="COLUMN",
        help="The column of lengths, such as txt.bytes, or input_ids.tokens, which raw arrays have with --dtype.",
    ),
    click.option(
        "--cost", metavar="HOW", default="linear", show_default=True,
        help="What a batch takes: linear, quadratic, or a column.",
    ),
    click.option(
        "--oversize", type=click.Choice(["error", "drop", "alone"]), default="error", show_default=True,
        help="What becomes of a sample over --max-tokens; alone is a batch of its own.",
    ),
    click.option("--group-by", metavar="COLUMN", help="Plan batches of --batch-size samples of like lengths."),
    click.option("--bucket-by", metavar="COLUMN", help="Plan batches of --batch-size samples of one category."),
    click.option("--pack-to", type=int, help="Plan rows of so many tokens, --batch-size rows a batch."),
    click.option(
        "--long", type=click.Choice(["split", "truncate", "error"]), default="split", show_default=True,
        help="What becomes of a sample over --pack-to.",
    ),
    dtype_option,
)  # fmt: skip
CHOICES = (
    "max_tokens", "max_samples", "length", "cost", "oversize", "group_by", "bucket_by", "pack_to", "long", "dtypes"
)  # fmt: skip
"""The names of these options, as a command gets them."""


def epoch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of an epoch and of planned batches, with the names and defaults of the loader's arguments."""
    for option in reversed(_EPOCH + _BATCHES):
        command = option(command)
    return command


def epoch_of(
    counts: Int64s, *, has_ranges: bool, ranks: int, batch_size: int, samples_per_epoch: int | None, seed: int,
    order: str, no_shuffle: bool, shuffle_window: int | None, num_canonical_replicas: int | None, keep_tail: bool,
    **_: Any,
) -> tuple[OrderSettings, EpochPlan]:  # fmt: skip
    """Return the order and the plan of an epoch over shards with so many samples each, as `epoch_options` say.

    Other options of a command are ignored. Raises `ArgumentError` for an option out of its range.
    """
    from wdsdist._util.validation import MOST_PROCESSES, check_integer
    from wdsdist.sampling.epoch_plan import EpochPlan
    from wdsdist.sampling.order import OrderSettings, default_window, version_for

    check_integer("ranks", ranks, 1, MOST_PROCESSES)
    if samples_per_epoch is not None:
        check_integer("samples_per_epoch", samples_per_epoch, 1, 2**53)
    settings = OrderSettings(
        name="sampler" if order == "sampler" else "shard",
        shuffle=not no_shuffle,
        seed=seed,
        window=default_window(counts) if shuffle_window is None else shuffle_window,
        num_canonical_replicas=ranks if num_canonical_replicas is None else num_canonical_replicas,
        version=version_for(has_ranges=has_ranges),
    )
    return settings, EpochPlan(
        num_samples=int(counts.sum()) if samples_per_epoch is None else samples_per_epoch,
        num_replicas=ranks,
        batch_size=check_integer("batch_size", batch_size, 1),
        drop_last=False,
        drop_last_batch=not keep_tail,
    )


def planned_options(given: dict[str, Any]) -> tuple[BatchOptions, dict[str, int]] | None:
    """Take the options of planned batches out of those of a command; return them, and the item sizes of dtypes.

    ``None`` where no batches are planned. Raises `ArgumentError` for options that do not go together.
    """
    chosen = {name: given.pop(name) for name in CHOICES}
    from_where = click.get_current_context().get_parameter_source
    if all(from_where(name) is ParameterSource.DEFAULT for name in CHOICES):
        return None  # before the imports, which load torch

    from wdsdist.loader.planned_batches import BatchOptions

    dtypes = chosen.pop("dtypes")
    options = BatchOptions(batch_size=given["batch_size"], drop_last=not given["keep_tail"], **chosen)
    if options.is_plain:
        if dtypes:
            raise click.UsageError("--dtype goes with --max-tokens, --pack-to, --group-by or --bucket-by")
        return None
    return options, {name: one.itemsize for name, one in dtypes.items()}
