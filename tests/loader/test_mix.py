"""Several data sets in one stream keep the promises of one: equal batches, exact length and resume, epochs of each."""

from __future__ import annotations

import json
import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support import tars
from wdsdist import StreamingDataLoader
from wdsdist.errors import StateError
from wdsdist.samples.images.transforms import seeded

SIZES = {"web": (20, 0, 13, 7), "books": (6, 5), "code": (17,)}
TOTAL = {name: sum(counts) for name, counts in SIZES.items()}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three data sets whose samples and shards have the same names; the class counts within each."""
    folders = {}
    for name, counts in SIZES.items():
        folders[name] = tars.write_numbered(tmp_path_factory.mktemp(name), counts)
        wdsdist.index(folders[name])
    return folders


def make_loader(
    sets: dict[str, Path], batch_size: int = 5, *, rank: int = 0, world: int = 1, workers: int = 0,
    weights: tuple[float, ...] = (5, 3, 2), **more: Any,
) -> StreamingDataLoader:  # fmt: skip
    of_loader = {name: more.pop(name) for name in ("drop_last", "multiprocessing_context") if name in more}
    shares = {name: (sets[name], weight) for name, weight in zip(sets, weights, strict=False)}
    dataset = wdsdist.mix(shares, decode=True, num_replicas=world, rank=rank, **more)
    return StreamingDataLoader(dataset, batch_size, num_workers=workers, **of_loader)


def flat(batches: Any) -> list[Any]:
    return list(chain.from_iterable(batches))


# State


def test_the_state_of_another_mix_is_refused(sets: dict[str, Path]) -> None:
    state = make_loader(sets).state_dict()
    with pytest.raises(StateError, match=r"mix is '1/2 3/10 1/5' in the state and '5/9 1/3 1/9' here"):
        make_loader(sets, weights=(5, 3, 1)).load_state_dict(state)


def test_the_state_of_other_data_sets_or_of_another_order_of_them_is_refused(sets: dict[str, Path]) -> None:
    swapped = {"web": sets["web"], "books": sets["code"], "code": sets["books"]}
    mixes = [make_loader(given, samples_per_epoch=50) for given in (sets, swapped)]
    joined = [StreamingDataLoader(wdsdist.concat(parts), 4, num_workers=0) for parts in (sets, swapped)]
    for one, other in (mixes, joined):
        with pytest.raises(StateError, match="fingerprint is"):
            other.load_state_dict(one.state_dict())


# Samples


def test_samples_say_where_they_come_from_in_mixes_only(sets: dict[str, Path]) -> None:
    locations = {sets["web"]: 1, sets["code"]: 2.5}
    dataset = wdsdist.mix(locations, decode=True)
    assert {sample["__dataset__"] for sample in dataset} == {str(sets["web"]), str(sets["code"])}
    assert dataset[TOTAL["web"]] == {"__key__": "k0", "__shard__": "0.tar", "__dataset__": str(sets["code"]), "cls": 0}
    assert "__dataset__" not in wdsdist.StreamingDataset(sets["web"])[0]


@seeded
def draw(sample: dict[str, Any], seed: int) -> tuple[int, int]:
    """Show what is drawn for a sample."""
    return sample["cls"], seed


def test_a_sample_that_comes_again_in_an_epoch_is_augmented_in_another_way(sets: dict[str, Path]) -> None:
    dataset = wdsdist.mix({sets["code"]: 1}, decode=True, transform=draw, samples_per_epoch=3 * TOTAL["code"])
    drawn = list(dataset)
    assert len({number for number, _ in drawn}) == TOTAL["code"]
    assert len(set(drawn)) == len(drawn)
    batches = StreamingDataLoader(dataset, 3, num_workers=0, collate_fn=list)
    batches.set_epoch(0)
    assert flat(batches) == drawn


def test_credentials_in_a_location_are_not_shown(tmp_path: Path, sets: dict[str, Path]) -> None:
    manifest = wdsdist.open(sets["web"])
    dataset = wdsdist.mix({"https://me:secret@host/web?signature=secret": (manifest, 1)})
    assert dataset[0]["__dataset__"] == "https://host/web"
    assert "secret" not in repr(dataset.manifest) + json.dumps(StreamingDataLoader(dataset, 1).state_dict())


# Concatenation


def test_each_part_keeps_its_own_storage_options(sets: dict[str, Path]) -> None:
    one, other = wdsdist.open(sets["web"], storage_options={"anon": True}), wdsdist.open(sets["code"])
    joined = wdsdist.concat([one, other]).manifest
    options = [source.client_options for source in joined.sources]
    assert [given and given.given for given in options] == [{"anon": True}, None]
    assert [joined.part(number)[1] for number in (0, 3, 4)] == [0, 3, 0]
    nested = wdsdist.concat({"both": joined, "books": sets["books"]}).manifest
    assert nested.part(4)[0].base == str(sets["code"])
    assert [nested.label(number) for number in (0, 4, 5)] == ["both", "both", "books"]
    copy = pickle.loads(pickle.dumps(nested))
    assert copy.fingerprint == nested.fingerprint
    assert copy.part(4)[0].base == str(sets["code"])
