"""Video and audio through the loader: the same clips in any world and after a resume, and bad files replaced."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist
from tests.support.media import frames_of, recording, video
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import SampleError
from wdsdist.transforms import AudioClip, Clip, RandomResizedCrop

pytest.importorskip("av")

DECODE = {"mp4": Clip(3, stride=2, size=RandomResizedCrop(24)), "flac": AudioClip(0.25, 8000), "cls": int}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 samples of a video, a recording and a number."""
    return packed(tmp_path_factory.mktemp("media"), {})


def packed(folder: Path, cut: Collection[tuple[str, int]]) -> Path:
    film, sound = video(40, options=(("g", "12"), ("bf", "3"))), recording(seconds=2, channels=1, rate=16_000)
    samples = (
        {
            "__key__": f"{number:02d}",
            "mp4": film[: 500 if ("mp4", number) in cut else None],
            "flac": sound[: 500 if ("flac", number) in cut else None],
            "cls": number,
        }
        for number in range(24)
    )
    wdsdist.pack(samples, folder, shard_samples=8)
    return folder


def dataset(shards: Path, **how: Any) -> StreamingDataset:
    return StreamingDataset(shards, decode=DECODE, seed=3, **how)


def taken(batches: Any) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    rows = (zip(batch["cls"].tolist(), batch["mp4"], batch["flac"], strict=True) for batch in batches)
    return {number: (clip, sound) for batch in rows for number, clip, sound in batch}


def test_clips_are_the_same_in_any_world_and_after_a_resume(shards: Path) -> None:
    loader = StreamingDataLoader(dataset(shards), batch_size=4, num_workers=0)
    expected = taken(loader)
    assert len(expected) == 24
    assert expected[5][0].shape == (3, 3, 24, 24)
    assert expected[5][1].shape == (1, 2000)
    loader.set_epoch(0)
    batches = iter(loader)
    found = taken([next(batches), next(batches)])
    state = loader.state_dict()
    for rank in range(2):
        resumed = StreamingDataLoader(dataset(shards, num_replicas=2, rank=rank), batch_size=2, num_workers=1)
        resumed.load_state_dict(state)
        found |= taken(resumed)
    assert found.keys() == expected.keys()
    assert all(one.equal(other) for key in found for one, other in zip(found[key], expected[key], strict=True))
    loader.set_epoch(1)
    assert not taken(loader)[5][0].equal(expected[5][0])


def test_bad_files_are_an_error_that_names_the_member_or_are_replaced(tmp_path: Path) -> None:
    bad = packed(tmp_path, {("mp4", 0), ("flac", 1)})
    with pytest.raises(SampleError, match=r"\.tar: member \d\d\.(mp4|flac): .*on_error=\"replace\""):
        list(StreamingDataset(bad, decode=DECODE))
    replacing = dataset(bad, on_error="replace", error_budget=0.5)
    assert taken(StreamingDataLoader(replacing, batch_size=4, num_workers=0)).keys() == {*range(2, 24)}


def test_audio_is_decoded_by_its_extension(shards: Path) -> None:
    found = StreamingDataset(shards, decode="audio")[7]
    samples, rate = found["flac"]
    assert (samples.dtype, samples.shape, rate) == (torch.float32, (1, 32_000), 16_000)
    assert type(found["cls"]) is int
    assert type(found["mp4"]) is bytes


def test_the_length_of_video_and_audio_is_a_column(shards: Path) -> None:
    found = wdsdist.open(shards)
    found.add_columns(probe=["mp4.seconds", "mp4.frames", "flac.seconds"])
    assert {*found.column("mp4.frames")} == {40}
    assert {*found.column("flac.seconds")} == {2}
    assert found.column("mp4.seconds") == pytest.approx(4 / 3, abs=0.001)


def test_the_parts_of_a_video_are_its_frames_once(shards: Path) -> None:
    data = wdsdist.open(shards).select(sample=2).explode(4)
    exploded = StreamingDataset(data, fields=("mp4",), decode={"mp4": Clip(10, at=0)})
    film = video(40, options=(("g", "12"), ("bf", "3")))
    frames = torch.from_numpy(np.stack(frames_of(film))).permute(0, 3, 1, 2)
    found = [sample for batch in StreamingDataLoader(exploded, batch_size=2, num_workers=0)
             for sample in zip(batch["__key__"], batch["__part__"].tolist(), batch["mp4"], strict=True)]  # fmt: skip
    assert len({(key, part) for key, part, _ in found}) == 8
    assert all(torch.equal(clip, frames[10 * part : 10 * part + 10]) for _, part, clip in found)
