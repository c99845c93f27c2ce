"""Bad samples under a policy: full batches, the same substitutes everywhere, and a quarantine file of the plant."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import wdsdist
from tests.support import quarantine
from tests.support.loaders import keys
from tests.support.tars import npy_bytes, plain_tar
from wdsdist import BadSample, StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError, SampleError, ShardDamagedError, StorageError

SHARDS, EACH = 4, 60
TOTAL = SHARDS * EACH
FIELDS = ("cls", "npy", "txt")

# One of each sort in a shard of its own and elsewhere.
NO_NUMBER, CUT, EMPTY, MISSING, UNREADABLE = {3, 130}, {64, 65}, {119, 7}, {180, 239}, {12, 66}
BAD = NO_NUMBER | CUT | EMPTY | MISSING | UNREADABLE
KEYS = {f"k{number:03}" for number in range(TOTAL)}
BAD_KEYS = {f"k{number:03}" for number in BAD}


def members_of(number: int) -> list[tuple[str, bytes]]:
    array = npy_bytes(np.full(3, number, np.int32))
    found = {
        "cls": b"seven" if number in NO_NUMBER else b"%d" % number,
        "npy": array[:-5] if number in CUT else array,
        "txt": b"" if number in EMPTY else b"\xff" if number in UNREADABLE else b"text %d" % number,
    }
    return [(f"k{number:03}.{name}", data) for name, data in found.items() if not (name == "txt" and number in MISSING)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    for shard in range(SHARDS):
        numbers = range(shard * EACH, (shard + 1) * EACH)
        (folder / f"{shard}.tar").write_bytes(plain_tar(member for number in numbers for member in members_of(number)))
    wdsdist.index(folder)
    return folder


def reading(folder: Any, **options: Any) -> StreamingDataset:
    given = {"fields": FIELDS, "decode": True, "on_error": "replace", "seed": 5, **options}
    return StreamingDataset(folder, **given)


def batches(dataset: StreamingDataset, *, workers: int = 0, size: int = 8, **options: Any) -> list[dict[str, Any]]:
    return list(StreamingDataLoader(dataset, size, num_workers=workers, **options))


def listed(path: Path) -> list[str]:
    return sorted(entry.key for entry in quarantine.read(path))


def keep(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def refuse_threes(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["__key__"][1:]) % 3 == 0:
        raise BadSample("a multiple of three")
    return sample


def fail_on_tens(sample: dict[str, Any]) -> dict[str, Any] | None:
    number = int(sample["__key__"][1:])
    if number % 10 == 0:
        raise [RuntimeError, KeyError, StopIteration, OSError][number // 10 % 4]("no tens")
    return None if number % 10 == 1 else sample


def test_the_quarantine_is_the_plant_and_no_good_sample_is_lost(planted: Path, tmp_path: Path) -> None:
    found = batches(reading(planted, quarantine=tmp_path / "bad.jsonl"))
    assert listed(tmp_path / "bad.jsonl") == sorted(BAD_KEYS)
    assert set(keys(found)) == KEYS - BAD_KEYS
    assert [len(batch["__key__"]) for batch in found] == [8] * (TOTAL // 8)


@pytest.mark.parametrize("samples", [[2, 3, 5], [3]], ids=["in a batch", "alone"])
def test_a_bad_sample_keeps_no_shard_mapped(planted: Path, samples: list[int]) -> None:
    reader = reading(planted, fields=["cls"]).sample_reader
    zeros = np.zeros(len(samples), np.int64)
    gc.collect()
    gc.disable()
    try:
        reader.batch(zeros, np.array(samples), zeros, None, None, deferred=True)
        assert str(planted) in Path("/proc/self/maps").read_text()
        del reader
        assert str(planted) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


def test_a_line_says_which_field_is_bad_and_why(planted: Path, tmp_path: Path) -> None:
    dataset = reading(planted, quarantine=tmp_path / "bad.jsonl")
    batches(dataset)
    found = {entry.key: entry for entry in quarantine.read(tmp_path / "bad.jsonl")}
    assert {entry.fingerprint for entry in found.values()} == {dataset.manifest.fingerprint}
    assert {int(key[1:]) // EACH for key in found} == {int(entry.shard[0]) for entry in found.values()}
    assert (found["k003"].field, found["k064"].field, found["k119"].field) == ("cls", "npy", "txt")
    assert found["k003"].reason.startswith("5 bytes do not decode as 'cls': ValueError")
    assert found["k119"].reason == "is empty"
    assert found["k180"].reason == "has no member 'txt': it has cls, npy"


def test_a_substitute_is_whole_and_of_the_same_shard(planted: Path) -> None:
    plain = batches(reading(planted, decode=None, fields=("cls",), on_error="raise"))
    for before, after in zip(plain, batches(reading(planted)), strict=True):
        assert after["npy"].shape == (8, 3)
        assert after["cls"].tolist() == after["npy"][:, 0].tolist() == [int(key[1:]) for key in after["__key__"]]
        assert after["txt"] == [f"text {number}" for number in after["cls"].tolist()]
        assert after["__shard__"] == before["__shard__"]
        moved = [(one, other) for one, other in zip(before["__key__"], after["__key__"], strict=True) if one != other]
        assert {one for one, _ in moved} <= BAD_KEYS


@pytest.mark.parametrize("transform", [None, keep, refuse_threes, fail_on_tens])
def test_reruns_and_any_number_of_workers_give_the_same_batches(
    planted: Path, transform: Callable[[Any], Any] | None
) -> None:
    first = keys(batches(reading(planted, transform=transform)))
    for workers in (0, 1, 3):
        assert keys(batches(reading(planted, transform=transform), workers=workers)) == first
    assert len(first) == TOTAL


def test_a_resumed_run_has_the_substitutes_of_one_that_was_not_cut(planted: Path) -> None:
    whole = keys(batches(reading(planted)))
    for stop in (1, 11, 29):
        loader = StreamingDataLoader(reading(planted), 8, num_workers=0)
        taken = [batch for _, batch in zip(range(stop), loader, strict=False)]
        resumed = StreamingDataLoader(reading(planted), 8, num_workers=2)
        resumed.load_state_dict(loader.state_dict())
        assert keys(taken) + keys(list(resumed)) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_the_log_has_one_line_and_the_sum_at_the_end(
    workers: int, planted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wdsdist")
    batches(reading(planted), workers=workers)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "samples of epoch 0 were bad and replaced so far, the latest is " in warnings[0]
    assert "10 bad samples replaced" in caplog.text


class TestFilter:
    def test_a_transform_that_raises_bad_sample_is_a_filter(self, planted: Path, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        found = batches(reading(planted, transform=refuse_threes, quarantine=path))
        assert not [key for key in keys(found) if int(key[1:]) % 3 == 0]
        assert {entry.reason for entry in quarantine.read(path) if int(entry.key[1:]) % 3 == 0} <= {
            "a multiple of three", *(entry.reason for entry in quarantine.read(path) if entry.key in BAD_KEYS)
        }  # fmt: skip

    def test_without_a_policy_it_is_an_error_that_names_sample_and_policy(self, planted: Path) -> None:
        dataset = reading(planted, on_error="raise", transform=refuse_threes, fields=("npy",))
        with pytest.raises(BadSample, match=r"'k006' of 0\.tar is bad: a multiple of three; .*on_error=\"replace\""):
            dataset[6]


@pytest.mark.parametrize("transform", [None, keep])
def test_values_that_do_not_stack_are_an_error_that_names_two_samples_whatever_the_policy(
    transform: Callable[[Any], Any] | None, tmp_path: Path
) -> None:
    wdsdist.pack([{"npy": np.zeros((2, 4 if number == 3 else 3))} for number in range(8)], tmp_path / "shards")
    dataset = reading(tmp_path / "shards", fields=None, transform=transform)
    message = r"'npy' does not stack: it is float64 .* in sample '00000000\d' and float64 .* in '00000000\d'"
    with pytest.raises(SampleError, match=message):
        batches(dataset, size=4)


class TestOptionalFields:
    def test_a_missing_or_empty_one_is_none_in_a_list(self, planted: Path) -> None:
        dataset = reading(planted, fields=("cls", "txt?"), on_error="raise", shuffle=False, decode={"txt": bytes.upper})
        found = [text for batch in batches(dataset) for text in batch["txt"]]
        assert {number for number, text in enumerate(found) if text is None} == MISSING | EMPTY
        assert found[1] == b"TEXT 1"

    @pytest.mark.parametrize("transform", [None, keep])
    @pytest.mark.parametrize("decode", [None, True])
    def test_its_column_is_always_a_list(
        self, transform: Callable[[Any], Any] | None, decode: bool | None, planted: Path
    ) -> None:
        for batch in batches(reading(planted, fields=("npy?",), decode=decode, transform=transform), workers=1):
            assert isinstance(batch["npy"], list)
            assert {type(value) for value in batch["npy"]} == {np.ndarray if decode else bytes}

    def test_the_mark_stands_at_the_end(self, planted: Path) -> None:
        with pytest.raises(ArgumentError, match=r"'jpg\?;png': the '\?' of an optional field is its end"):
            reading(planted, fields=("jpg?;png",))
        assert reading(planted, fields=("jpg;txt?",), shuffle=False)[0]["jpg"] == "text 0"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("budget", "pattern"),
    [
        (0.03, r"[89] of \d+ samples of epoch \d were bad on this rank, more than error_budget=0\.03 allows"),
        (0, r"\d of \d+ samples of epoch \d were bad on this rank, .* \(of at least 240 samples\)"),
        (len(BAD) / TOTAL, ""),
    ],
)
def test_more_bad_samples_than_the_budget_allows_end_the_run(
    budget: float, pattern: str, workers: int, planted: Path
) -> None:
    loader = StreamingDataLoader(reading(planted, error_budget=budget), 8, num_workers=workers)
    for _ in range(2):  # each epoch counts its own
        if not pattern:
            assert len(list(loader)) == 30
            continue
        with pytest.raises(SampleError, match=pattern):
            list(loader)


class TestForeignLoaders:
    def test_a_data_loader_of_torch_does_in_its_workers(self, planted: Path, tmp_path: Path) -> None:
        dataset = reading(planted, batch_size=8, quarantine=tmp_path / "bad.jsonl")
        found = [batch["__key__"] for batch in DataLoader(dataset, 8, num_workers=2, multiprocessing_context="fork")]
        assert found == [batch["__key__"] for batch in batches(reading(planted))]
        assert listed(tmp_path / "bad.jsonl") == sorted(BAD_KEYS)

    def test_a_sample_by_its_number_is_itself_or_an_error(self, planted: Path) -> None:
        with pytest.raises(SampleError, match=r"0\.tar: member k003\.cls: .*ValueError"):
            reading(planted)[3]


class TestWhatIsNoBadSample:
    @pytest.mark.parametrize("error", [MemoryError, ImportError, ShardDamagedError, StorageError, KeyboardInterrupt])
    @pytest.mark.parametrize("where", ["transform", "decode"])
    def test_errors_that_are_no_samples_are_raised(self, error: type[BaseException], where: str, planted: Path) -> None:
        def fail(_: Any) -> None:
            raise error("not the sample's fault")

        options: dict[str, Any] = {"transform": fail} if where == "transform" else {"decode": {"npy": fail}}
        expected = error if where == "transform" or error is KeyboardInterrupt else SampleError
        with pytest.raises(expected, match=r"not the sample's fault|needs a package"):
            batches(reading(planted, fields=("npy",), **options))

    def test_a_damaged_shard_stays_an_error(self, planted: Path, tmp_path: Path) -> None:
        for path in planted.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / "2.tar").write_bytes((tmp_path / "2.tar").read_bytes()[:-512])
        with pytest.raises(ShardDamagedError, match=r"2\.tar"):
            batches(reading(tmp_path))

    def test_a_shard_without_a_good_sample_is_an_error(self, tmp_path: Path) -> None:
        wdsdist.pack([{"txt": b"\xff"} for _ in range(9)], tmp_path / "shards")
        with pytest.raises(SampleError, match=r"has no good sample among its 9 .*txt: 1 bytes do not decode as 'txt'"):
            batches(reading(tmp_path / "shards", fields=None))


def test_substitutes_come_from_the_view(planted: Path, tmp_path: Path) -> None:
    chosen = sorted(KEYS)[::3]
    view = wdsdist.open(planted).select(keys=chosen).repeat(2)
    path = tmp_path / "bad.jsonl"
    found = keys(batches(reading(view, quarantine=path)))
    assert len(found) == 2 * len(chosen)
    assert set(found) == set(chosen) - BAD_KEYS
    assert listed(path) == sorted(BAD_KEYS & set(chosen))
    assert {one.fingerprint for one in quarantine.read(path)} == {wdsdist.open(planted).fingerprint}


def test_each_data_set_of_a_mix_may_have_a_policy_of_its_own(planted: Path, tmp_path: Path) -> None:
    one = reading(planted, seed=0, quarantine=tmp_path / "bad.jsonl")
    other = StreamingDataset(planted, fields=("npy",), decode=None, transform=only_key)
    mixed = wdsdist.mix({"a": (one, 1.0), "b": (other, 1.0)})
    for _ in range(2):  # each bad sample is listed once
        batches(mixed, collate_fn=list)
    assert listed(tmp_path / "bad.jsonl") == sorted(BAD_KEYS)
    with pytest.raises(ArgumentError, match="on_error is given for all data sets, but 'a' is a StreamingDataset"):
        wdsdist.mix({"a": (one, 1.0), "b": (other, 1.0)}, on_error="replace")


def only_key(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"]}


def test_a_quarantine_file_that_cannot_be_written_does_not_end_the_run(
    planted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = reading(planted, quarantine=tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").mkdir()
    assert len(batches(dataset)) == 30
    assert "cannot be written" in caplog.text
