"""Options that say how training goes through an epoch, shared by ``plan`` and ``cache warm``, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wdsdist.cli.options import dtype_option

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.sampling.epoch_plan import FixedBatches

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
        "--cost", type=click.Choice(["linear", "quadratic"]), default="linear", show_default=True,
        help="What a batch costs: its tokens, or the sum of the squares of its lengths.",
    ),
    click.option(
        "--oversize", type=click.Choice(["error", "drop", "alone"]), default="error", show_default=True,
        help="How to handle a sample over --max-tokens; alone is a batch of its own.",
    ),
    click.option("--group-by", metavar="COLUMN", help="Plan batches of --batch-size samples of like lengths."),
    click.option("--bucket-by", metavar="COLUMN", help="Plan batches of --batch-size samples of one category."),
    click.option("--pack-to", type=int, help="Plan rows of so many tokens, --batch-size rows a batch."),
    click.option(
        "--long", type=click.Choice(["split", "truncate", "error"]), default="split", show_default=True,
        help="How to handle a sample over --pack-to.",
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


def order_options(
    *, seed: int, order: str, no_shuffle: bool, shuffle_window: int | None, num_canonical_replicas: int | None,
    samples_per_epoch: int | None, **_: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of `OrderConfig.of` among `epoch_options`; other options of a command are ignored."""
    return {
        "order": order, "shuffle": not no_shuffle, "seed": seed, "shuffle_window": shuffle_window,
        "num_canonical_replicas": num_canonical_replicas, "samples_per_epoch": samples_per_epoch,
    }  # fmt: skip


def fixed_batches(*, ranks: int, batch_size: int, keep_tail: bool, **_: Any) -> FixedBatches:
    """Return the batches of a fixed number of samples that `epoch_options` ask for.

    Raises `ArgumentError` for an option out of its range.
    """
    from wdsdist._util.validation import MOST_PROCESSES, check_integer
    from wdsdist.sampling.epoch_plan import FixedBatches

    check_integer("ranks", ranks, 1, MOST_PROCESSES)
    size = check_integer("batch_size", batch_size, 1)
    return FixedBatches(batch_size=size, drop_last=False, drop_last_batch=not keep_tail)


def planned_batches(given: dict[str, Any]) -> tuple[Batches, dict[str, int]] | None:
    """Take the options of planned batches out of those of a command; return their value, and the item sizes of dtypes.

    ``None`` if no batches are planned. Raises `ArgumentError` for a value that cannot work, and a usage error for
    options that do not go together.
    """
    chosen = {name: given.pop(name) for name in CHOICES}
    from_where = click.get_current_context().get_parameter_source
    stated = {name for name in CHOICES if from_where(name) is not ParameterSource.DEFAULT}
    ways = [name for name in ("max_tokens", "pack_to", "group_by", "bucket_by") if chosen[name] is not None]
    if not stated:
        return None
    if len(ways) != 1:
        shown = ", ".join(f"--{name.replace('_', '-')}" for name in (ways or sorted(stated)))
        raise click.UsageError(f"{shown}: give one of --max-tokens, --pack-to, --group-by and --bucket-by")
    way, size = ways[0], given["batch_size"]
    known = {"max_tokens": {"length", "max_samples", "cost", "oversize"}, "pack_to": {"length", "long"}}.get(way, set())
    for name in sorted(stated - known - {way, "dtypes"}):
        raise click.UsageError(f"--{name.replace('_', '-')} does not go with --{way.replace('_', '-')}")
    if "length" in known and chosen["length"] is None:
        raise click.UsageError(f"--{way.replace('_', '-')} needs --length, such as input_ids.tokens")
    from wdsdist import batching

    values: dict[str, Callable[[], Batches]] = {
        "max_tokens": lambda: batching.TokenBudget(
            chosen["max_tokens"], length=chosen["length"], max_samples=chosen["max_samples"], cost=chosen["cost"],
            oversize=chosen["oversize"],
        ),
        "pack_to": lambda: batching.PackedRows(
            size, tokens=chosen["pack_to"], length=chosen["length"], long=chosen["long"]
        ),
        "group_by": lambda: batching.LengthGroups(size, by=chosen["group_by"]),
        "bucket_by": lambda: batching.Buckets(size, by=chosen["bucket_by"]),
    }  # fmt: skip
    return values[way](), {name: one.itemsize for name, one in chosen["dtypes"].items()}
