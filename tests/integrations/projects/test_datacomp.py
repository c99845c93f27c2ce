"""The page of DataComp, whose commands are run as they stand there: subsets by identifiers, without new shards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import wdsdist
from tests.integrations.projects.conftest import Adapter
from tests.support import tars


def test_a_subset_of_a_pool_is_what_open_clip_trains_on(
    adapter: Adapter, tmp_path: Path, on_rank: Callable[[int, int], None]
) -> None:
    uids = [f"{number * 2**120 // 50 + number:032x}" for number in range(50)]
    image = wdsdist.encode("png", np.zeros((2, 2, 3), np.uint8))
    pool = tmp_path / "pool"
    pool.mkdir()
    for shard in range(5):
        members = [
            (f"{shard:04d}{number:04d}.{extension}", content)
            for number, uid in enumerate(uids[shard * 10 : shard * 10 + 10])
            for extension, content in (
                ("png", image),
                ("txt", uid.encode()),
                ("json", json.dumps({"uid": uid}).encode()),
            )
        ]
        (pool / f"{shard:08d}.tar").write_bytes(tars.plain_tar(members))

    chosen = [*uids[3:33:2], "f" * 32]  # the last is in no pool
    np.save(tmp_path / "subset.npy", np.sort(np.array([(int(u[:16], 16), int(u[16:], 16)) for u in chosen], "u8,u8")))
    data = wdsdist.index(pool).add_columns(fields=["json.uid"])
    data.select(keys=tmp_path / "subset.npy", on="json.uid").save(tmp_path / "subset")

    args = SimpleNamespace(
        train_data=str(tmp_path / "subset"), train_data_upsampling_factors=None, train_num_samples=30, batch_size=3,
        workers=0, seed=0,
    )  # fmt: skip
    seen: Counter[str] = Counter()
    for rank in range(2):
        on_rank(rank, 2)
        loader = adapter("open_clip")["get_wds_dataset"](args, np.array, True, tokenizer=lambda text: [text]).dataloader
        seen.update(text for batch in loader for text in batch["text"])
    assert seen == dict.fromkeys(chosen[:-1], 2)
