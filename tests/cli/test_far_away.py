"""Commands on a data set in a store: what they request of it, and what they say of wrong bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import wdsdist
from tests.support.heard import heard
from tests.support.memory_store import Fault, MemoryStore
from tests.support.policies import use_policy
from wdsdist.cli import _wdsdist

SHARDS, SAMPLES = 3, 21  # odd: the middle of a shard, where faults are, lies in a photo
PHOTO = 100_000


def photo(number: int) -> bytes:
    return np.random.default_rng(number).bytes(PHOTO)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of photos with labels."""
    dest = tmp_path_factory.mktemp("far") / "shards"
    samples = ({"__key__": f"k{n:03}", "jpg": photo(n), "cls": n} for n in range(SHARDS * SAMPLES))
    wdsdist.pack(samples, dest, shard_samples=SAMPLES)
    return dest


@pytest.fixture
def store(folder: Path) -> Iterator[MemoryStore]:
    with MemoryStore({f"train/{path.name}": path.read_bytes() for path in folder.iterdir()}) as store:
        yield store


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache, into which commands fetch what they read."""
    monkeypatch.setenv("WDSDIST_CACHE_DIR", str(tmp_path / "cache"))


def run(*words: object) -> Result:
    return CliRunner().invoke(_wdsdist, [str(word) for word in words])


def test_a_command_says_what_it_waits_for_while_a_store_does_not_answer(store: MemoryStore) -> None:
    store.plant(Fault("train/index.json", "stall"))
    soon = {"first_warning": 0.02, "next_warning": 0.02}
    with use_policy(**soon), heard(lambda _: store.heal()) as lines:
        assert not run("info", f"{store.url}/train").exit_code
    assert lines[0].startswith(f"still waiting for {store.url}/train/index.json (")


def requested(store: MemoryStore) -> tuple[list[str], list[int]]:
    """Return the names of the files that were read whole, without index.json, and the sizes of the ranges."""
    reads = [one for one in store.requests if one.verb == "read" and not one.path.endswith("index.json")]
    return (
        sorted(one.path.removeprefix("train/") for one in reads if one.stop is None),
        [one.stop - (one.start or 0) for one in reads if one.stop is not None],
    )


def are_of(ranges: list[int], sizes: list[int]) -> bool:
    """Whether ranges were read of so many bytes each, in whole blocks of the cache."""
    return len(ranges) == len(sizes) and all(
        size <= length < size + 2 * 4096 for length, size in zip(ranges, sizes, strict=True)
    )


def test_a_member_is_written_for_the_indexes_and_its_bytes_alone(store: MemoryStore) -> None:
    done = run("cat", f"{store.url}/train", "k025", "jpg")
    assert done.stdout_bytes == photo(25)
    names, ranges = requested(store)
    assert names == [f"shard-{number:06}.tar.wdsindex" for number in range(SHARDS)]
    assert are_of(ranges, [PHOTO])
    assert run("cat", f"{store.url}/train", "k025", "jpg").stdout_bytes == photo(25)
    assert requested(store)[1] == ranges, "it is in the cache"


def test_by_its_number_a_sample_takes_one_index(store: MemoryStore) -> None:
    assert run("cat", f"{store.url}/train", "25", "cls", "--number").stdout_bytes == b"25"
    names, ranges = requested(store)
    assert names == ["shard-000001.tar.wdsindex"]
    assert are_of(ranges, [PHOTO]), "all of a small sample"
    assert "no sample has the number 'k025'" in run("cat", f"{store.url}/train", "k025", "cls", "--number").stderr


def test_samples_are_listed_by_the_indexes_alone(store: MemoryStore) -> None:
    listed = run("ls", "--samples", f"{store.url}/train").stdout.splitlines()
    assert listed[25] == "25\tk025\tshard-000001.tar\tcls (2 B), jpg (97.7 KiB)"
    assert requested(store) == ([f"shard-{number:06}.tar.wdsindex" for number in range(SHARDS)], [])


def test_bytes_that_stay_wrong_are_an_error_that_names_shard_and_sample(store: MemoryStore) -> None:
    store.plant(Fault("train/shard-000001.tar", "wrong-bytes"))
    refused = run("cat", f"{store.url}/train", "k025", "jpg")
    assert refused.exit_code == 2
    assert refused.stdout_bytes == b""
    assert "/shard-000001.tar does not hold what its index says: the data of member 'jpg' of sample 'k025'" in (
        refused.stderr
    )


def test_a_store_that_does_not_list_is_read_by_the_names_that_are_given(
    store: MemoryStore, folder: Path, tmp_path: Path
) -> None:
    wdsdist.open(folder).add_columns(fields=["cls"], output=tmp_path / "columns")
    store.files["train/columns/cls.parquet"] = (tmp_path / "columns" / "cls.parquet").read_bytes()
    store.plant(Fault("*", "error", verb="list", error=PermissionError("refused on purpose")))
    assert run("show", f"{store.url}/train", "--where", '"cls" = 7', "-n", 1).stdout.startswith("7\tk007\t")
    assert run("show", f"{store.url}/train", "--where", '"none" = 7', "-n", 1).stderr.count("has no column 'none'") == 1
    shown = run("info", f"{store.url}/train")
    assert "samples:     63" in shown.stdout


def test_the_columns_of_a_store_are_listed_once(store: MemoryStore) -> None:
    assert not run("info", f"{store.url}/train").exit_code
    assert len(store.paths("list")) == 1
