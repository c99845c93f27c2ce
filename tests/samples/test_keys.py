"""Keys of a batch belong to its samples, whatever bytes an index holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import wdsdist
from wdsdist.shards import index as shard_index


def test_a_key_with_a_nul_moves_no_other_key(tmp_path: Path) -> None:
    keys = [f"{number:03}" for number in range(200)]
    wdsdist.pack(({"__key__": key, "cls": int(key)} for key in keys), tmp_path / "s")
    path = shard_index.beside(next((tmp_path / "s").glob("*.tar")))
    index = shard_index.load(path)
    content = index.key_bytes.tobytes()
    content = content[:3] + b"0\x001" + content[6:]  # the second sample is not among those that are looked at
    path.write_bytes(shard_index.dumps(replace(index, key_bytes=np.frombuffer(content, index.key_bytes.dtype))))
    dataset = wdsdist.StreamingDataset(tmp_path / "s", shuffle=False, decode=True)
    (batch,) = wdsdist.StreamingDataLoader(dataset, 200, num_workers=0)
    assert [int(key.replace("\0", "0")) for key in batch["__key__"]] == batch["cls"].tolist() == list(range(200))
