"""Orders and plans as the tests of plans need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import EpochOrder


def epoch_order_of(order: Any, seed: int = 0) -> EpochOrder:
    """Return an order that is there already as plans take it."""
    return EpochOrder(num_samples=order.num_samples, seed=seed, label="a test's", make=lambda: order)


def ordered(plan: EpochPlan, order: Any) -> EpochPlan:
    """Return a plan with an order."""
    return replace(plan, order=epoch_order_of(order))
