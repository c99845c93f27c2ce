"""Packing with an executor of the caller's, and connecting to clusters that are not there."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import made
from tests.support.packing import DataBytes
from wdsdist._util.extras import extra
from wdsdist.errors import ArgumentError, DestinationError, ExtraMissingError, SourceError, WdsdistError
from wdsdist.integrations.engines import connect
from wdsdist.packing import pack
from wdsdist.packing.destination import Destination


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_gives_the_same_bytes_and_stays_open(
    kind: type[Executor], source: Path, alone: dict[str, bytes], tmp_path: Path, data_bytes: DataBytes
) -> None:
    with kind(2) as executor:  # type: ignore[call-arg]
        pack(source, tmp_path / "dest", shard_samples=5, executor=executor)
        assert executor.submit(int, "7").result() == 7
    assert data_bytes(tmp_path / "dest") == alone


def test_a_data_set_of_python_goes_to_the_workers(tmp_path: Path, data_bytes: DataBytes) -> None:
    one = pack(made.Squares(), tmp_path / "here", encode=made.encode, shard_samples=5, workers=1)
    with ProcessPoolExecutor(2) as executor:
        found = pack(made.Squares(), tmp_path / "there", encode=made.encode, shard_samples=5, executor=executor)
    assert found.fingerprint == one.fingerprint
    assert data_bytes(tmp_path / "there") == data_bytes(tmp_path / "here")


def test_what_cannot_go_to_the_workers_is_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(ArgumentError, match=r"^executor is given, but .* one order only, by one process"):
            pack(iter([{"txt": "a"}]), tmp_path / "dest", executor=executor)
        with pytest.raises(ArgumentError, match=r"does not pickle.*define it, and encode, in a module"):
            pack(made.Squares(), tmp_path / "dest", encode=lambda item: made.encode(item), executor=executor)
    assert not (tmp_path / "dest").exists()


class Recording(ThreadPoolExecutor):
    """Notes how many shards were under way at most; changes each piece of work before it runs."""

    def __init__(self, workers: int, change: Any = None) -> None:
        super().__init__(workers)
        self.change = change
        self.futures: list[Future[Any]] = []
        self.most = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.change:
            args = self.change(*args)
        self.futures.append(super().submit(fn, *args, **kwargs))
        self.most = max(self.most, sum(not future.done() for future in self.futures))
        return self.futures[-1]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda job, has, dest, *shard: (job, has, Destination(f"{dest.location}-elsewhere"), *shard), DestinationError,
         "the worker on .* does not see .*shared file system"),
        (lambda job, has, dest, *shard: (job, has, Destination(f"{dest.location}-other"), *shard), DestinationError,
         "does not see"),
        (lambda job, *work: (replace(job, location="/nowhere"), *work), SourceError, "does not see the source"),
        (lambda *_: Path("/no/scheduler").stat(), FileNotFoundError, "/no/scheduler"),
    ],
    ids=["no destination", "another data set", "no source", "no scheduler"],
)  # fmt: skip
def test_what_a_worker_does_not_see_is_named(
    source: Path, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    pack(source, tmp_path / "dest-other", shard_samples=3)
    with Recording(1, change) as executor, pytest.raises(error, match=message):
        pack(source, tmp_path / "dest", executor=executor)
    assert not (tmp_path / "dest-elsewhere").exists()
    assert not (tmp_path / "dest" / "index.json").exists()


def test_an_error_cancels_what_has_not_begun_and_waits_for_the_rest(source: Path, tmp_path: Path) -> None:
    given_up = threading.Event()
    both, calls = threading.Barrier(2), itertools.count()

    def fail(*_: object) -> None:
        if (number := next(calls)) < 2:
            both.wait(30)
        if number:
            given_up.wait(30)
            time.sleep(0.2)
        raise SourceError("stop")

    class Failing(Recording):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(fail)
            future.add_done_callback(lambda done: given_up.set() if done.cancelled() else None)
            return future

    with Failing(2) as executor:
        with pytest.raises(SourceError, match="stop"):
            pack(source, tmp_path / "dest", shard_samples=1, workers=8, executor=executor)
        assert all(future.done() for future in executor.futures)
    assert any(future.cancelled() for future in executor.futures)
    assert len(executor.futures) <= 17


def test_threads_share_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdsdist.packing.tables.table._KEPT_BYTES", 1 << 20)  # so that it drops groups all the time
    rows = pa.table({"bin": pa.array([bytes([n % 251]) * 10_000 for n in range(1000)], pa.binary())})
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=20)
    with ThreadPoolExecutor(8) as executor:
        assert pack(tmp_path / "t.parquet", tmp_path / "dest", executor=executor, shard_samples=20).num_samples == 1000


def test_no_more_shards_are_handed_out_than_keep_it_busy(source: Path, tmp_path: Path) -> None:
    with Recording(3) as executor:
        pack(source, tmp_path / "dest", shard_samples=1, executor=executor)
    assert 1 <= executor.most <= 6


def test_a_broken_executor_is_an_error_that_says_what_to_do(source: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as executor:
        executor.submit(os._exit, 1)
        with pytest.raises(WdsdistError, match="run the same again"):
            pack(source, tmp_path / "dest", executor=executor)


@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_package_is_named_with_its_extra(engine: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra.cache_clear()
    with pytest.raises(ExtraMissingError, match=rf'pip install "wdsdist\[{engine}\]"'), connect(engine):
        pass


def test_an_error_of_packing_on_the_dask_cluster_of_this_process_is_raised_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distributed = pytest.importorskip("distributed")
    client = SimpleNamespace(get_executor=lambda pure: SimpleNamespace(), nthreads=lambda: {"worker": 1})
    monkeypatch.setattr(distributed.Client, "current", staticmethod(lambda: client))
    with pytest.raises(SourceError, match="holds no file"), connect("dask"):
        raise SourceError("it holds no file")
