"""Planned batches through the loader: exact on any world, with any workers, across resumes, and clear when refused."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist
from tests.support.loaders import keys
from tests.support.memory_store import MemoryStore
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.batching import Buckets, LengthGroups, PackedRows, TokenBudget, batcher
from wdsdist.batching.batcher import PlannedBatcher
from wdsdist.errors import ArgumentError, StateError
from wdsdist.shards.manifest import Manifest

DOCUMENTS = 400
SIZES = np.random.default_rng(0).lognormal(3, 1, DOCUMENTS).astype(np.int64).clip(1, 200)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Documents in shards of 60: ``ids`` are raw int32, all the number of the document; ``cls`` is a category."""
    samples = (
        {"__key__": f"d{number:03}", "ids": np.full(size, number, np.int32).tobytes(), "cls": number % 3}
        for number, size in enumerate(SIZES)
    )
    return wdsdist.pack(samples, tmp_path_factory.mktemp("documents") / "shards", shard_samples=60)


@pytest.fixture(autouse=True)
def _own_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Counts that are kept are those of one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def listed(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"__key__": [one["__key__"] for one in samples], "sizes": [len(one["ids"]) for one in samples]}


def loader(
    data: Any, rank: int = 0, ranks: int = 1, workers: int = 0, *, steps: int = 4, **more: Any
) -> StreamingDataLoader:
    """Return a loader with blocks of few steps, so that an epoch has several."""
    dataset = StreamingDataset(
        data, decode={"ids?": np.int32}, num_replicas=ranks, rank=rank, shuffle_window=100, num_canonical_replicas=2
    )
    if not isinstance(more.get("batches"), PackedRows):
        more = {"collate_fn": listed, **more}
    one = StreamingDataLoader(dataset, num_workers=workers, **more)
    state = one.state_dict()
    if "block_samples" in state:
        one.load_state_dict({**state, "block_samples": state["block_samples"] // batcher.BLOCK_STEPS * steps})
    return one


def tokens(budget: int = 512, **more: Any) -> dict[str, Any]:
    return {"batches": TokenBudget(budget, length="ids.tokens", **more)}


def rows(number: int, length: int, **more: Any) -> dict[str, Any]:
    return {"batches": PackedRows(number, tokens=length, length="ids.tokens", **more)}


TOKENS = tokens()
GROUPS: dict[str, Any] = {"batches": LengthGroups(8, by="ids.tokens")}


BUCKETS: dict[str, Any] = {"batches": Buckets(8, by="cls.bytes")}


@pytest.mark.parametrize(
    ("way", "how"), [*((way, "fork") for way in (TOKENS, GROUPS, BUCKETS)), (TOKENS, "forkserver")]
)
def test_workers_and_epochs_change_what_they_should_and_nothing_else(
    data: Manifest, way: dict[str, Any], how: str
) -> None:
    alone, with_workers = loader(data, **way), loader(data, workers=2, multiprocessing_context=how, **way)
    epochs = []
    for epoch in range(2):
        alone.set_epoch(epoch)
        with_workers.set_epoch(epoch)
        batches = [batch["__key__"] for batch in alone]
        assert [batch["__key__"] for batch in with_workers] == batches
        epochs.append(batches)
    assert epochs[0] != epochs[1]


def test_workers_that_share_the_plan_of_a_large_block_make_the_batches_of_one_that_plans_alone(
    data: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = []
    for workers, block in ((0, 400), (0, 1 << 18), (2, 1 << 18)):
        one = loader(data, workers=workers, **TOKENS)
        one.load_state_dict({**one.state_dict(), "block_samples": block})
        found.append([batch["__key__"] for batch in one])
        # Workers may be at the plan of the next epoch already.
        assert any(tmp_path.glob("*/kept/*.outcome")) == (block > 400)
    assert found[0] == found[1] == found[2]


def test_a_chain_of_resumes_on_other_worlds_has_each_sample_once(data: Manifest) -> None:
    rng = np.random.default_rng(7)
    played: Counter[str] = Counter()
    state: dict[str, Any] | None = None
    worlds = [1, 3, 2, 4, 1, 2, 1, 3, 2, 1]
    for hop, ranks in enumerate(worlds):
        budget = int(rng.integers(300, 700))
        loaders = [loader(data, rank, ranks, **tokens(budget)) for rank in range(ranks)]
        for one in loaders:
            if state is not None:
                one.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(one) for one in loaders]
        for _ in range(1 if hop < len(worlds) - 1 else 10**6):
            batches = [next(iterator, None) for iterator in iterators]
            assert len({batch is None for batch in batches}) == 1
            if batches[0] is None:
                break
            played.update(keys(batches))
        states = [one.state_dict() for one in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        assert len(json.dumps(state)) < 2048
    assert played == Counter(f"d{number:03}" for number in range(DOCUMENTS))
    assert state is not None
    assert (state["epoch"], state["consumed"], state["finished"]) == (1, 0, True)


@pytest.mark.parametrize("way", [TOKENS, rows(2, 128)])
def test_a_run_that_stops_after_each_batch_has_the_batches_of_one_that_never_stops(
    data: Manifest, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [batch["__key__"] for batch in loader(data, 1, 2, steps=20, **way)]
    # Who says what rank it is may be any process, such as one that plays both ranks of a run.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    state, played = loader(data, 1, 2, steps=20, **way).state_dict(), []
    for _ in whole:
        one = loader(data, 1, 2, **way)
        one.load_state_dict(state)
        assert len(one) == len(whole)
        played.append(next(iter(one))["__key__"])
        state = one.state_dict()
        assert state["segments"].count(";") == 0
    assert played == whole
    assert state["epoch"] == 1


def test_an_epoch_whose_last_block_has_too_little_for_all_ranks_is_over_before_it(data: Manifest) -> None:
    def of(rank: int, ranks: int, state: dict[str, Any] | None = None) -> StreamingDataLoader:
        one = loader(data, rank, ranks, **TOKENS)
        one.load_state_dict(state or {**one.state_dict(), "block_samples": DOCUMENTS // 3})  # 3 blocks, and one sample
        return one

    one = of(0, 3)
    states = [one.state_dict() for _ in one]
    assert [state["finished"] for state in states] == [False] * (len(states) - 1) + [True]
    assert (states[-1]["epoch"], one.state_dict()) == (1, states[-1])
    alone = of(0, 1)
    inside = next(state for state in (alone.state_dict() for _ in alone) if state["consumed"] == DOCUMENTS - 1)
    assert not inside["finished"]
    resumed = of(0, 3, inside)
    assert len(list(resumed)) == resumed.planned_length(1)  # nothing is left for three ranks


def test_the_length_behind_the_end_of_an_epoch_is_that_of_the_next(data: Manifest) -> None:
    one, other = loader(data, **TOKENS), loader(data, **TOKENS)
    lengths = [one.planned_length(epoch) for epoch in range(9)]
    epoch = next(epoch for epoch in range(8) if lengths[epoch] != lengths[epoch + 1])
    for played in range(epoch + 1):
        assert len(list(one)) == len(one) == lengths[played]
    other.load_state_dict(one.state_dict())
    assert len(other) == lengths[epoch + 1]
    other.set_epoch(epoch)
    assert len(other) == lengths[epoch]


@pytest.mark.parametrize("way", [TOKENS, GROUPS, rows(64, 512, long="truncate")])
def test_fewer_samples_than_ranks_are_refused_where_all_would_be_dropped(data: Manifest, way: dict[str, Any]) -> None:
    few = data.select(keys=["d000", "d001"])
    with pytest.raises(ArgumentError, match=r"2 samples, fewer than there are ranks \(3\), and drop_last=True"):
        next(iter(loader(few, ranks=3, **way)))
    assert len(list(loader(few, ranks=3, drop_last=False, **way))) == 1


def test_samples_over_the_budget_are_refused_dropped_or_alone(data: Manifest) -> None:
    longest = int(SIZES.argmax())
    over = int((SIZES > 150).sum())
    said = "1 sample is" if over == 1 else f"{over} samples are"
    for ask in (len, list):
        with pytest.raises(ArgumentError, match=rf"{said} longer than tokens=150.*'d{longest:03}'.*oversize"):
            ask(loader(data, **tokens(150)))
    dropped = keys(loader(data, **tokens(150, oversize="drop")))
    assert Counter(dropped) == Counter(f"d{number:03}" for number in range(DOCUMENTS) if SIZES[number] <= 150)
    alone = list(loader(data, **tokens(150, oversize="alone")))
    assert Counter(keys(alone)) == Counter(f"d{number:03}" for number in range(DOCUMENTS))
    assert all(sum(batch["sizes"]) <= 150 or len(batch["sizes"]) == 1 for batch in alone)


def test_a_state_of_other_batches_is_refused_inside_an_epoch_only(data: Manifest) -> None:
    one = loader(data, **TOKENS)
    iterator = iter(one)
    next(iterator)
    plain = loader(data, batch_size=8)
    with pytest.raises(StateError, match="inside an epoch of batches by other rules"):
        plain.load_state_dict(one.state_dict())
    begun = loader(data, batch_size=8)
    next(iter(begun))
    with pytest.raises(StateError, match="inside an epoch of batches by other rules"):
        loader(data, **TOKENS).load_state_dict(begun.state_dict())
    for _ in iterator:
        pass
    plain.load_state_dict(one.state_dict())
    assert (plain.state_dict()["epoch"], plain.state_dict()["finished"]) == (1, True)


@pytest.mark.parametrize("other", [tokens(cost="quadratic"), tokens(oversize="alone"), {**TOKENS, "drop_last": False}])
def test_a_state_inside_a_block_that_was_dealt_in_another_way_is_refused(data: Manifest, other: dict[str, Any]) -> None:
    one, then = loader(data, **TOKENS), loader(data, **other)
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    assert state["segments"]
    with pytest.raises(StateError, match="dealt with cost=linear, oversize=error, drop_last=True, and here"):
        then.load_state_dict(state)
    while one.state_dict()["segments"]:
        next(iterator)
    then.load_state_dict(one.state_dict())
    assert Counter(keys(iterator)) == Counter(keys(then))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: TokenBudget(0, length="ids.tokens"), "tokens is 0"),
        (lambda: TokenBudget(2**63, length="ids.tokens"), "tokens is .*: it must be between 1 and"),
        (lambda: TokenBudget(5, length=3), "length is 3: it must be the name of a column"),
        (lambda: TokenBudget(5, length="a", oversize="skip"), "oversize is 'skip': it can be 'error', 'drop', 'alone'"),
        (lambda: TokenBudget(5, length="a", cost="cubic"), "cost is 'cubic': it can be 'linear', 'quadratic'"),
        (lambda: TokenBudget(5, length="a", max_samples=0), "max_samples is 0"),
        (lambda: TokenBudget(5, length="a", pad="x"), "pad is 'x': it must be a number"),
        (lambda: LengthGroups(0, by="a"), "size is 0"),
        (lambda: Buckets(8, by=None), "by is None: it must be the name of a column"),
        (lambda: PackedRows(4, tokens=8, length="a", labels="last"), "labels is 'last'"),
        (lambda: PackedRows(4, tokens=8, length="a", long="wrap"), "long is 'wrap'"),
    ],
)
def test_a_value_that_cannot_work_is_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        make()


@pytest.mark.parametrize(
    ("options", "argument", "reason"),
    [
        (
            {"batches": TokenBudget(5, length="no_such")},
            "length",
            "^length is 'no_such': .* no column 'no_such'",
        ),
        ({"batches": PackedRows(5, tokens=8, length="txt.tokens")}, "length", "^length is 'txt.tokens': .* no column"),
        ({"batches": Buckets(5, by="clss.bytes")}, "by", "^by is 'clss.bytes': .* did you mean 'cls.bytes'"),
        ({"batches": {"max_tokens": 8}}, "batches", "batches is .*: it must be a value of wdsdist.batching"),
        ({**rows(4, 8), "collate_fn": list}, "collate_fn", "PackedRows makes the batches itself: leave out collate_fn"),
    ],
)
def test_batches_that_a_loader_cannot_make_are_refused(
    data: Manifest, options: dict[str, Any], argument: str, reason: str
) -> None:
    with pytest.raises(ArgumentError, match=reason) as caught:
        loader(data, **options)
    assert caught.value.argument == argument


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("way", [tokens(pad=-1), {"batches": LengthGroups(8, by="ids.tokens", pad=-1)}])
def test_arrays_are_padded_without_a_collate_fn(data: Manifest, way: dict[str, Any], workers: int) -> None:
    dataset = StreamingDataset(data, decode={"ids": np.int32, "cls?": int}, num_replicas=1, rank=0)
    played: Counter[str] = Counter()
    for batch in StreamingDataLoader(dataset, num_workers=workers, **way):
        played.update(batch["__key__"])
        lengths = batch["ids.length"]
        assert (lengths.dtype, batch["ids"].dtype) == (torch.int64, torch.int32)
        assert batch["ids"].shape == (len(lengths), int(lengths.max()))
        for row, length, key in zip(batch["ids"], lengths.tolist(), batch["__key__"], strict=True):
            number = int(key[1:])
            assert row.tolist() == [number] * int(SIZES[number]) + [-1] * (len(row) - length)
            assert length == SIZES[number]
        assert batch["cls"].shape == lengths.shape
    assert played == Counter(f"d{number:03}" for number in range(DOCUMENTS))


@pytest.mark.parametrize("limited", [False, True])
def test_remote_shards_are_fetched_ahead_and_fit_a_limited_cache(data: Manifest, tmp_path: Path, limited: bool) -> None:
    files = {f"train/{path.name}": path.read_bytes() for path in Path(data.base).iterdir()}
    limit = sum(len(content) for name, content in files.items() if name.endswith(".tar")) * 3 // 4
    with MemoryStore(files, name="tokens") as store:
        dataset = StreamingDataset(
            f"{store.url}/train", decode={"ids": np.int32}, num_replicas=1, rank=0, shuffle_window=60,
            cache_dir=tmp_path / "shards", cache_limit=limit if limited else None,
        )  # fmt: skip
        one = StreamingDataLoader(dataset, num_workers=0, collate_fn=listed, **TOKENS)
        assert Counter(keys(one)) == Counter(f"d{number:03}" for number in range(DOCUMENTS))
        assert one.stats().shards_fetched >= 7


def test_the_lengths_of_all_samples_are_looked_at_once_for_a_loader(
    data: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    whole = PlannedBatcher._lengths_of

    def counted(self: Any, number: int) -> Any:
        looked.append(number)
        return whole(self, number)

    one = loader(data, **TOKENS)
    first = next(iter(one))
    monkeypatch.setattr(PlannedBatcher, "_lengths_of", counted)
    for epoch in (1, 2):
        one.set_epoch(epoch)
        assert next(iter(one)) != first
    assert not looked


def test_a_state_inside_a_block_that_other_values_planned_is_refused(tmp_path: Path) -> None:
    samples = ({"__key__": str(number), "txt": "x"} for number in range(200))
    data = wdsdist.pack(samples, tmp_path / "shards")

    def of_sizes(shift: int) -> StreamingDataLoader:
        rows = (f"{number},{1 + (number * 7 + shift) % 13}\n" for number in range(200))
        (tmp_path / "sizes.csv").write_text("key,size\n" + "".join(rows))
        data.add_columns(join=tmp_path / "sizes.csv", replace=True)
        return loader(wdsdist.open(tmp_path / "shards"), batches=TokenBudget(30, length="size"), collate_fn=list)

    one = of_sizes(0)
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    then = of_sizes(5)
    with pytest.raises(StateError, match=r"planned by other values of 'size'.*put those values back"):
        then.load_state_dict(state)
    then.load_state_dict({**state, "epoch": 1, "segments": "", "consumed": 0})  # between epochs
    put_back = of_sizes(0)
    put_back.load_state_dict(state)
    assert list(put_back) == list(iterator)


def test_a_state_of_more_steps_than_its_block_has_is_damaged(data: Manifest) -> None:
    for segments in ("1,1,512,0,9999", "2,1,512,0,9999"):
        one = loader(data, **TOKENS)
        one.load_state_dict({**one.state_dict(), "segments": segments})
        with pytest.raises(StateError, match="the state is damaged: it names 9,999 steps of block 0, which has"):
            list(one)


def test_a_state_of_an_epoch_before_data_grew_is_counted_on(tmp_path: Path) -> None:
    def samples(first: int) -> Any:
        return ({"__key__": f"d{n}", "ids": np.full(9, n, np.int32).tobytes()} for n in range(first, first + 40))

    wdsdist.pack(samples(0), tmp_path / "data", shard_samples=20)
    options = tokens(40)
    one = loader(tmp_path / "data", **options)
    iterator = iter(one)
    played = [next(iterator), next(iterator)]
    state = one.state_dict()
    wdsdist.pack(samples(40), tmp_path / "data", append=True, shard_samples=20)
    other = loader(tmp_path / "data", **options)
    other.load_state_dict(state)
    iterator = iter(other)
    played.append(next(iterator))
    assert other.state_dict()["consumed"] == 0
    assert Counter(keys([*played, *iterator])) == Counter(f"d{number}" for number in range(40))
    assert len(keys(other)) == 80


class _Spoiled:
    """A transform that finds each fifth sample bad, but for the shortest."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["__key__"][1:]) % 5 == 0 and len(sample["ids"]) > 2:
            raise wdsdist.BadSample("spoiled")
        return sample


@pytest.mark.parametrize("way", [TOKENS, rows(4, 64)])
def test_what_replaces_a_bad_sample_fits_in_its_place(data: Manifest, way: dict[str, Any]) -> None:
    dataset = StreamingDataset(
        data, decode={"ids": np.int32}, num_replicas=1, rank=0, transform=_Spoiled(), on_error="replace"
    )
    one = StreamingDataLoader(dataset, num_workers=0, collate_fn=listed if way is TOKENS else None, **way)
    batches = list(one)
    assert one.stats().bad_samples > DOCUMENTS // 10
    assert not any(int(key[1:]) % 5 == 0 and SIZES[int(key[1:])] > 2 for batch in batches for key in _flat(batch))
    if way is not TOKENS:
        assert sum(int((batch["document_ids"] >= 0).sum()) for batch in batches) == SIZES.sum()
    else:
        assert all(sum(batch["sizes"]) <= 512 for batch in batches)


def _flat(batch: dict[str, Any]) -> list[str]:
    return [key for keys in batch["__key__"] for key in ([keys] if isinstance(keys, str) else keys)]


def test_in_a_bucket_another_sample_of_it_replaces_a_bad_one(data: Manifest) -> None:
    planned = Buckets(8, by="ids.bytes").batcher(data, itemsizes={}, drop_last=True, mark_padding=False)
    numbers = np.arange(60)[::-1]
    assert np.array_equal(planned.misfits(0, numbers, 7) > 0, SIZES[numbers] != SIZES[numbers[7]])


@pytest.mark.parametrize("value", ["inf", "1e300"])
@pytest.mark.parametrize("batches", [LengthGroups(2, by="size"), TokenBudget(99, length="size", oversize="drop")])
def test_numbers_without_a_bound_are_refused(tmp_path: Path, value: str, batches: Any) -> None:
    data = wdsdist.pack(({"__key__": str(number), "txt": "x"} for number in range(4)), tmp_path / "shards")
    (tmp_path / "sizes.csv").write_text(f"key,size\n0,1.5\n1,1.5\n2,{value}\n3,1.5\n")
    data.add_columns(join=tmp_path / "sizes.csv")
    dataset = StreamingDataset(data, num_replicas=1, rank=0)
    with pytest.raises(ArgumentError, match="'size' holds no lengths"):
        next(iter(StreamingDataLoader(dataset, batches=batches, num_workers=0)))
