"""Transport with real workers: batches that are kept, killed jobs, little shared memory, and what is not copied."""

from __future__ import annotations

import errno
import gc
import hashlib
import multiprocessing
import os
import signal
import subprocess
import time
from multiprocessing.context import ForkContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist
from tests.support import tars
from tests.support.programs import command
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import SampleError, SharedMemoryError, StorageError
from wdsdist.samples.images.transforms import seeded
from wdsdist.shards.manifest import Manifest, Shard

SHARDS, PER_SHARD = 4, 40

PAIRS = [("fork", None, True), ("fork", True, False), ("forkserver", None, False), ("forkserver", True, True)]
"""How workers start, what is decoded, and whether they persist: any two of these come together in each way."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of raw bytes of very different sizes, an array, and a class."""
    folder = tmp_path_factory.mktemp("shards")
    chosen = np.random.default_rng(3)
    for shard in range(SHARDS):
        members = []
        for number in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
            size = int(chosen.choice([0, 1, 300, 20_000]))
            members += [
                (f"k{number:04d}.bin", chosen.bytes(size)),
                (f"k{number:04d}.cls", b"%d" % number),
                (f"k{number:04d}.npy", tars.npy_bytes(chosen.integers(0, 255, (4, 5)))),
            ]
        (folder / f"{shard}.tar").write_bytes(tars.plain_tar(members))
    wdsdist.index(folder)
    return folder


def digest(batch: dict[str, Any]) -> str:
    state = hashlib.sha256(repr(batch["__key__"]).encode())
    for name, column in sorted(batch.items()):
        if isinstance(column, wdsdist.Ragged):
            for view in column:
                state.update(b"%d:" % len(view) + bytes(view))
        elif isinstance(column, torch.Tensor):
            state.update(f"{name}{column.dtype}{tuple(column.shape)}".encode() + column.numpy().tobytes())
    return state.hexdigest()


def digests(loader: StreamingDataLoader, epochs: int = 2) -> list[str]:
    return [digest(batch) for _ in range(epochs) for batch in loader]


def make_loader(shards: Path, workers: int, *, decode: Any = None, **more: Any) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(shards, decode=decode), 8, num_workers=workers, **more)


@pytest.mark.parametrize(
    ("context", "decode", "persistent"), [*PAIRS, pytest.param("spawn", True, True, marks=pytest.mark.slow)]
)
def test_batches_that_are_all_kept_for_two_epochs_are_what_they_were(
    shards: Path, context: str, decode: bool | None, persistent: bool
) -> None:
    expected = digests(make_loader(shards, 0, decode=decode))
    loader = make_loader(shards, 2, decode=decode, multiprocessing_context=context, persistent_workers=persistent)
    kept = [batch for _ in range(2) for batch in loader]
    assert [digest(batch) for batch in kept] == expected


def test_a_loop_that_is_left_leaves_no_slot_taken(shards: Path) -> None:
    loader = make_loader(shards, 2)
    for _ in range(20):
        next(iter(loader))
    assert len(digests(loader, 1)) == len(loader)
    gc.collect()
    table = loader._worker_dataset.channel._table
    assert table is not None
    assert not any(table._taken[:])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_when_its_batch_is_due(shards: Path, tmp_path: Path, workers: int) -> None:
    members = [(f"k{number}.cls", b"7" if number != 21 else b"seven") for number in range(64)]
    (tmp_path / "0.tar").write_bytes(tars.plain_tar(members))
    dataset = StreamingDataset(tmp_path / "0.tar", decode=True, shuffle=False)
    batches = iter(StreamingDataLoader(dataset, 4, num_workers=workers))
    for number in range(5):
        assert next(batches)["__key__"] == [f"k{4 * number + n}" for n in range(4)]
    with pytest.raises(SampleError, match="k21"):
        next(batches)


class TestWithoutWorkers:
    def test_raw_columns_are_views_of_the_mapped_shard(self, shards: Path) -> None:
        dataset = StreamingDataset(shards, fields=("bin",))
        loader = StreamingDataLoader(dataset, 8, num_workers=0)
        source = loader._worker_dataset.sample_reader.source
        for batch in loader:
            for name, view in zip(batch["__shard__"], batch["bin"], strict=True):
                number = int(name.removesuffix(".tar"))
                content = np.frombuffer(source.open({number: None})[number].content, np.uint8)
                found = np.frombuffer(view, np.uint8)
                start = found.ctypes.data - content.ctypes.data
                assert not len(found) or 0 <= start <= len(content) - len(found)


class TestSeeds:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_depend_on_seed_epoch_and_sample_only(self, shards: Path, workers: int) -> None:
        found: dict[int, list[dict[str, int]]] = {}
        for world in (1, 2):
            for epoch in range(2):
                seeds: dict[str, int] = {}
                for rank in range(world):
                    dataset = StreamingDataset(
                        shards, fields=("cls",), decode={"cls": a_seed}, seed=4, num_replicas=world, rank=rank
                    )
                    loader = StreamingDataLoader(dataset, 8, num_workers=workers)
                    loader.set_epoch(epoch)
                    for batch in loader:
                        seeds.update(zip(batch["__key__"], batch["cls"].tolist(), strict=True))
                found.setdefault(epoch, []).append(seeds)
        assert found[0][0] == found[0][1]
        assert found[1][0] == found[1][1]
        seeds_of_both = [*found[0][0].values(), *found[1][0].values()]
        assert len(set(seeds_of_both)) == 2 * SHARDS * PER_SHARD
        other = StreamingDataset(shards, fields=("cls",), decode={"cls": a_seed}, seed=5)
        assert other[0]["cls"] not in seeds_of_both
        same = StreamingDataset(shards, fields=("cls",), decode={"cls": a_seed}, seed=4)
        same.set_epoch(1)
        assert same[0]["cls"] == found[1][0]["k0000"]


