"""The commands that fill, show and clean the cache of this node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import wdsdist
from tests.support.memory_store import Fault, MemoryStore
from tests.support.sources import Shards
from tests.support.tars import write_shards
from wdsdist._util.host import shard_cache_dir
from wdsdist.batching import LengthGroups
from wdsdist.cache import folder as cache_folder
from wdsdist.cli import _wdsdist
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.loader import StreamingDataLoader
from wdsdist.sampling.shard_schedule import copy_sizes

SHARDS, SAMPLES = 8, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, SHARDS, SAMPLES)
    wdsdist.index(folder)
    return folder


@pytest.fixture
def store(folder: Path) -> Iterator[MemoryStore]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with MemoryStore({f"{name}/{file}": content for name in ("a", "b") for file, content in files.items()}) as store:
        yield store


@pytest.fixture
def cached(store: MemoryStore, tmp_path: Path) -> tuple[Shards, Shards]:
    """A cache with two shards of one data set and one of another."""
    one, other = (Shards(wdsdist.open(f"{store.url}/{name}"), tmp_path / "cache") for name in ("a", "b"))
    for shards, number in ((one, 0), (one, 1), (other, 0)):
        shards.shard(number)
        shards.source.release()
    return one, other


def run(*words: object) -> Result:
    return CliRunner().invoke(_wdsdist, ["cache", *map(str, words)])


def fetched(store: MemoryStore) -> list[str]:
    return [path for path in store.paths("read") if path.endswith(".tar")]


def copies(store: MemoryStore, number: float) -> int:
    """Return the bytes that so many copies of a shard take in the cache, with their indexes."""
    size = len(store.files["a/00.tar"])
    return int(number * copy_sizes(np.array([SAMPLES]), np.array([size]))[0])


def kept(folder: Path) -> dict[str, int]:
    found = json.loads(run("info", "--cache-dir", folder, "--json").stdout)
    return {one["source"].rpartition("/")[2]: one["shards"] for one in found}


def test_what_is_kept_is_shown_by_data_set(
    cached: tuple[Shards, Shards], store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = cached[0].shard(1)
    lines = run("info", "--cache-dir", tmp_path / "cache").stdout.splitlines()
    assert held.content
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines[:-1]}
    assert rows.keys() == {f"{store.url}/a", f"{store.url}/b"}
    assert rows[f"{store.url}/a"][0] == "2 shards"
    assert rows[f"{store.url}/a"][2].endswith(", 1 in use")
    assert "in use" not in rows[f"{store.url}/b"][2]
    assert lines[-1].startswith("kept: 3 shards, ")
    # Without a folder: the default one, and the folders that live processes of this user have open.
    assert tmp_path / "cache" in cache_folder.folders_in_use()
    monkeypatch.setattr(cache_folder, "folders_in_use", lambda: {tmp_path / "cache"})
    (other,) = {*run("info").stdout.splitlines()} - {*lines}
    assert other == f"kept: 0 shards, 0 B, in {shard_cache_dir(None)}"


def test_a_data_set_is_removed_but_not_what_is_read_or_needed(
    cached: tuple[Shards, Shards], store: MemoryStore, tmp_path: Path
) -> None:
    folder, (one, other) = tmp_path / "cache", cached
    job = Shards(one.manifest, folder)
    job.cache.catalog.expect("job", 0, {one.key(1): 5})
    one.shard(0)
    done = run("clean", f"{store.url}/a", "--cache-dir", folder)
    assert done.stdout == "removed: 0 shards, 0 B; kept, because live jobs use them: 2 shards\n"
    one.source.release()
    done = run("clean", f"{store.url}/a", "--cache-dir", folder)
    assert done.stdout.startswith("removed: 1 shard, ")
    assert done.stdout.endswith("; kept, because live jobs use them: 1 shard\n")
    assert kept(folder) == {"a": 1, "b": 1}
    job.cache.catalog.expect("job", 0, {})
    run("clean", f"{store.url}/a", "--cache-dir", folder)
    assert kept(folder) == {"b": 1}
    assert other.path(0).exists()


@pytest.mark.usefixtures("cached")
def test_nothing_is_removed_unless_it_is_said_what(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    for words, message in (
        ([], "which copies are to be removed?"),
        (["s3://other"], "the cache holds nothing of s3://other"),
    ):
        refused = run("clean", *words, "--cache-dir", folder)
        assert refused.exit_code == 2
        assert message in refused.stderr
    assert kept(folder) == {"a": 2, "b": 1}
    assert run("clean", "--all", "--cache-dir", folder).stdout.startswith("removed: 3 shards, ")
    assert kept(folder) == {}


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert run("info", "--cache-dir", none).stdout == f"kept: 0 shards, 0 B, in {none}\n"
    assert not (tmp_path / "none").exists()


def test_warm_fetches_what_the_ranks_of_the_node_need_first(store: MemoryStore, tmp_path: Path) -> None:
    words = ["--ranks", 4, "--ranks-per-node", 2, "--seed", 3, "--batch-size", 4, "--cache-dir", tmp_path / "cache"]
    done = run("warm", f"{store.url}/a", *words, "--node", 1, "--bytes", copies(store, 2.6))
    assert done.exit_code == 0, done.output
    first = fetched(store)
    assert done.stdout.startswith(f"warm: {len(first)} shards, ")
    of_node: set[str] = set()
    for rank in (2, 3):
        data = StreamingDataset(f"{store.url}/a", num_replicas=4, rank=rank, seed=3, batch_size=4)
        (_, batch) = next(data.plan().batches(rank=rank))
        shards = batch.shards
        of_node |= {f"a/{shard:02}.tar" for shard in shards.tolist()}
    assert set(first) <= of_node
    assert len(first) == 2
    again = run("warm", f"{store.url}/a", *words, "--node", 1, "--bytes", copies(store, 2.6))
    assert again.stdout.endswith("; 0 B were fetched now\n")
    assert fetched(store) == first


@pytest.mark.parametrize("seed", range(3))
def test_warm_fetches_remote_shards_in_the_order_in_which_training_reads_them(
    store: MemoryStore, tmp_path: Path, seed: int
) -> None:
    words = ["--seed", seed, "--batch-size", 1, "--shuffle-window", 4 * SAMPLES, "--cache-dir", tmp_path / "cache"]
    done = run("warm", f"{store.url}/a", *words, "--bytes", copies(store, 2.6))
    assert done.exit_code == 0, done.output
    data = StreamingDataset(f"{store.url}/a", seed=seed, batch_size=1, shuffle_window=4 * SAMPLES)
    order = data.order_config.order(data.order_config.settings(1), 0).make()
    read = dict.fromkeys(order.locate(np.arange(len(data)))[0].tolist())
    assert len(fetched(store)) == 2
    assert sorted(fetched(store)) == sorted(f"a/{shard:02}.tar" for shard in list(read)[:2])


def test_warm_fetches_what_planned_batches_read_first(store: MemoryStore, tmp_path: Path) -> None:
    words = ["--batches", "LengthGroups(2, by='txt.bytes')", "--cache-dir", tmp_path / "cache"]
    data = StreamingDataset(f"{store.url}/a", cache_dir=tmp_path / "another", num_replicas=1, rank=0)
    loader = StreamingDataLoader(data, batches=LengthGroups(2, by="txt.bytes"), num_workers=0)
    batches = [{f"a/0{key[5]}.tar" for key in batch["__key__"]} for batch in loader]
    store.requests.clear()
    done = run("warm", f"{store.url}/a", *words, "--bytes", copies(store, 3.9))
    assert done.exit_code == 0, done.output
    assert len(fetched(store)) == 3
    assert set(fetched(store)) <= batches[0] | batches[1] | batches[2]
    assert batches[0] <= set(fetched(store))


def test_warm_says_why_it_leaves_local_shards_alone(folder: Path, tmp_path: Path) -> None:
    done = run("warm", folder, "--cache-dir", tmp_path / "cache")
    assert done.exit_code == 0
    assert done.stdout.startswith("nothing to fetch: these shards are local")
    assert done.stdout.endswith("pass --stage\n")


def test_warm_stays_within_the_limit(store: MemoryStore, tmp_path: Path) -> None:
    limit = copies(store, 4)
    words = ["--cache-dir", tmp_path / "cache", "--cache-limit", limit, "--bytes", "1GiB", "--shuffle-window", 10]
    done = run("warm", f"{store.url}/a", *words)
    assert done.exit_code == 0, done.output
    assert 0 < len(fetched(store)) <= 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--cache-dir CACHE", "does not exist"),
        ("--batch-size 100", "the data set has 80 samples, fewer than one global batch of 100"),
        ("--ranks 4 --ranks-per-node 2 --node 2", "--node is 2: it must be between 0 and 1"),
    ],
)
def test_what_cannot_be_warmed_is_refused(store: MemoryStore, tmp_path: Path, words: str, message: str) -> None:
    store.plant(Fault("a/*.tar", "not-found"))
    refused = run("warm", f"{store.url}/a", *words.replace("CACHE", f"{tmp_path}/cache").split())
    assert (refused.exit_code, message in refused.stderr) == (2, True), refused.stderr
