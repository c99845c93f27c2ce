"""Real ranks over real caches: processes as a launcher starts them, each with a loader and its workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.support.stores import BATCH, WINDOW, Store, digest
from wdsdist.loader.epoch_iterator import LoaderStats

PART = 64 << 10
"""Bytes asked for at once, so that a shard takes four requests."""


@dataclass(slots=True)
class Outcome:
    """What a rank was given."""

    batches: list[str] = field(default_factory=list)
    """Their digests."""
    shards: set[str] = field(default_factory=set)
    """The names of those that they came from."""
    is_over: bool = False
    """Whether the epoch ended."""
    error: Exception | None = None
    """What it ended with instead."""
    seconds: float = 0.0
    """That the last batch, the end or the error took to come."""
    stats: LoaderStats = field(default_factory=LoaderStats)


class Ranks:
    """The ranks of one job; the ``with`` block ends them.

    Args:
        store: where the data set is.
        cache_dirs: one for each node; each has as many of the ranks.
        world_size: how many ranks.
        workers: of each.
        stall: seconds without a byte after which a connection is dropped.
        options: of the data set.
    """

    def __init__(
        self,
        store: Store,
        *cache_dirs: Path,
        world_size: int = 2,
        workers: int = 2,
        stall: float = 20.0,
        **options: Any,
    ) -> None:
        # From a server that has imported torch, a process starts in milliseconds instead of a second.
        context = multiprocessing.get_context("forkserver")
        options = {"shuffle_window": WINDOW, "storage_options": store.options, **options}
        size = world_size // len(cache_dirs)
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(world_size):
            node, place = divmod(rank, size)
            launched = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": place, "LOCAL_WORLD_SIZE": size}
            made = {**options, "cache_dir": cache_dirs[node]}
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank, args=(theirs, launched, tempfile.gettempdir(), stall, store.url, workers, made)
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        assert [pipe.recv() for pipe in self.pipes] == ["here"] * world_size

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.close()
        for rank, process in enumerate(self.processes):
            process.join(200)
            self.kill_group(rank)
            process.join()

    def tell(self, what: str, *arguments: Any, rank: int | None = None) -> None:
        """Let one rank, or each, do what a method of `_Rank` does."""
        for pipe in self.pipes if rank is None else [self.pipes[rank]]:
            pipe.send((what, arguments))

    def outcome(self, rank: int) -> Outcome:
        assert self.pipes[rank].poll(500), f"rank {rank} does not answer"
        outcome: Outcome = self.pipes[rank].recv()
        return outcome

    def outcomes(self) -> list[Outcome]:
        return [self.outcome(rank) for rank in range(len(self.pipes))]

    def all(self, what: str = "take", *arguments: Any) -> list[Outcome]:
        """Let each rank do something, at the same time."""
        self.tell(what, *arguments)
        return self.outcomes()

    def members(self, rank: int) -> list[int]:
        """Return the numbers of the live processes of a rank: itself, its workers, and theirs."""
        group = self.processes[rank].pid
        return [number for number, group_of in _live() if group_of == group]

    def kill_group(self, rank: int) -> None:
        """Kill a rank with its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[rank].pid, signal.SIGKILL)


def _live() -> Iterator[tuple[int, int]]:
    """Yield the number and the process group of each live process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if state not in "ZX":
                yield int(path.parent.name), int(group)


class _Rank:
    """One rank, in its process."""

    def __init__(self, url: str, workers: int, options: dict[str, Any]) -> None:
        self._url = url
        self._workers = workers
        self._options = options
        self._loader: Any = None
        self._batches: Iterator[Any] | None = None

    def _made(self, **options: Any) -> Any:
        import wdsdist
        from wdsdist import StreamingDataLoader, StreamingDataset

        # The index comes without a deadline: these ranks fail for shards.
        manifest = wdsdist.open(self._url, storage_options=self._options.get("storage_options"))
        dataset = StreamingDataset(manifest, **self._options, **options)
        return StreamingDataLoader(dataset, BATCH, num_workers=self._workers)

    def take(self, count: int | None = None) -> Outcome:
        """Read some batches of the epoch that is under way, or of the next, or all that are left."""
        self._loader = self._loader or self._made()
        if self._batches is None:
            self._batches = iter(self._loader)
        outcome = _read(self._batches, count)
        if outcome.is_over or outcome.error:
            self._batches = None
        outcome.stats = self._loader.stats()
        return outcome

    def leave(self) -> None:
        """Break out of the epoch."""
        self._batches = None

    def evaluate(self) -> Outcome:
        """Read the whole data set on this rank alone."""
        return _read(iter(self._made(num_replicas=1, rank=0)), None)


def _read(batches: Iterator[Any], count: int | None) -> Outcome:
    outcome = Outcome()
    while not outcome.is_over and (count is None or len(outcome.batches) < count):
        began = time.monotonic()
        try:
            batch = next(batches)
            outcome.batches.append(digest(batch))
            outcome.shards.update(batch["__shard__"])
        except StopIteration:
            outcome.is_over = True
        except Exception as error:
            outcome.error = error
            break
        finally:
            outcome.seconds = time.monotonic() - began
    return outcome


def _rank(
    pipe: Connection,
    launched: dict[str, int],
    temporary: str,
    stall: float,
    url: str,
    workers: int,
    options: dict[str, Any],
) -> None:

    os.setsid()  # so that it can be killed with its workers
    multiprocessing.set_start_method("fork", force=True)  # for the workers; here it would be that of this process
    os.environ.update({name: str(number) for name, number in launched.items()})
    tempfile.tempdir = temporary
    pipe.send("here")
    rank = _Rank(url, workers, options)
    from tests.support.policies import use_policy

    with use_policy(part_bytes=PART, stall=stall), contextlib.suppress(EOFError, ConnectionError):
        while True:
            what, arguments = pipe.recv()
            pipe.send(getattr(rank, what)(*arguments))
