"""Pack as `wdsdist.pack` does, and look on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wdsdist.packing.options import Options
from wdsdist.packing.parallel import PackProgress
from wdsdist.packing.run import run
from wdsdist.shards.manifest import Manifest


def pack_shown(source: Any, dest: Any, *, progress: Callable[[PackProgress], object], **options: Any) -> Manifest:
    """Pack a source, and call ``progress`` before the first shard is written and after each."""
    return run(source, dest, Options(**options), progress=progress)