@seeded
def a_seed(data: bytes, seed: int) -> int:
    return seed


def shared_files() -> set[Path]:
    """The files in shared memory with the names that torch, Python and wdsdist give, but for semaphores of queues."""
    return {path for path in Path("/dev/shm").iterdir() if path.name.startswith(("torch_", "psm_", "wdsdist"))}


@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(context, marks=pytest.mark.slow) for context in ("forkserver", "spawn"))]
)
def test_a_job_that_is_killed_leaves_nothing_behind(shards: Path, short_path: Path, context: str) -> None:
    before = shared_files()
    with subprocess.Popen(
        command("keeping_batches", shards, context),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(short_path)},
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stdout.readline() == "running\n"
        os.killpg(job.pid, signal.SIGKILL)
    left = shared_files() - before
    while left := left & shared_files():  # of other programs, whose files go once they end; the killed one's would stay
        time.sleep(0.1)
    assert not any(path.suffix == ".tar" or "wdsdist" in path.name for path in short_path.rglob("*"))


class LocklessContext(ForkContext):
    """A context where no queue can have its locks, for the reason that an error number gives."""

    def __init__(self, number: int, queues: int = 0) -> None:
        self._number = number
        self._queues = queues
        """That can have them."""

    def Queue(self, maxsize: int = 0) -> Any:
        self._queues -= 1
        if self._queues < 0:
            raise OSError(self._number, os.strerror(self._number))
        return super().Queue(maxsize)


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, SharedMemoryError, r"the locks of 2 workers cannot be made in /dev/shm \(No space left"),
        (errno.EROFS, SharedMemoryError, r"the locks of 2 workers cannot be made in /dev/shm \(Read-only file"),
        (errno.EMFILE, StorageError, r"2 workers cannot be started \(Too many open files\): raise .* lower num"),
    ],
)
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_workers_that_can_have_no_locks_are_an_error_that_says_where_and_what_to_do(
    shards: Path, number: int, kind: type[Exception], message: str
) -> None:
    loader = StreamingDataLoader(
        StreamingDataset(shards), num_workers=2, multiprocessing_context=LocklessContext(number)
    )
    with pytest.raises(kind, match=f"^{message}"):
        next(iter(loader))
    gc.collect()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_workers_that_have_started_end_where_another_one_cannot_start(shards: Path) -> None:
    before = set(multiprocessing.active_children())
    context = LocklessContext(errno.EMFILE, queues=2)  # of all workers, and of the first
    loader = StreamingDataLoader(StreamingDataset(shards), num_workers=2, multiprocessing_context=context)
    with pytest.raises(StorageError, match="2 workers cannot be started"):
        next(iter(loader))
    for worker in set(multiprocessing.active_children()) - before:
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL
    gc.collect()


def test_a_spawned_worker_is_sent_little_however_many_shards_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (f"shards/part-{number:06d}.tar" for number in range(100_000))
    manifest = Manifest.of("/data", [Shard(name, 1000, 1 << 26, "0" * 64) for name in names])
    loader = StreamingDataLoader(StreamingDataset(manifest), 8, num_workers=2)
    assert len(spawned_bytes(loader._worker_dataset)) < 32 << 10


def spawned_bytes(value: Any) -> bytes:
    """Return what a process that is spawned would be sent."""
    from multiprocessing import context, popen_spawn_posix, reduction

    class Popen(popen_spawn_posix.Popen):
        def __init__(self) -> None:
            self._fds: list[int] = []

    context.set_spawning_popen(Popen())  # type: ignore[attr-defined]
    try:
        return bytes(reduction.ForkingPickler.dumps(value))
    finally:
        context.set_spawning_popen(None)  # type: ignore[attr-defined]


class Counting:
    """A transform that counts the samples it has seen, over all workers."""

    def __init__(self) -> None:
        self.calls = multiprocessing.get_context("fork").Value("q", 0)

    def __call__(self, sample: Any) -> Any:
        with self.calls.get_lock():
            self.calls.value += 1
        return sample


@pytest.mark.parametrize("chosen", [1, 5])
def test_waiting_workers_make_the_first_batch_of_the_next_epoch(shards: Path, chosen: int) -> None:
    counting, total, workers, size = Counting(), SHARDS * PER_SHARD, 2, 8
    loader = StreamingDataLoader(StreamingDataset(shards, transform=counting), size, num_workers=workers)
    assert len(list(loader)) * size == total
    end = time.monotonic() + 60
    while counting.calls.value < total + workers * size and time.monotonic() < end:
        time.sleep(0.01)
    assert counting.calls.value == total + workers * size, "one batch each, and no more"
    loader.set_epoch(chosen)
    alone = make_loader(shards, 0)
    alone.set_epoch(chosen)
    assert [batch["__key__"] for batch in loader] == [batch["__key__"] for batch in alone]
    is_next = chosen == 1
    assert counting.calls.value >= 2 * total + (0 if is_next else workers * size)
    assert counting.calls.value <= 2 * total + (1 if is_next else 2) * workers * size
