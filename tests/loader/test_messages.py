"""What cannot work is refused before the first batch, by a message that names the argument and the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support import tars
from tests.support.loaders import make_loader
from wdsdist import StreamingDataLoader, StreamingDataset, to_device
from wdsdist.batching import Buckets
from wdsdist.errors import ArgumentError, NotFoundError, SampleError, WdsdistError

Call = Callable[[Path, Path], Any]


def dataset(**options: Any) -> Call:
    return lambda shards, _: StreamingDataset(shards, **options)


def loader(batch_size: Any = 8, **options: Any) -> Call:
    return lambda shards, _: make_loader(shards, batch_size, **options)


def first(batch_size: Any = 8, **options: Any) -> Call:
    return lambda shards, _: next(iter(make_loader(shards, batch_size, **options)))


def without_index(shards: Path, folder: Path) -> Any:
    shutil.copy(shards / "0.tar", folder)
    return StreamingDataset(folder)


def empty(_: Path, folder: Path) -> Any:
    (folder / "empty.tar").write_bytes(tars.plain_tar([]))
    return next(iter(StreamingDataLoader(StreamingDataset(folder / "empty.tar"), drop_last=False)))


def mixed_fields(_: Path, folder: Path) -> Any:
    (folder / "mixed.tar").write_bytes(tars.plain_tar([("a.txt", b"1"), ("b.txt", b"2"), ("b.png", b"3")]))
    return list(StreamingDataLoader(StreamingDataset(folder / "mixed.tar"), 2, num_workers=0))


def bytes_and_arrays(_: Path, folder: Path) -> Any:
    data = wdsdist.pack([{"npy": np.arange(3)}, {"bin": b"abc"}], folder / "both")
    dataset = StreamingDataset(data, fields=["bin;npy"], decode=True, shuffle=False)
    return list(StreamingDataLoader(dataset, 2, num_workers=0))


def index(**options: Any) -> Call:
    return lambda shards, _: wdsdist.index(shards, **options)


def columns(**options: Any) -> Call:
    return lambda shards, _: wdsdist.open(shards).add_columns(**options)


def own(name: str) -> Call:
    kind = type("Own", (StreamingDataset,), {name: lambda self, *index: None})
    return lambda shards, _: StreamingDataLoader(kind(shards))


def mix(*weights: Any, **options: Any) -> Call:
    """Mix the data set with itself under the names ``a``, ``b`` and so on."""
    return lambda shards, _: wdsdist.mix(
        {name: (shards, weight) for name, weight in zip("ab", weights, strict=False)}, **options
    )


def part(join: str = "mix", of_all: dict[str, Any] | None = None, **own_options: Any) -> Call:
    """Mix or join a data set with options of its own, and options for all data sets."""

    def call(shards: Path, _: Path) -> Any:
        dataset = StreamingDataset(shards, **own_options)
        given = {"a": (dataset, 1)} if join == "mix" else {"a": dataset}
        return getattr(wdsdist, join)(given, **(of_all or {}))

    return call


def two_classes(folder: Path) -> dict[str, wdsdist.Manifest]:
    """Return two data sets that number their classes differently."""
    sets = {name: wdsdist.pack([{"cls": 0, "jpg": b"x"}], folder / name) for name in "ab"}
    names = {"a": ["cat"], "b": ["dog", "cat"]}
    return {name: data.with_source(extra={**data.extra, "classes": names[name]}) for name, data in sets.items()}


def with_an_empty_one(shards: Path, folder: Path) -> Any:
    (folder / "0.tar").write_bytes(tars.plain_tar([]))
    return wdsdist.mix({shards: 1, folder / "0.tar": 1})


OF_THE_ORDER: list[dict[str, Any]] = [
    {"num_replicas": 2}, {"rank": 1, "num_replicas": 2}, {"shuffle": False}, {"seed": 1}, {"drop_last": True},
    {"order": "sampler"}, {"shuffle_window": 9}, {"num_canonical_replicas": 2}, {"batch_size": 4},
    {"cache_dir": "cache"}, {"cache_limit": "1GB"}, {"download_timeout": 9.0},
]  # fmt: skip

CALLS: list[tuple[Call, type[WdsdistError], str]] = [
    # arguments of the data set
    (dataset(field=3), ArgumentError, r"StreamingDataset has no argument 'field': did you mean 'fields'\?"),
    (dataset(mesh=3), ArgumentError, "StreamingDataset has no argument 'mesh': it has fields, decode, .* stage"),
    (dataset(seed=-1), ArgumentError, "seed is -1: it must be between 0 and"),
    (dataset(seed=2**64), ArgumentError, "seed is 18,446,744,073,709,551,616: it must be between 0 and"),
    (dataset(shuffle_window=0), ArgumentError, "shuffle_window is 0: it must be at least 1"),
    (dataset(num_canonical_replicas=0), ArgumentError, "num_canonical_replicas is 0: it must be between 1 and 1,048"),
    (dataset(batch_size=0), ArgumentError, "batch_size is 0: it must be between 1 and"),
    (dataset(cache_dir=""), ArgumentError, "cache_dir is '': it must be a path; write '.'"),
    (dataset(cache_dir=3), ArgumentError, "cache_dir is 3: it must be a path"),
    (dataset(fields="jpg"), ArgumentError, "must be a list of extensions"),
    (dataset(fields=(name for name in ("cls",))), ArgumentError, "fields is .*: it must be a list"),
    (dataset(fields=("jpg;png",)), ArgumentError, "fields names 'jpg', .* no member 'jpg' or 'png': it has cls, txt"),
    (dataset(shuffle="no"), ArgumentError, "shuffle is 'no': it must be True or False"),
    (dataset(stage=None), ArgumentError, "stage is None: it must be True or False"),
    (dataset(allow_elsewhere="no"), ArgumentError, "allow_elsewhere is 'no': it must be True or False"),
    (dataset(on_error="replace", quarantine=""), ArgumentError, "quarantine is '': it must be a path"),
    (dataset(order="random"), ArgumentError, "order is 'random': it can be 'shard' or 'sampler'"),
    (dataset(decode={"clas": int}), ArgumentError, "decode names 'clas', which no sample has: did you mean 'cls'"),
    (dataset(decode={"image": bytes}), ArgumentError, "decode names 'image', .* has: they have cls, txt"),
    (dataset(decode={"jpg": bytes}), ArgumentError, "decode names 'jpg', .* has: they have cls, txt"),
    (lambda _, folder: StreamingDataset(two_classes(folder)["a"], decode={"webp": len}), ArgumentError,
     "decode names 'webp', which no sample has: they have cls, jpg"),
    (dataset(mark_padding=True, drop_last=True), ArgumentError, "mark_padding is True and drop_last too"),
    (lambda shards, _: StreamingDataset(shards).set_epoch(-1), ArgumentError, "epoch is -1"),
    (lambda shards, _: StreamingDataset(shards).set_epoch(1.5), ArgumentError, "epoch is 1.5"),  # type: ignore[arg-type]
    (without_index, NotFoundError, r"holds 1 tar files but no index.json: run `wdsdist index"),
    (lambda _, folder: two_classes(folder) and StreamingDataset(folder), NotFoundError,
     "name a data set in it, such as .*/a or .*/b, or pack its files"),
    # arguments of the loader
    (loader(0), ArgumentError, "batch_size is 0"),
    (loader(2.0), ArgumentError, "batch_size is 2.0"),
    (loader(7, batches=Buckets(3, by="cls.bytes")), ArgumentError, "batch_size=7 has no meaning beside batches="),
    (loader(num_workers=-1), ArgumentError, "num_workers is -1"),
    (loader(num_workers=10**6), ArgumentError, "num_workers is 1,000,000: it must be between 0 and 4,096"),
    (loader(collate_fn=3), ArgumentError, "collate_fn is 3: it must be a function"),
    (loader(worker_init_fn="f"), ArgumentError, "worker_init_fn is 'f': it must be a function"),
    (loader(num_workers=1, prefetch_factor=0), ArgumentError, "prefetch_factor is 0: it must be at least 1"),
    (loader(drop_last="no"), ArgumentError, "drop_last is 'no': it must be True or False"),
    *((lambda shards, _, name=name: StreamingDataLoader(StreamingDataset(shards), **{name: 1}), ArgumentError,
       f"StreamingDataLoader has no argument '{name}': {advice}")
      for name, advice in {"shuffle": "StreamingDataset has it", "batchsize": "did you mean 'batch_size'"}.items()),
    (first(num_workers=1, multiprocessing_context="spawn", collate_fn=lambda samples: samples), ArgumentError,
     "1 workers cannot be started .* be functions that a module defines, or fork workers"),
    (lambda *_: StreamingDataLoader(range(3)), ArgumentError, "dataset is a range"),  # type: ignore[arg-type]
    (own("__getitem__"), ArgumentError, r"is a Own, whose own __getitem__ no worker calls: .* transform="),
    (own("__iter__"), ArgumentError, r"is a Own, whose own __iter__ no worker calls: .* transform="),
    # data that gives no batch
    (first(53, world=2), ArgumentError, r"103 samples, fewer than one global batch of 106 \(2 ranks x batch_size 53\)"),
    (first(53, world=2, num_workers=2), ArgumentError, "103 samples, fewer than one global batch of 106"),
    (lambda shards, _: len(make_loader(shards, 53, world=2)), ArgumentError, "fewer than one global batch of 106"),
    (
        first(1, world=104, rank_drop_last=True, drop_last=False),
        ArgumentError,
        r"there are ranks \(104\).*StreamingDat",
    ),
    (empty, ArgumentError, "has no samples"),
    (mixed_fields, SampleError, "png"),
    (bytes_and_arrays, SampleError, r"field 'bin' does not stack: it is int64 \[3\] in .* and bytes in"),
    # bad samples
    (dataset(on_error="skip"), ArgumentError, 'on_error is \'skip\': it must be "raise" or "replace"'),
    (dataset(quarantine="bad.jsonl"), ArgumentError, 'quarantine is .* on_error="replace"'),
    (dataset(error_budget=0.1), ArgumentError, 'error_budget is .* on_error="replace"'),
    (dataset(on_error="replace", error_budget=2), ArgumentError, "error_budget is 2: .* a number between 0 and 1"),
    (dataset(on_error="replace", error_budget=True), ArgumentError, "error_budget is True: it must be a number"),
    (dataset(on_error="replace", quarantine="no/such/bad.jsonl"), ArgumentError, "in a folder that exists"),
    (dataset(on_error="replace", quarantine="s3://bucket/bad.jsonl"), ArgumentError, "a local file"),
    (dataset(on_error="replace", quarantine="."), ArgumentError, "a local file"),
    # several data sets
    (mix(), ArgumentError, "no data sets"),
    (lambda *_: wdsdist.mix(["web"]), ArgumentError, "must map locations"),  # type: ignore[arg-type]
    (mix(0), ArgumentError, "weight of 'a' is 0: it must be a number above 0"),
    (mix(float("nan")), ArgumentError, "must be a number above 0"),
    (mix("1"), ArgumentError, r"must be a number above 0, as in {'a': \(location, 0\.7\)}"),
    (mix(True), ArgumentError, "must be a number"),
    (mix(1e-9, 1), ArgumentError, "times the smallest"),
    (lambda *_: wdsdist.mix({"nowhere": 1}), NotFoundError, "nowhere does not exist"),
    (mix(1, order="sampler"), ArgumentError, "'shard' only"),
    (mix(1, samples_per_epoch=0), ArgumentError, "samples_per_epoch is 0"),
    (with_an_empty_one, ArgumentError, "has no samples"),
    (lambda shards, _: wdsdist.mix({"a": StreamingDataset(shards)}), ArgumentError, "weight of 'a' .* be a number"),  # type: ignore[dict-item]
    (lambda shards, _: wdsdist.mix({"a": (mix(1)(shards, shards), 1)}), ArgumentError, "'a' is a mix itself"),
    (lambda *_: wdsdist.concat([]), ArgumentError, "no data sets"),
    (lambda shards, _: wdsdist.concat(str(shards)), ArgumentError, "must be a list of data sets"),
    (lambda shards, _: wdsdist.concat(StreamingDataset(shards)), ArgumentError, "must be a list of data sets"),  # type: ignore[arg-type]
    (lambda shards, _: wdsdist.concat([shards, shards]), ArgumentError, "two data sets have .* name .*as in {.a.: "),
    (lambda _, folder: wdsdist.concat(two_classes(folder), decode={"cls": int}), ArgumentError,
     "class 0 is 'cat' in 'a' and 'dog' in 'b': join a StreamingDataset of each, .* or leave cls out of fields="),
    *((part(join, **option), ArgumentError, r"the data set 'a' .* of its own.*: give it to")
      for join in ("mix", "concat") for option in OF_THE_ORDER),
    *((part(of_all=option), ArgumentError, f"{min(option)} is given for all data sets, but 'a' is a StreamingDataset")
      for option in ({"fields": ("cls",)}, {"decode": True}, {"transform": dict})),
    # arguments of functions
    (lambda *_: wdsdist.open("a\0b"), ArgumentError, r"'a\\x00b' is not a path or URL: it holds a null character"),
    (lambda *_: wdsdist.open("s3://x", storage_options={1: 2}), ArgumentError, "storage_options is a dict: it must"),  # type: ignore[dict-item]
    (dataset(cache_limit="x"), ArgumentError, "cache_limit is 'x': it must be a number of bytes"),
    (dataset(batch_size=10**30), ArgumentError, "batch_size is .*: it must be between 1 and"),
    (index(output=3), ArgumentError, "3 is not a path or URL: it must be a string or a Path"),
    (index(name=3), ArgumentError, "name is 3: it must be 1 to 64 letters"),
    (index(progress=3), ArgumentError, "progress is 3: it must be a function"),
    (columns(fields=["cls"], progress=3), ArgumentError, "progress is 3: it must be a function"),
    (
        lambda shards, _: wdsdist.open(shards).select(exclude=3),  # type: ignore[arg-type]
        ArgumentError,
        "exclude is 3: it must be a list of keys, or the path of a file",
    ),
    (lambda _, folder: wdsdist.pack(None, folder / "new"), WdsdistError, "source is None, which can be neither"),
    # to_device
    (lambda *_: to_device([], "cuda:99"), ArgumentError, "device is 'cuda:99': torch sees . CUDA devices"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch's, before the error
@pytest.mark.parametrize(("call", "error", "pattern"), CALLS)
def test_what_cannot_work_is_refused_with_the_remedy(
    shards: Path, tmp_path: Path, call: Call, error: type[Exception], pattern: str
) -> None:
    with pytest.raises(error, match=pattern):
        call(shards, tmp_path)


def test_data_sets_of_other_class_numbers_join_if_each_numbers_them_itself_or_none_is_read(tmp_path: Path) -> None:
    sets = two_classes(tmp_path)
    assert wdsdist.concat(sets, fields=["jpg"]).num_samples == 2
    own = {name: StreamingDataset(data, decode={"cls": lambda label: 1}) for name, data in sets.items()}
    assert [sample["cls"] for sample in wdsdist.concat(own)] == [1, 1]
