"""A script: packs on a cluster, where the first worker to reach the middle of a shard is killed.

Arguments: engine, address, source, dest, and a folder for notes on who did what. What it defines travels to the
workers by value, for they cannot import it.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from wdsdist.integrations.engines import connect
from wdsdist.packing import pack, sources


class Deadly:
    def __init__(self, samples, notes):
        self.samples = samples
        self.notes = notes

    def __len__(self):
        return len(self.samples)

    def __iter__(self):
        for number, sample in enumerate(self.samples):
            if number == 3:
                self.die_once()
            yield sample
        (self.notes / f"finished-{os.getpid()}").touch()

    def die_once(self):
        try:
            (self.notes / "killed").open("x").write(str(os.getpid()))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def deadly(source, notes):
    def load():
        contents = source.contents
        return replace(contents, take=lambda indices: Deadly(contents.take(indices), notes))

    return replace(source, load=load)


if __name__ == "__main__":
    engine, address, source, dest, notes = sys.argv[1:]
    find = sources.find
    sources.find = lambda *args, **options: deadly(find(*args, **options), Path(notes))
    with connect(engine, address) as executor:
        pack(source, dest, shard_samples=5, executor=executor)
