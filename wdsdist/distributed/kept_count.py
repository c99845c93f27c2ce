"""A number that the processes of a node compute once, and keep for later runs."""

from __future__ import annotations

from collections.abc import Callable

from wdsdist._util.host import user_cache_dir
from wdsdist.distributed.kept import kept


def kept_count(about: str, count: Callable[[], int]) -> int:
    """Return a number from the user's cache folder, or compute it in one process while others of this node wait.

    Args:
        about: everything that the number depends on.
        count: computes it.
    """
    return kept(
        lambda: user_cache_dir() / "counts",
        about,
        count,
        load=lambda path: int(path.read_text()),
        save=lambda stream, found: stream.write(str(found).encode()),
    )
