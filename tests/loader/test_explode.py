"""Training over the parts of records: each once on any world, and exact resumes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from tests.support.tars import npy_bytes, plain_tar
from wdsdist import BadSample, StreamingDataLoader, StreamingDataset
<<<<<<< HEAD
from wdsdist.batching import PackedRows, TokenBudget
from wdsdist.errors import ArgumentError, SampleError, StateError
from wdsdist.shards import quarantine
=======
from wdsdist.errors import ArgumentError, StateError
>>>>>>> main
from wdsdist.shards.manifest import Manifest
from wdsdist.transforms import parted, seeded, stretch

SIZES = [[3, 0, 12, 1], [], [5, 5, 24, 2, 9], [7], [1, 1, 4]]
"""Parts of each record, which are bytes of its ``txt``, in each shard."""
PARTS = Counter(
    (f"s{shard}k{record}", part, size)
    for shard, sizes in enumerate(SIZES)
    for record, size in enumerate(sizes)
    for part in range(size)
)
RECORDS = sum(size > 0 for sizes in SIZES for size in sizes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Records with as many bytes of ``txt`` as they have parts, and an array whose item ``i`` is part ``i``."""
    folder = tmp_path_factory.mktemp("records")
    for shard, sizes in enumerate(SIZES):
        members = (
            (f"s{shard}k{record}.{name}", content)
            for record, size in enumerate(sizes)
            for name, content in (("npy", npy_bytes(np.arange(size))), ("txt", bytes(range(97, 97 + size))))
        )
        (folder / f"{shard}.tar").write_bytes(plain_tar(members))
    return wdsdist.index(folder)


@parted
def cut(sample: dict[str, Any], part: int, parts: int) -> dict[str, Any]:
    """Take the part out of both members; the array is changed in place first, which no other part may see."""
    sample["npy"] += 100
    kept = {name: sample[name] for name in ("__key__", "__part__", "__parts__", "__padding__") if name in sample}
    return {**kept, **{name: sample[name][stretch(len(sample[name]), part, parts)] for name in ("npy", "txt")}}


def dataset(data: Any, **options: Any) -> StreamingDataset:
    given = {"decode": True, "transform": cut, "num_replicas": 1, "rank": 0, "shuffle_window": 16, **options}
    return StreamingDataset(data, **given)


def loader(data: Any, batch_size: int = 4, workers: int = 0, how: str | None = None, **options: Any) -> Any:
    return StreamingDataLoader(
        dataset(data, **options), batch_size, num_workers=workers, drop_last=False, multiprocessing_context=how
    )


