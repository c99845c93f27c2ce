"""A program: prints a digest of the orders of many worlds, and whether torch was imported for it."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from wdsdist.sampling.order import OrderSettings, epoch_order


def digest_of_orders() -> str:
    digest = hashlib.sha256()
    for counts in ([10], [100, 0, 33, 7], [50] * 40, [5000] * 3):
        for lanes in (1, 2, 8, 64):
            for window in (1, 16, 4096):
                for seed, epoch in ((0, 0), (0, 1), (2**64 - 1, 10**6)):
                    settings = OrderSettings(seed=seed, window=window, num_canonical_replicas=lanes)
                    order = epoch_order(np.array(counts), settings, epoch)
                    shards, samples = order.locate(np.arange(order.num_samples))
                    digest.update(shards.astype("<i8").tobytes() + samples.astype("<i8").tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(digest_of_orders(), "torch" in sys.modules)
