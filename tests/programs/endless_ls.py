"""A program: ``wdsdist ls``, with more lines than a pipe holds, so that the reader is gone before the end.

Argument: the data set.
"""

from __future__ import annotations

import sys

from wdsdist.cli import inspect, main

if __name__ == "__main__":
    inspect._shard_lines = lambda manifest: map(str, range(10**9))
    sys.argv = ["wdsdist", "ls", sys.argv[1]]
    main()
