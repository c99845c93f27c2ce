"""Keep existing objects out of garbage collection (``gc.freeze``) while modules are imported or workers forked."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Leave the objects that exist now out of garbage collection until the block ends; forked workers leave them out.

    A full collection visits all that torch has imported: it takes 0.1 s, and in a forked worker it copies each page.
    """
    is_free = gc.get_freeze_count() == 0  # else the program has frozen what it wants
    if is_free:
        gc.freeze()
    try:
        yield
    finally:
        if is_free:
            gc.unfreeze()