def parts(batches: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Return key, part and number of parts of each sample, after a check that it is what they say."""
    found = []
    for batch in batches:
        columns = zip(batch["__key__"], batch["__part__"].tolist(), batch["__parts__"].tolist(), strict=True)
        for (key, part, total), text, array in zip(columns, batch["txt"], batch["npy"].tolist(), strict=True):
            assert (text, array) == (chr(97 + part), [100 + part]), f"part {part} of {total} of {key}"
            found.append((key, part, total))
    return found


@fewer(2)
@given(ranks=st.integers(1, 8), lanes=st.integers(1, 8), batch_size=st.integers(1, 9), epoch=st.integers(0, 3))
def test_an_epoch_has_each_part_once_on_any_world(
    data: Manifest, ranks: int, lanes: int, batch_size: int, epoch: int
) -> None:
    view = data.explode("txt.bytes")
    played: Counter[tuple[str, int, int]] = Counter()
    lengths = set()
    for rank in range(ranks):
        one = loader(view, batch_size, num_replicas=ranks, rank=rank, num_canonical_replicas=lanes)
        one.set_epoch(epoch)
        batches = list(one)
        lengths.add((len(batches), len(one)))
        played.update(parts(batches))
    assert len(lengths) == 1, "ranks have different numbers of batches"
    assert set(played) == set(PARTS)
    assert played.total() == -(-PARTS.total() // ranks) * ranks  # padded as DistributedSampler pads


@fewer(2)
@given(worlds=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
def test_a_chain_of_resumes_on_other_worlds_plays_each_part_once(
    data: Manifest, worlds: list[tuple[int, int, int]]
) -> None:
    view, state, played = data.explode("txt.bytes"), None, Counter[tuple[str, int, int]]()
    for turn, (ranks, batch_size, steps) in enumerate([*worlds, (1, 5, 1000)]):
        states = []
        for rank in range(ranks):
            one = loader(view, batch_size, num_replicas=ranks, rank=rank, num_canonical_replicas=2)
            if state is not None:
                one.load_state_dict(state)
            if turn and state is not None and state["finished"]:
                break
            played.update(parts(itertools.islice(iter(one), steps)))
            states.append(one.state_dict())
        state = states[0] if states else state
        assert all(other == states[0] for other in states)
    assert set(played) == set(PARTS)
    most = max(ranks for ranks, *_ in worlds)
    assert played.total() < PARTS.total() + most, "more is repeated than one world's padding"


@pytest.mark.parametrize(("workers", "how"), [(2, "fork"), pytest.param(1, "forkserver", marks=pytest.mark.slow)])
def test_workers_give_what_the_main_process_gives(data: Manifest, tmp_path: Path, workers: int, how: str) -> None:
    view = data.explode("txt.bytes")
    saved = wdsdist.open(view.save(tmp_path / "view"))
    alone = parts(loader(view))
    assert parts(loader(saved, workers=workers, how=how)) == parts(loader(view, workers=workers, how=how)) == alone
    assert saved.fingerprint == view.fingerprint


def test_one_part_by_its_number_and_the_marks_of_padding(data: Manifest) -> None:
    one = dataset(data.explode("txt.bytes"), mark_padding=True)
    every = list(PARTS)
    found = [one[number] for number in range(-1, len(every))]
    assert [(sample["__key__"], sample["__part__"], sample["__parts__"]) for sample in found] == [every[-1], *every]
    ranks = [loader(data.explode("txt.bytes"), mark_padding=True, num_replicas=7, rank=rank) for rank in range(7)]
    assert Counter(parts(wdsdist.unpadded(batch) for rank in ranks for batch in rank)) == PARTS


def test_each_part_has_a_seed_of_its_own_that_no_world_changes(data: Manifest) -> None:
    @seeded
    @parted
    def drawn(content: bytes, seed: int, part: int = 0, parts: int = 1) -> tuple[int, int, int]:
        return seed, part, parts

    view = data.explode("txt.bytes")

    def seeds(ranks: int) -> dict[tuple[str, int], int]:
        found = {}
        for rank in range(ranks):
            decode = {"txt": drawn}
            one = dataset(view, fields=("txt",), decode=decode, transform=None, num_replicas=ranks, rank=rank)
            for sample in one:
                seed, part, total = sample["txt"]
                assert (part, total) == (sample["__part__"], sample["__parts__"])
                found[sample["__key__"], part] = seed
        return found

    alone = seeds(1)
    assert len(set(alone.values())) == len(alone) == PARTS.total()
    assert seeds(3) == alone
    whole = StreamingDataset(data, fields=("txt",), decode={"txt": drawn}, num_replicas=1, rank=0)
    assert {sample["txt"][1:] for sample in whole} == {(0, 1)}
    assert "__part__" not in whole[0]


<<<<<<< HEAD
def test_what_is_decoded_for_a_part_is_not_shared_with_its_neighbours(data: Manifest) -> None:
    @parted
    def letter(content: bytes, part: int, parts: int) -> str:
        return content.decode()[stretch(len(content), part, parts)]

    options = {"fields": ("txt",), "decode": {"txt": letter}, "transform": None}
    found = dataset(data.explode("txt.bytes"), **options)
    assert Counter((one["__key__"], one["txt"]) for one in found) == Counter(
        (key, chr(97 + part)) for key, part, _ in PARTS
    )


def test_a_foreign_loader_plays_each_part_once(data: Manifest) -> None:
    found = DataLoader(dataset(data.explode("txt.bytes")), batch_size=None, num_workers=0)
    assert Counter((one["__key__"], one["__part__"], one["__parts__"]) for one in found) == PARTS


# Bad samples


def fail_on(key: str, *bad: int) -> Callable[..., Any]:
=======
def test_a_mix_of_parts_and_whole_samples_has_the_numbers_of_both(data: Manifest) -> None:
    sources = {"parts": data.explode("txt.bytes"), "whole": data.select(keys=["s2k0"])}
    both = wdsdist.concat(sources, decode=True, transform=cut, num_replicas=1, rank=0)
    found = Counter((sample["__key__"], sample["__part__"], sample["__parts__"]) for sample in both)
    assert found == PARTS + Counter({("s2k0", 0, 1): 1})


def test_a_bad_part_is_replaced_by_one_of_another_record(data: Manifest) -> None:
>>>>>>> main
    def transform(sample: dict[str, Any]) -> Any:
        if sample["__key__"] == "s2k2" and sample["__part__"] in (3, 4):
            raise BadSample("a clip without a picture")
        return cut(sample, sample["__part__"], sample["__parts__"])

    found = Counter(parts(loader(data.explode("txt.bytes"), transform=transform, on_error="replace")))
    assert found.total() == PARTS.total()
    assert {key for key in PARTS if key not in found} == {("s2k2", 3, 24), ("s2k2", 4, 24)}


<<<<<<< HEAD
def test_a_bad_part_is_replaced_by_one_of_another_record_and_listed_once(data: Manifest, tmp_path: Path) -> None:
    bad = {("s2k2", part, 24) for part in (3, 4, 23)}
    path = tmp_path / "bad.jsonl"
    options = {"transform": fail_on("s2k2", 3, 4, 23), "on_error": "replace", "quarantine": path}
    view = data.explode("txt.bytes")
    alone = parts(loader(view, **options))
    assert set(alone) == set(PARTS) - bad
    assert len(alone) == PARTS.total()
    assert len(Counter(alone) - PARTS) > 1, "bad parts of a record have substitutes of their own"
    assert Counter(key for key, *_ in alone)["s2k2"] == 21, "no other part of the record takes the place"
    ranks = [loader(view, **options, num_replicas=3, rank=rank, num_canonical_replicas=1) for rank in range(3)]
    again = Counter(part for rank in ranks for part in parts(rank))
    assert (again.total(), Counter(alone) - again) == (PARTS.total() + 1, Counter()), "one is padding"
    (entry,) = quarantine.read(path)
    assert (entry.key, entry.shard) == ("s2k2", "2.tar")
    assert "a clip without a picture (in part" in entry.reason
    assert data.select(exclude=path).explode("txt.bytes").num_samples == PARTS.total() - 24


def test_a_record_that_does_not_decode_is_replaced_part_by_part(tmp_path: Path) -> None:
    texts = [b"abc", b"\xff\xff\xff\xff", b"defgh"]
    (tmp_path / "0.tar").write_bytes(plain_tar((f"k{number}.txt", text) for number, text in enumerate(texts)))
    view = wdsdist.index(tmp_path).explode("txt.bytes")
    options = {"decode": True, "num_replicas": 1, "rank": 0}
    found = list(StreamingDataset(view, on_error="replace", **options))
    assert len(found) == 12
    assert {sample["__key__"] for sample in found} == {"k0", "k2"}
    with pytest.raises(SampleError, match=r"k1\.txt"):
        list(StreamingDataset(view, **options))


# Mixes and planned batches


def test_a_mix_of_parts_and_whole_samples_has_the_numbers_of_both(data: Manifest) -> None:
    sources = {"parts": (data.explode("txt.bytes"), 0.5), "whole": (data.select(keys=["s2k0"]), 0.5)}
    mixed = wdsdist.mix(
        sources, decode=True, transform=cut, samples_per_epoch=2 * PARTS.total(), num_replicas=1, rank=0
    )
    found = list(mixed)
    assert Counter((one["__key__"], one["__part__"], one["__parts__"]) for one in found) == PARTS + Counter(
        {("s2k0", 0, 1): PARTS.total()}
    )
    exploded = {"a": data.explode("txt.bytes"), "b": data.select(keys=["s2k0"]).explode("txt.bytes")}
    both = wdsdist.concat(exploded, num_replicas=1, rank=0)
    assert both.num_samples == PARTS.total() + 5
    assert Counter(one["__dataset__"] for one in both) == {"a": PARTS.total(), "b": 5}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Documents of raw int32, whose tokens are all different."""
    sizes = np.random.default_rng(0).integers(1, 90, 40)
    starts = 1 + np.cumsum(sizes) - sizes
    ranges = zip(starts, starts + sizes, strict=True)
    samples = ({"ids": np.arange(start, stop, dtype="<i4").tobytes()} for start, stop in ranges)
    return wdsdist.pack(samples, tmp_path_factory.mktemp("tokens") / "shards", shard_samples=15)


@parted
def chunk(sample: dict[str, Any], part: int, parts: int) -> dict[str, Any]:
    return {**sample, "ids": sample["ids"][stretch(len(sample["ids"]), part, parts)]}


def listed(samples: list[dict[str, Any]]) -> list[list[int]]:
    return [np.asarray(one["ids"]).tolist() for one in samples]


def test_planned_batches_count_the_tokens_of_each_part(
    tokens: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # counts that are kept are those of this test
    every = sorted(token for document in StreamingDataset(tokens, decode={"ids": np.int32}, num_replicas=1, rank=0)
                   for token in document["ids"].tolist())  # fmt: skip
    view = tokens.explode("ids.bytes", per=4 * 16)
    assert view.num_samples == sum(-(-size // 64) for size in tokens.column("ids.bytes").tolist())
    found, lengths = [], set()
    for rank in range(3):
        one = StreamingDataset(view, decode={"ids": np.int32}, transform=chunk, num_replicas=3, rank=rank)
        batches = list(
            StreamingDataLoader(one, batches=TokenBudget(48, length="ids.tokens"), collate_fn=listed, num_workers=0,
                                drop_last=False)
        )  # fmt: skip
        lengths.add(len(batches))
        assert all(len(part) <= 16 and part for batch in batches for part in batch)
        assert all(sum(map(len, batch)) <= 48 for batch in batches)
        found += [token for batch in batches for part in batch for token in part]
    assert len(lengths) == 1
    assert sorted(set(found)) == every
    assert len(found) - len(every) < 3 * 16
    packed = StreamingDataset(view, decode={"ids": np.int32}, transform=chunk, num_replicas=1, rank=0)
    rows = StreamingDataLoader(
        packed, batches=PackedRows(4, tokens=64, length="ids.tokens"), num_workers=0, drop_last=False
    )
    values = [token for batch in rows for row in batch["ids"].tolist() for token in row if token]
    assert sorted(values) == every


# States, and what is refused


def test_a_state_of_other_parts_is_refused(data: Manifest, tmp_path: Path) -> None:
    views = {
        "spread": data.explode("txt.bytes"),
        "other": data.explode("txt.bytes", per=2),
        "first": data.explode("txt.bytes").select('"__part__" = 0'),
        "second": data.explode("txt.bytes").select('"__part__" < 1 AND "__parts__" > 0'),
    }
    saved = {name: wdsdist.open(view.save(tmp_path / name)) for name, view in views.items()}
    state = json.loads(json.dumps(loader(saved["spread"]).state_dict()))
    loader(views["spread"]).load_state_dict(state)
    differ = PARTS.total() - RECORDS
    with pytest.raises(StateError, match=f"so the views differ in {differ} samples"):
        loader(saved["first"]).load_state_dict(state)
    with pytest.raises(StateError, match="so the views differ in"):
        loader(saved["other"]).load_state_dict(state)
    loader(saved["second"]).load_state_dict(loader(saved["first"]).state_dict())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"by": "txt.byte"}, "did you mean 'txt.bytes'"),
    ],
)
def test_parts_that_cannot_be_planned_are_refused(data: Manifest, options: dict[str, Any], reason: str) -> None:
    order = options.pop("order", "shard")
    with pytest.raises(ArgumentError, match=reason):
        dataset(data.explode(**options), order=order)
=======
def test_a_state_of_other_parts_is_refused(data: Manifest) -> None:
    state = loader(data.explode("txt.bytes")).state_dict()
    with pytest.raises(StateError, match="fingerprint is"):
        loader(data.explode(2)).load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"did you mean 'txt\.bytes'"):
        data.explode("txt.byte")
>>>>>>> main
