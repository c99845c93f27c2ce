"""Options that describe an epoch of training, shared by ``plan`` and ``cache warm``, and the plan that they mean."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.sampling.order import OrderSettings
    from wdsdist.sampling.order_config import OrderConfig
    from wdsdist.sampling.plan import Batcher, Plan, World
    from wdsdist.shards.manifest import Manifest

MORE = "epoch order seed shuffle_window"
"""The names of the options that few people need."""


class Epoch(NamedTuple):
    """An epoch of training as `epoch_options` describe it."""

    config: OrderConfig
    settings: OrderSettings
    world: World
    batcher: Batcher
    plan: Plan


def _batches(ctx: click.Context, param: click.Parameter, value: str | None) -> Batches | None:
    """Read the value of ``--batches``: a value of `wdsdist.batching` as Python has it, of literals alone.

    >>> from unittest.mock import Mock
    >>> _batches(Mock(), Mock(), "TokenBudget(8192, length='txt.bytes')")
    TokenBudget(8192, length='txt.bytes')
    """
    if value is None:
        return None
    from wdsdist import batching

    example = "write it as in Python: 'TokenBudget(65_536, length=\"input_ids.tokens\")'"
    try:
        call = ast.parse(value.strip().removeprefix("batching."), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(f"{value!r} is not a call")
        kind = call.func.id
        if kind not in batching.__all__:
            raise ValueError(f"{kind!r} is not one of {', '.join(batching.__all__)}")
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        batches: Batches = getattr(batching, kind)(*map(ast.literal_eval, call.args), **options)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise click.BadParameter(f"{error}: {example}", ctx, param) from None
    return batches


_EPOCH = (
    click.option("--ranks", type=int, metavar="N", default=1, show_default=True, help="Ranks of the job."),
    click.option("--ranks-per-node", type=int, metavar="N", default=8, show_default=True, help="Ranks per node."),
    click.option(
        "--batch-size", type=int, metavar="N", default=64, show_default=True, help="Samples per batch on one rank."
    ),
    click.option(
        "--batches",
        metavar="VALUE",
        callback=_batches,
        help="Batches of variable lengths, such as 'TokenBudget(65536, length=\"txt.bytes\")', a value of "
        "wdsdist.batching.",
    ),
    click.option("--epoch", type=int, metavar="N", default=0, show_default=True, help="Number of the epoch."),
    click.option(
        "--order",
        type=click.Choice(["shard", "sampler"]),
        default="shard",
        show_default=True,
        help="Order of the samples, as in StreamingDataset.",
    ),
    click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="Seed of the order."),
    click.option(
        "--shuffle-window", type=int, metavar="N", help="Samples shuffled together.  [default: 16 shards' worth]"
    ),
)


def epoch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options of an epoch, with the names and defaults of data set and loader."""
    for option in reversed(_EPOCH):
        command = option(command)
    return command


def epoch_of(
    manifest: Manifest,
    *,
    ranks: int,
    ranks_per_node: int,
    batch_size: int,
    batches: Batches | None,
    epoch: int,
    order: Any,
    seed: int,
    shuffle_window: int | None,
    cache_limit: int | None = None,
) -> Epoch:
    """Return the epoch that a loader with these options plans.

    Raises `ArgumentError` for an option out of its range, unknown columns, and samples that are too long.
    """
    from wdsdist._util.validation import MOST_PROCESSES, check_integer
    from wdsdist.sampling.epoch_plan import FixedBatches
    from wdsdist.sampling.order_config import OrderConfig
    from wdsdist.sampling.plan import Position, World

    check_integer("ranks", ranks, 1, MOST_PROCESSES)
    per_node = min(check_integer("ranks_per_node", ranks_per_node, 1), ranks)
    check_integer("epoch", epoch, 0, 2**40)
    config = OrderConfig(manifest=manifest, name=order, seed=seed, shuffle_window=shuffle_window)
    settings = config.settings(ranks)
    batcher: Batcher
    if batches is None:
        size = check_integer("batch_size", batch_size, 1)
        batcher = FixedBatches(batch_size=size, drop_last=False, drop_last_batch=True)
    else:
        batcher = batches.batcher(manifest)
        batcher.check_lengths()
    window = None if cache_limit is None else settings.window * settings.num_canonical_replicas
    block = batcher.block_samples(ranks, window)
    world = World(ranks, per_node)
    even = world if ranks % per_node == 0 else World(ranks)
    plan = batcher.plan(config.order(settings, epoch), Position(epoch), even, block=block)
    return Epoch(config, settings, world, batcher, plan)
