"""The error of a worker ends in one line with the cause, and before it has the lines of the user's code alone."""

from __future__ import annotations

import pickle
import shutil
import traceback
from pathlib import Path
from typing import Any

import pytest

from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError, SampleError, ShardDamagedError
from wdsdist.loader.ipc.failure import WorkerFailure


def lines_of_an_error(shards: Path, workers: int = 1, **options: Any) -> tuple[BaseException, list[str]]:
    """Return the error that ends an epoch, and its traceback as Python prints it."""
    start, collate = "fork" if workers else None, options.pop("collate_fn", None)
    dataset = StreamingDataset(shards, num_replicas=1, rank=0, shuffle=False, **options)
    loader = StreamingDataLoader(
        dataset, 10, num_workers=workers, multiprocessing_context=start, collate_fn=collate
    )  # fmt: skip
    with pytest.raises(Exception) as caught:
        list(loader)
    return caught.value, "".join(traceback.format_exception(caught.value)).splitlines()


def test_a_damaged_shard_is_one_line_that_names_the_worker(shards: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shards, tmp_path / "shards")
    shard = folder / "3.tar"
    shard.write_bytes(shard.read_bytes()[:-2048])
    error, lines = lines_of_an_error(folder)
    assert isinstance(error, ShardDamagedError)
    assert lines[-1].startswith(f"wdsdist.errors.ShardDamagedError: shard {shard} is 2,048 bytes short of its index")
    assert "(in data loading worker 0, pid " in lines[-1]
    assert len(lines) < 10
    assert not [line for line in lines if "torch/utils/data" in line]


def add_nothing(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "more": sample["nothing"]}


def test_an_error_in_a_transform_shows_the_lines_of_the_transform_and_names_the_sample(shards: Path) -> None:
    error, lines = lines_of_an_error(shards, transform=add_nothing)
    assert type(error) is KeyError
    assert lines[-2:] == ["KeyError: 'nothing'", "raised by transform= for sample 'k0' of 0.tar"]
    assert [line for line in lines if "in data loading worker 0, pid " in line]
    assert f'  File "{__file__}", line' in "".join(lines[-5:-3])
    assert "in add_nothing" in "".join(lines[-5:-3])
    assert lines_of_an_error(shards, workers=0, transform=add_nothing)[1][-1] == lines[-1]


def generated(samples: list[Any]) -> Any:
    return (sample for sample in samples)


def test_a_batch_that_does_not_pickle_is_one_line_that_says_what_may_be_returned(shards: Path) -> None:
    error, lines = lines_of_an_error(shards, collate_fn=generated)
    assert isinstance(error, ArgumentError)
    assert "a batch cannot be sent from its worker (cannot pickle 'generator' object): let transform=" in lines[-1]


def exhaust(*_: Any) -> Any:
    return next(iter(()))


@pytest.mark.parametrize(("transform", "collate_fn"), [(exhaust, len), (None, exhaust)])
def test_an_exhausted_iterator_of_the_users_ends_neither_a_batch_nor_an_epoch(
    shards: Path, transform: Any, collate_fn: Any
) -> None:
    loader = StreamingDataLoader(
        StreamingDataset(shards, transform=transform), 10, num_workers=0, collate_fn=collate_fn
    )
    name = "collate_fn" if transform is None else "transform"
    with pytest.raises(RuntimeError, match=f"{name}= raised StopIteration.*: has it exhausted an iterator"):
        list(loader)


def refuse(content: bytes) -> int:
    raise ValueError(f"{len(content)} bytes are too few")


def test_an_error_in_a_decoder_ends_in_the_member_that_did_not_decode(shards: Path) -> None:
    error, lines = lines_of_an_error(shards, decode={"cls": refuse})
    assert isinstance(error, SampleError)
    assert lines[-1].startswith("wdsdist.errors.SampleError: 0.tar: member k0.cls: 1 bytes do not decode")
    assert "in refuse" in "".join(lines)


def test_an_error_of_a_type_that_does_not_pickle_is_raised_as_what_it_derives_from() -> None:
    class OwnError(LookupError):
        pass

    with pytest.raises(LookupError, match=r"OwnError: it is gone$"):
        pickle.loads(pickle.dumps(WorkerFailure(OwnError("it is gone"), 3))).reraise()


def raise_from_itself(sample: dict[str, Any]) -> Any:
    error = ValueError("a cycle")
    raise error from error


@pytest.mark.parametrize("options", [{}, {"on_error": "replace", "error_budget": 1.0}])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_cycle_of_causes_is_an_error_like_any_other(shards: Path, workers: int, options: dict[str, Any]) -> None:
    error, lines = lines_of_an_error(shards, workers, fields=("cls",), transform=raise_from_itself, **options)
    assert "ValueError: a cycle" in "".join(lines)
    assert isinstance(error, SampleError if options else ValueError)
