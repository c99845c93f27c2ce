"""A program: runs commands of wdsdist one after another, and fails if one fails or imports torch or webdataset.

Argument: a JSON list of commands, each a list of words.
"""

from __future__ import annotations

import json
import sys

from wdsdist.cli import main

if __name__ == "__main__":
    for command in json.loads(sys.argv[1]):
        sys.argv = ["wdsdist", *command]
        try:
            main()
        except SystemExit as end:
            if end.code:
                sys.exit(f"{command} ended with {end.code}")
    assert "wdsdist.packing" in sys.modules
    heavy = {"torch", "webdataset"}.intersection(sys.modules)
    assert not heavy, heavy
