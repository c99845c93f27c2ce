"""The page of open_clip: its `get_wds_dataset`, by what open_clip's training asks of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist
from tests.integrations.projects.conftest import Adapter

SIZES = {"web": 60, "books": 30}


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of images with captions that begin with their names, of 4 to 120 letters."""
    root = tmp_path_factory.mktemp("pools")
    lengths = np.random.default_rng(0).integers(1, 116, sum(SIZES.values()))
    for name, size in SIZES.items():
        image = np.zeros((4, 4, 3), np.uint8)
        made = ({"png": image, "txt": f"{name} {n} {'x' * lengths[n]}"} for n in range(size))
        wdsdist.pack(made, root / name, shard_samples=8)
    return root


def arguments(pools: Path, *names: str, **more: Any) -> SimpleNamespace:
    given = {
        "train_data": "::".join(str(pools / name) for name in names), "train_data_upsampling_factors": None,
        "train_num_samples": None, "batch_size": 6, "workers": 0, "seed": 0,
    }  # fmt: skip
    return SimpleNamespace(**(given | more))


def make(adapter: Adapter, args: SimpleNamespace, *, is_train: bool = True) -> Any:
    return adapter("open_clip")["get_wds_dataset"](args, to_tensor, is_train, tokenizer=lambda text: [text])


def to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB")))


def captions(batches: Any) -> list[str]:
    return [" ".join(text.split()[:2]) for batch in batches for text in batch["text"]]


def test_each_pair_comes_once_an_epoch_over_the_ranks(
    adapter: Adapter, pools: Path, on_rank: Callable[..., None]
) -> None:
    found = []
    for rank in range(3):
        on_rank(rank, 3)
        data = make(adapter, arguments(pools, "web", batch_size=5))
        epochs = []
        for epoch in range(2):
            data.set_epoch(epoch)
            batches = list(data.dataloader)
            assert len(batches) == data.dataloader.num_batches == 4
            assert {tuple(batch["image"].shape) for batch in batches} == {(5, 4, 4, 3)}
            epochs.append(captions(batches))
        found.append(epochs)
    for epoch in range(2):
        assert Counter(text for epochs in found for text in epochs[epoch]) == {f"web {n}": 1 for n in range(60)}
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize(("factors", "web"), [(None, 4), ("1::1", 4), ("1::2", 3), ("1::4", 2)])
def test_upsampling_factors_are_shares_of_every_batch(adapter: Adapter, pools: Path, factors: str, web: int) -> None:
    data = make(adapter, arguments(pools, "web", "books", train_data_upsampling_factors=factors))
    for batch in data.dataloader:
        assert Counter(text.split()[0] for text in batch["text"]) == {"web": web, "books": 6 - web}


def test_pairs_without_a_caption_or_that_do_not_decode_are_replaced(adapter: Adapter, tmp_path: Path) -> None:
    good = {"png": np.zeros((4, 4), np.uint8), "txt": "good"}  # grey, and given in RGB
    bad = [{"txt": "  \n"}, {"txt": b""}, {"png": b"no image"}, {"jpg": good["png"], "png": None}]
    samples = [good | bad[n // 8] if n % 8 == 3 and n < 32 else good for n in range(40)]
    made = ({name: value for name, value in one.items() if value is not None} for one in samples)
    wdsdist.pack(made, tmp_path / "pool", shard_samples=10)
    data = make(adapter, arguments(tmp_path, "pool", batch_size=10))
    texts = [text for batch in data.dataloader for text in batch["text"]]
    assert texts == ["good"] * 40
    assert data.dataloader.stats().bad_samples == 3  # an image of another type is not a bad one


class Tokenizer:
    """Gives as many tokens as letters, like open_clip's with variable texts."""

    pad_token_id = 0

    def __call__(self, text: str, pad: bool = True) -> list[torch.Tensor]:
        assert not pad
        return [torch.tensor([ord(letter) for letter in text])]


def collate_variable_text_dicts(
    samples: list[dict[str, torch.Tensor]], *, pad_id: int, text_pad_multiple: int | None
) -> dict[str, torch.Tensor]:
    text = torch.nn.utils.rnn.pad_sequence([one["text"] for one in samples], batch_first=True, padding_value=pad_id)
    return {"text": text, "text_valid": text != pad_id}


def test_length_bucketing_pads_captions_less(adapter: Adapter, pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("open_clip_train.data")
    theirs.__dict__.update(collate_variable_text_dicts=collate_variable_text_dicts)
    monkeypatch.setitem(sys.modules, "open_clip_train", ModuleType("open_clip_train"))
    monkeypatch.setitem(sys.modules, "open_clip_train.data", theirs)
    made = adapter("open_clip", block=2, **adapter("open_clip"))["get_variable_wds_dataset"]
    useful = []
    for is_bucketed in (False, True):
        args = arguments(pools, "web", length_bucketing=is_bucketed)
        batches = list(made(args, to_tensor, True, tokenizer=Tokenizer()).dataloader)
        useful.append(np.mean([float(batch["text_valid"].float().mean()) for batch in batches]))
        texts = [bytes(text[text > 0].tolist()).decode() for batch in batches for text in batch["text"]]
        assert Counter(" ".join(text.split()[:2]) for text in texts) == {f"web {n}": 1 for n in range(60)}
    assert useful[0] < 0.75 < 0.85 < useful[1]


def test_captions_come_from_other_members_as_the_page_says(adapter: Adapter, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(12)]
    samples = ({"jpg": np.zeros((4, 4, 3), np.uint8), "json": {"caption": text}} for text in texts)
    wdsdist.pack(samples, tmp_path / "pool")
    names = adapter("open_clip", {'"txt")': '"json")', '["txt"]': '["json"]["caption"]'})
    data = names["get_wds_dataset"](arguments(tmp_path, "pool"), to_tensor, True, tokenizer=lambda text: [text])
    assert Counter(captions(data.dataloader)) == Counter(texts)


def test_evaluation_gives_every_pair_in_order_on_one_rank(
    adapter: Adapter, pools: Path, on_rank: Callable[..., None]
) -> None:
    on_rank(1, 2)
    data = make(adapter, arguments(pools, "web", val_data=str(pools / "web"), batch_size=7), is_train=False)
    assert captions(data.dataloader) == [f"web {n}" for n in range(60)]
    assert data.dataloader.num_samples == 60
