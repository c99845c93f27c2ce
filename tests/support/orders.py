"""Orders and plans as the tests of plans need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import EpochOrder, OrderSettings

counts_of_shards = st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any).map(np.array)
order_settings = st.builds(
    OrderSettings,
    name=st.sampled_from(["shard", "shard", "sampler"]),
    shuffle=st.booleans(),
    seed=st.integers(0, 1000),
    window=st.integers(1, 60),
    num_canonical_replicas=st.integers(1, 8),
)


def epoch_order_of(order: Any, seed: int = 0) -> EpochOrder:
    """Return an order that is there already as plans take it."""
    return EpochOrder(num_samples=order.num_samples, seed=seed, label="a test's", make=lambda: order)


def ordered(plan: EpochPlan, order: Any) -> EpochPlan:
    """Return a plan with an order."""
    return replace(plan, order=epoch_order_of(order))
