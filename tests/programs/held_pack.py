"""A program: the command line, but packing says that it has begun by a byte in one pipe and waits for another's end.

Arguments: the two pipes, and those of the command line.
"""

from __future__ import annotations

import sys
from typing import Any

from wdsdist.cli import main
from wdsdist.packing import run


def hold(at_work: str, held: str) -> None:
    """Have packing wait before it plans."""
    real = run.make_plan

    def make_plan(*args: Any, **options: Any) -> Any:
        with open(at_work, "ab") as started:  # noqa: PTH123
            started.write(b"x")
        with open(held, "rb") as gate:  # noqa: PTH123
            gate.read()
        return real(*args, **options)

    run.make_plan = make_plan


if __name__ == "__main__":
    hold(*sys.argv[1:3])
    sys.argv = ["wdsdist", *sys.argv[3:]]
    main()
    assert "torch" not in sys.modules
