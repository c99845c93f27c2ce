"""Has two ranks run a function, and fails with the first error that one of them meets."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import pytest

from tests.support.gloo_ranks import Ranks, fork_workers


def play(ranks: Ranks, function: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> list[dict[str, Any]]:
    """Return what the function returned on each rank."""
    for rank in range(len(ranks.pipes)):
        ranks.tell(rank, _call, function, args, options)
    found: dict[int, dict[str, Any]] = {}
    while len(found) < len(ranks.pipes):
        ready = wait([pipe for rank, pipe in enumerate(ranks.pipes) if rank not in found], timeout=580)
        assert ready, f"of the ranks only {sorted(found)} have answered"
        rank = ranks.pipes.index(ready[0])  # type: ignore[arg-type]
        outcome = ranks.outcome(rank)
        if not isinstance(outcome, dict):
            pytest.fail(f"rank {rank}: {outcome!r}")  # the others may wait for it in vain
        found[rank] = outcome
    return [found[rank] for rank in sorted(found)]


def _call(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    fork_workers()
    return function(*args, **options)
