"""The page of open_lm: lists of tokens in ``json.gz`` with a ``manifest.jsonl``, by what its training asks of them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import wdsdist
from tests.integrations.projects.conftest import Adapter
from tests.support import tars

LENGTH, VOCABULARY = 6, 1000
SHORT = {4, 12, 13, 14, 15, 20}  # most of the second shard


def write(folder: Path, first: int, counts: tuple[int, ...], *, short: Container[int] = (), name: str) -> str:
    """Write the tars of open_lm's tokenizer and their manifest, and return its path; sequences begin with a number."""
    folder.mkdir()
    rows = []
    for shard, count in enumerate(counts, 1):
        members = []
        for number in range(first, first + count):
            tokens = [number, *range(LENGTH - 1), -1][: 3 if number in short else None]
            members.append((f"{number:032x}.json.gz", gzip.compress(json.dumps(tokens).encode())))
        (folder / f"{shard:08d}.tar").write_bytes(tars.plain_tar(members))
        rows.append({"shard": f"{shard:08d}", name: count})
        first += count
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wdsdist.index(folder)
    return str(folder / "manifest.jsonl")


@pytest.fixture
def manifests(tmp_path: Path) -> list[str]:
    books = write(tmp_path / "books", 100, (10,), name="num_chunks")  # as open_lm's tokenizer wrote at first
    return [write(tmp_path / "web", 0, (12, 7, 11), short=SHORT, name="num_sequences"), books]


def make(adapter: Adapter, manifests: list[str], **more: Any) -> Any:
    given = {
        "dataset_manifest": manifests, "train_data_mix_weights": None, "train_num_samples": 12, "seed": 0,
        "per_gpu_batch_size": 3, "workers": 0, "seq_len": LENGTH, "vocab_size": VOCABULARY,
    }  # fmt: skip
    return adapter("open_lm")["get_wds_dataset"](SimpleNamespace(**(given | more)), True, data_key="json.gz")


def numbers(data: Any) -> list[int]:
    found = []
    for batch in data.dataloader:
        (texts,) = batch
        texts = torch.LongTensor(texts)
        assert texts.shape[1] == LENGTH + 1
        assert (texts[:, -1] == VOCABULARY - 1).all()
        found += texts[:, 0].tolist()
    return found


def test_sequences_come_once_before_any_again_over_ranks_and_epochs(
    adapter: Adapter, manifests: list[str], on_rank: Callable[[int, int], None]
) -> None:
    seen: Counter[int] = Counter()
    for rank in range(2):
        on_rank(rank, 2)
        for epoch in range(5):
            data = make(adapter, manifests[1:])  # open_lm makes a loader for each epoch
            data.set_epoch(epoch)
            found = numbers(data)
            assert len(found) == data.dataloader.num_batches * 3 == data.dataloader.num_samples // 2 == 6
            seen.update(found)
    assert seen == dict.fromkeys(range(100, 110), 6)


def test_sources_are_mixed_by_their_weights_and_short_sequences_replaced(
    adapter: Adapter, manifests: list[str]
) -> None:
    found = numbers(make(adapter, manifests, train_data_mix_weights=[2.0, 1.0], train_num_samples=90))
    assert sum(number >= 100 for number in found) == 30
    assert {number for number in found if number < 100} == set(range(30)) - SHORT
