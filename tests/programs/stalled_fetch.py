"""A program: fetches a file in a thread, and ends with its standard input; a fetch may also be interrupted.

Arguments: the URL, where to, and ``interrupted`` or ``left``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from wdsdist.storage import engine


def fetch() -> None:
    engine.fetch(sys.argv[1], Path(sys.argv[2]), size=10**6)


if __name__ == "__main__":
    if sys.argv[3] == "interrupted":
        fetch()
    threading.Thread(target=fetch, daemon=True).start()
    sys.stdin.read(1)
