"""``python -m wdsdist``: the command line."""

from wdsdist.cli import main

main()
