"""Make the files in this folder: what wdsdist 0.1 wrote, which later versions must go on reading.

They were made once, by version 0.1.0 before its modules were rearranged, and the states of ``few`` shards on many
ranks before lines were turned, of windows that ``grow`` in version 2 of the order, of ``full`` ones in version 3, and
of ``tokens`` in version 3 of the plan; making them anew would test nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

import wdsdist

HERE = Path(__file__).parent


def samples(name: str, count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        yield {"__key__": f"{name}{number:03}", "txt": f"{name} {number}", "cls": number % 3,
               "npy": np.arange(4, dtype=np.int16) * number}  # fmt: skip


def states(dataset: wdsdist.StreamingDataset, batch_size: int | None = 4, **options: Any) -> dict[str, object]:
    """Return a state before, within and after an epoch, each with the keys that the rest of its epochs holds."""
    found = {}
    for name, epoch, stop in (("before", 0, 0), ("within", 1, 3), ("end", 1, 100)):
        loader = wdsdist.StreamingDataLoader(dataset, batch_size, num_workers=0, **options)
        loader.set_epoch(epoch)
        state = loader.state_dict()
        if stop:
            for number, _ in enumerate(loader, 1):
                if number == stop:
                    break
            state = loader.state_dict()
        rest = wdsdist.StreamingDataLoader(dataset, batch_size, num_workers=0, **options)
        rest.load_state_dict(state)
        keys = [key for batch in rest for key in batch["__key__"]]
        found[name] = {"state": state, "keys": keys}
    return found


def main() -> None:
    os.chdir(HERE)
    for name in ("packed", "zst", "foreign", "cache"):
        shutil.rmtree(name, ignore_errors=True)
    wdsdist.pack(samples("a", 30), "packed", shard_samples=7)
    wdsdist.pack(samples("b", 10), "zst", shard_samples=5, compress="zst")
    Path("foreign").mkdir()
    for path in sorted(Path("packed").glob("*.tar"))[:2]:
        shutil.copy(path, Path("foreign") / path.name.replace("0", "x"))
    wdsdist.index("foreign")
    found = {}
    for order in ("shard", "sampler"):
        dataset = wdsdist.StreamingDataset("packed", decode=True, order=order, seed=3)
        found[order] = states(dataset)
    memory = fsspec.filesystem("memory")
    for name in ("packed", "zst"):
        for path in Path(name).glob("*[!k]"):
            memory.pipe(f"/old/{path}", path.read_bytes())
    stored = {"a": ("memory://old/packed", 0.7), "b": ("memory://old/zst", 0.3)}
    mixed = wdsdist.mix(stored, decode=True, seed=3, cache_dir="cache")
    found["mix"] = states(mixed)
    joined = wdsdist.concat(["packed", "foreign"], decode=True, seed=3)
    found["concat"] = states(joined)
    few = {"decode": True, "seed": 3, "num_replicas": 8, "rank": 5}
    found["few"] = states(wdsdist.StreamingDataset("packed", **few), 1)
    found["few mixed"] = states(wdsdist.mix({"packed": 0.7, "zst": 0.3}, **few), 1)
    grow = {"decode": True, "seed": 3, "shuffle_window": 14, "num_canonical_replicas": 1}
    found["grow"] = states(wdsdist.StreamingDataset("packed", **grow), 2)
    found["grow mixed"] = states(wdsdist.mix({"packed": 0.7, "zst": 0.3}, **grow), 2)
    full = {"decode": True, "seed": 3, "shuffle_window": 12, "num_canonical_replicas": 1, "num_replicas": 2, "rank": 1}
    found["full"] = states(wdsdist.StreamingDataset("packed", **full), 2)
    found["full mixed"] = states(wdsdist.mix({"packed": 0.7, "foreign": 0.3}, **full), 2)
    found["tokens"] = states(wdsdist.StreamingDataset("packed", **full), None, max_tokens=16, length="txt.bytes")
    Path("states.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
