"""Layouts that people have, built as their makers build them: nothing is lost, mixed or changed without a word."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path

import pytest

import wdsdist
from tests.support.tars import plain_tar
from wdsdist.errors import NotFoundError, ShardDamagedError
from wdsdist.shards.build_index import index_splits

CAPTIONED = [(f"{key}.{extension}", b"x") for key in ("0", "1", "2") for extension in ("jpg", "txt")]


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


@pytest.fixture
def energon(tmp_path: Path) -> Path:
    """Two tars in a subfolder, with the notes of Megatron-Energon above them."""
    for number in range(2):
        write(tmp_path / f"energon/parts/data_{number}.tar", plain_tar(CAPTIONED))
    counts = {f"parts/data_{number}.tar": 3 for number in range(2)}
    write(tmp_path / "energon/.nv-meta/.info.json", json.dumps({"shard_counts": counts}))
    splits = "exclude: []\nsplit_parts:\n  train: [parts/data_0.tar]\n  val: [parts/data_1.tar]\n  test: []\n"
    write(tmp_path / "energon/.nv-meta/split.yaml", splits)
    return tmp_path / "energon"


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Training and validation tars in one folder, as timm has them."""
    for name in ("train-0000", "train-0001", "validation-00"):
        members = [(f"{name}_{key}", data) for key, data in CAPTIONED]
        write(tmp_path / f"imagenet/imagenet-{name}.tar", plain_tar(members))
    return tmp_path / "imagenet"


def test_splits_in_a_subfolder_are_those_of_the_notes_above_it(
    energon: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wdsdist.index(energon / "parts", output=tmp_path / "own", workers=1)
    assert "look like splits, train (1 of the tars), val (1 of the tars)" in warnings(caplog)


def test_the_remedy_for_splits_in_a_subfolder_works(energon: Path) -> None:
    with pytest.raises(NotFoundError, match=r"`wdsdist index .*energon --splits`"):
        wdsdist.open(energon)
    made = index_splits(energon, workers=1)
    assert [manifest.num_samples for manifest in made] == [3, 3]
    assert wdsdist.open(energon / "parts" / "index-val.json").shards[0].name == "data_1.tar"


def test_packing_training_and_validation_tars_together_is_warned_of(
    imagenet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert wdsdist.pack(imagenet, tmp_path / "all", workers=1).num_samples == 9
    assert f"`wdsdist index {imagenet} --splits` makes one each" in warnings(caplog)
    index_splits(imagenet, workers=1)
    train = wdsdist.pack(imagenet / "index-train.json", tmp_path / "train", workers=1)
    assert train.num_samples == 6


def test_a_sparse_tar_of_gnu_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with write(tmp_path / "tree/0.bin", b"").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    write(tmp_path / "tree/0.txt", "text")
    (tmp_path / "tars").mkdir()
    command = ["tar", "-cSf", str(tmp_path / "tars/a.tar"), "--format=gnu", "-C", str(tmp_path / "tree"), "."]
    subprocess.run(command, check=True)
    with pytest.raises(ShardDamagedError, match="unpack it by `tar xf`, and pack the files"):
        wdsdist.index(tmp_path / "tars", workers=1)
    manifest = wdsdist.pack(tmp_path / "tree", tmp_path / "made", workers=1)
    assert len(wdsdist.StreamingDataset(manifest)[0]["bin"]) == (1 << 20) + 3
