"""A program: runs commands of wdsdist one after another, and prints the status of each behind what it printed.

Argument: a JSON list of commands, each a list of words.
"""

from __future__ import annotations

import json
import sys

from wdsdist.cli import main

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        sys.argv = ["wdsdist", *words]
        try:
            main()
        except SystemExit as end:
            sys.stderr.flush()
            print(f"<{end.code}>", flush=True)
