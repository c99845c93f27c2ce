"""A program: ``wdsdist ls --samples``, with more lines than a pipe holds, so that the reader is gone before the end.

Argument: the data set.
"""

from __future__ import annotations

import sys

from wdsdist.cli import main

if __name__ == "__main__":
    # The module: in its package, the command of the same name hides it.
    vars(sys.modules["wdsdist.cli.ls"])["_sample_lines"] = lambda manifest: zip(map(str, range(10**9)))
    sys.argv = ["wdsdist", "ls", "--samples", sys.argv[1]]
    main()
