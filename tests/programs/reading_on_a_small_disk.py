"""A program: reads an epoch over a cache whose disk fills, with less of it, and on a larger disk; prints JSON.

Each epoch is read by a process of its own. Arguments: the URL, the folder of the same shards, the folder to mount on,
workers, shuffle window. Printed are batches, error and message of each of the three epochs, and, after the first, which
copies are not what the store has. It mounts, so run it in a mount namespace of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import wdsdist
from tests.support.stores import BATCH, COPY, digest, strange_copies


def run(url: str, workers: int, options: dict[str, Any]) -> tuple[list[str], str, str]:
    dataset = wdsdist.StreamingDataset(url, **options)
    batches = []
    try:
        for batch in wdsdist.StreamingDataLoader(dataset, BATCH, num_workers=workers):
            batches.append(digest(batch))
    except Exception as error:
        return batches, type(error).__name__, str(error)
    return batches, "", ""


def main(url: str, stored: str, disk: str, workers: int, window: int) -> None:
    def read(**options: Any) -> tuple[list[str], str, str]:
        options |= {"cache_dir": Path(disk, "cache"), "shuffle_window": window}
        with ProcessPoolExecutor(1) as process:
            return process.submit(run, url, workers, options).result()

    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,size={8 * COPY}", "tmpfs", disk], check=True)
    full = read(download_timeout=20)
    strange = strange_copies(Path(disk), Path(stored))
    limited = read(cache_limit=6 * COPY)
    subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
    print(json.dumps([full, strange, limited, read()]))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
