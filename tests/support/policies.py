"""Another policy of requests for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wdsdist.storage.waiting import policy


@contextlib.contextmanager
def use_policy(**values: float) -> Iterator[None]:
    """Change the policy of the requests of this process, and of its children, until the block ends."""
    before = {name: getattr(policy, name) for name in values}
    try:
        for name, value in values.items():
            setattr(policy, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(policy, name, value)
