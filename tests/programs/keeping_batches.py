"""A program: keeps ten batches of two workers, says ``running``, and ends with its standard input.

Arguments: the shards, and how workers start. A worker that is spawned makes the loader too, as those of scripts do.
"""

from __future__ import annotations

import sys

import wdsdist

if __name__ in ("__main__", "__mp_main__"):
    dataset = wdsdist.StreamingDataset(sys.argv[1], decode=True)
    loader = wdsdist.StreamingDataLoader(dataset, 8, num_workers=2, multiprocessing_context=sys.argv[2])
if __name__ == "__main__":
    kept = [batch for _, batch in zip(range(10), loader, strict=False)]
    print("running", flush=True)
    sys.stdin.read()
