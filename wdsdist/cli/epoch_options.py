"""Options that describe an epoch of training, shared by ``plan`` and ``cache warm``."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.sampling.epoch_plan import FixedBatches


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
    click.option("--ranks", type=int, default=1, show_default=True, help="World size."),
    click.option("--ranks-per-node", type=int, default=8, show_default=True, help="Ranks that share a cache."),
    click.option("--batch-size", type=int, default=64, show_default=True, help="Samples a batch on each rank."),
    click.option(
        "--batches",
        metavar="VALUE",
        callback=_batches,
        help="Instead: a value of wdsdist.batching, such as 'TokenBudget(65536, length=\"txt.bytes\")'.",
    ),
    click.option("--epoch", type=int, default=0, show_default=True, help="Number of the epoch; the first is 0."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order."),
    click.option(
        "--order",
        type=click.Choice(["shard", "sampler"]),
        default="shard",
        show_default=True,
        help="shard reads almost in sequence and shuffles within windows; sampler is DistributedSampler's.",
    ),
    click.option("--no-shuffle", is_flag=True, help="Keep the order of the shards."),
    click.option("--shuffle-window", type=int, help="Samples shuffled together.  [default: 16 shards' worth]"),
    click.option("--num-canonical-replicas", type=int, help="Lanes of the order.  [default: the world size]"),
    click.option("--keep-tail", is_flag=True, help="Keep last batches that are not full."),
)


def epoch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options of an epoch, with the names and defaults of data set and loader."""
    for option in reversed(_EPOCH):
        command = option(command)
    return command


def order_options(
    *,
    seed: int,
    order: str,
    no_shuffle: bool,
    shuffle_window: int | None,
    num_canonical_replicas: int | None,
    **_: Any,
) -> dict[str, Any]:
    """Return the arguments of `OrderConfig` among `epoch_options`; other options of a command are ignored."""
    return {
        "name": order,
        "shuffle": not no_shuffle,
        "seed": seed,
        "shuffle_window": shuffle_window,
        "num_canonical_replicas": num_canonical_replicas,
    }


def fixed_batches(*, ranks: int, batch_size: int, keep_tail: bool, **_: Any) -> FixedBatches:
    """Return the batches of a fixed number of samples among `epoch_options`.

    Raises `ArgumentError` for an option out of its range.
    """
    from wdsdist._util.validation import MOST_PROCESSES, check_integer
    from wdsdist.sampling.epoch_plan import FixedBatches

    check_integer("ranks", ranks, 1, MOST_PROCESSES)
    size = check_integer("batch_size", batch_size, 1)
    return FixedBatches(batch_size=size, drop_last=False, drop_last_batch=not keep_tail)
