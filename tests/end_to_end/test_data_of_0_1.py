"""What version 0.1 wrote is read by this one: shards, indexes, states of all orders, and a cache folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import wdsdist

SAVED = Path(__file__).parent / "data_of_0_1"
STATES: dict[str, dict[str, Any]] = json.loads((SAVED / "states.json").read_text(encoding="utf-8"))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, as the current folder."""
    folder = shutil.copytree(SAVED, tmp_path / "saved")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def stored(saved: Path) -> dict[str, tuple[str, float]]:
    """The store that the saved cache was filled from."""
    memory = fsspec.filesystem("memory")
    for name in ("packed", "zst"):
        for path in Path(name).glob("*[!k]"):
            memory.pipe(f"/old/{path}", path.read_bytes())
    return {"a": ("memory://old/packed", 0.7), "b": ("memory://old/zst", 0.3)}


def dataset_of(name: str) -> wdsdist.StreamingDataset:
    if name == "concat":
        return wdsdist.concat(["packed", "foreign"], decode=True, seed=3)
    return wdsdist.StreamingDataset("packed", decode=True, order=name, seed=3)  # type: ignore[arg-type]


def rest_after(
    state: dict[str, Any], dataset: wdsdist.StreamingDataset, batch_size: int = 4, workers: int = 0
) -> list[str]:
    loader = wdsdist.StreamingDataLoader(dataset, batch_size, num_workers=workers)
    loader.load_state_dict(state)
    return [key for batch in loader for key in batch["__key__"]]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("when", ["before", "within", "end"])
@pytest.mark.parametrize("name", ["shard", "sampler", "concat"])
def test_a_state_of_0_1_goes_on_with_the_same_samples(name: str, when: str) -> None:
    saved_state = STATES[name][when]
    assert rest_after(saved_state["state"], dataset_of(name)) == saved_state["keys"]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("when", ["before", "within", "end"])
@pytest.mark.parametrize("name", ["few", "few mixed"])
def test_a_state_from_before_lines_were_turned_goes_on_in_the_order_of_its_run(name: str, when: str) -> None:
    few: dict[str, Any] = {"decode": True, "seed": 3, "num_replicas": 8, "rank": 5}
    mixed = name == "few mixed"
    dataset = wdsdist.mix({"packed": 0.7, "zst": 0.3}, **few) if mixed else wdsdist.StreamingDataset("packed", **few)
    saved_state = STATES[name][when]
    assert "order_version" not in saved_state["state"]
    assert rest_after(saved_state["state"], dataset, 1, workers=2 if when == "end" else 0) == saved_state["keys"]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("when", ["before", "within", "end"])
@pytest.mark.parametrize("name", ["grow", "grow mixed"])
def test_a_state_from_when_windows_grew_goes_on_in_the_order_of_its_run(name: str, when: str) -> None:
    grow: dict[str, Any] = {"decode": True, "seed": 3, "shuffle_window": 14, "num_canonical_replicas": 1}
    mixed = name == "grow mixed"
    dataset = wdsdist.mix({"packed": 0.7, "zst": 0.3}, **grow) if mixed else wdsdist.StreamingDataset("packed", **grow)
    saved_state = STATES[name][when]
    assert saved_state["state"]["order_version"] == 2
    assert rest_after(saved_state["state"], dataset, 2) == saved_state["keys"]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("when", ["before", "within", "end"])
@pytest.mark.parametrize("name", ["full", "full mixed", "tokens"])
def test_a_state_from_when_all_windows_were_full_goes_on_in_the_order_and_plan_of_its_run(name: str, when: str) -> None:
    full: dict[str, Any] = {"decode": True, "seed": 3, "shuffle_window": 12, "num_canonical_replicas": 1}
    full |= {"num_replicas": 2, "rank": 1}
    mixed = name == "full mixed"
    dataset = (
        wdsdist.mix({"packed": 0.7, "foreign": 0.3}, **full) if mixed else wdsdist.StreamingDataset("packed", **full)
    )
    batches: dict[str, Any] = {"max_tokens": 16, "length": "txt.bytes"} if name == "tokens" else {"batch_size": 2}
    state, keys = STATES[name][when]["state"], STATES[name][when]["keys"]
    assert (state["order_version"], state.get("plan_version", 3)) == (3, 3)
    loader = wdsdist.StreamingDataLoader(dataset, num_workers=0, **batches)
    loader.load_state_dict(state)
    assert [key for batch in loader for key in batch["__key__"]] == keys


@pytest.mark.usefixtures("saved")
def test_compressed_shards_keep_the_order_whose_first_batch_needs_one_shard_and_remote_ones_have_that_of_local_ones(
    stored: dict[str, tuple[str, float]],
) -> None:
    places = ("packed", "zst", stored["a"][0])
    versions = [wdsdist.StreamingDataset(place).state_dict()["order_version"] for place in places]
    assert versions == [4, 2, 4]


@pytest.mark.parametrize("when", ["before", "within", "end"])
def test_a_state_of_a_mix_of_0_1_goes_on_with_the_same_samples_from_its_cache(
    when: str, stored: dict[str, tuple[str, float]]
) -> None:
    mixed = wdsdist.mix(stored, decode=True, seed=3, cache_dir="cache")
    loader = wdsdist.StreamingDataLoader(mixed, 4, num_workers=0)
    saved_state = STATES["mix"][when]
    loader.load_state_dict(saved_state["state"])
    assert [key for batch in loader for key in batch["__key__"]] == saved_state["keys"]
    assert loader.stats().shards_fetched == 0


@pytest.mark.usefixtures("saved")
def test_shards_of_0_1_hold_what_was_packed() -> None:
    dataset = wdsdist.StreamingDataset("packed", decode=True)
    assert sorted(dataset[number]["__key__"] for number in range(30)) == [f"a{number:03}" for number in range(30)]
    for sample in map(dataset.__getitem__, range(30)):
        number = int(sample["__key__"][1:])
        assert (sample["txt"], sample["cls"]) == (f"a {number}", number % 3)
        assert np.array_equal(sample["npy"], np.arange(4) * number)


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("name", ["packed", "zst", "foreign"])
def test_data_of_0_1_is_whole_and_its_indexes_are_used(name: str) -> None:
    indexes = {path: path.read_bytes() for path in Path(name).glob("*.wdsindex")}
    assert wdsdist.verify(name) == []
    assert len(indexes) >= 2
    assert indexes == {path: path.read_bytes() for path in Path(name).glob("*.wdsindex")}
