"""Epochs from a store: the data, one trial for each rank in a process of its own, and what the server saw of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from peers import data
from peers.far import READY, Visit
from peers.kinds import OBJECTS, Tally
from peers.runs import HERE, Data, TrialError, end_group, environment, last_line, run_trial
from peers.store import Request, Store
from peers.system import Remote
from peers.trial import PREFIX, Figures

_ACCOUNT = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """A system, and how it reads."""

    title: str
    system: str
    is_s3: bool = False
    ranks: int = 1
    workers: int | None = None
    """Where they are not as many as for the others."""


def prepare(readers: Sequence[Reader], pythons: dict[str, str], folder: Path, samples: int, limit: float) -> Data:
    """Make the files, and pack them with every system that has not."""
    files, tally = data.make(OBJECTS, folder.resolve(), samples)
    made = Data(OBJECTS, files, tally)
    for name in {reader.system for reader in readers}:
        done = files.parent / f".packed-{name}"
        if not done.exists():
            run_trial(pythons[name], made.order("pack", name, 0, 0), limit)
            done.touch()
    return made


def visit(
    reader: Reader, python: str, made: Data, store: Store | None, *, workers: int, limit: float, is_new: bool = False
) -> Figures:
    """Let a system read an epoch into an empty cache; without a store, from the local disk.

    Returns samples/s and GB/s of shard bytes from the start until the last rank's last batch, seconds to the last
    rank's first batch, CPU seconds per GB, and what the server saw.
    """
    packed = made.packed(reader.system)
    with tempfile.TemporaryDirectory(dir=packed.parent, prefix="cache-") as cache:
        remote = None
        if store is not None:
            folder = f"{packed.parent.name}/{packed.name}"
            remote = dataclasses.asdict(Remote(store.url, folder, cache, reader.is_s3))
            store.requests()
        order = Visit(
            reader.system, str(made.files), str(packed), reader.workers or workers, made.tally.samples, remote, is_new
        )
        found = _run(python, order, reader.ranks, limit)
    _check(found, made.tally)
    began, ended = min(one["began"] for one in found), max(one["ended"] for one in found)
    size = sum(path.stat().st_size for path in packed.iterdir())
    figures = {
        "value": made.tally.samples / (ended - began),
        "rate": size / 1e9 / (ended - began),
        "first": max(one["first"] for one in found) - began,
        "cpu": sum(one["cpu"] for one in found) / (size / 1e9),
    }
    if store is None:
        return figures
    # The last ones of an earlier reader may have come into the log since.
    return figures | _seen([request for request in store.requests() if request.began >= began], packed)


def _seen(requests: Sequence[Request], packed: Path) -> Figures:
    """Return how often each shard was sent, at most and on average, how many requests there were, and in which depth.

    The depth is that of the requests for the first shard that was there: how many waited for one another, with those
    of the index of the data set.
    """
    sent: dict[str, int] = {}
    for request in requests:
        name = PurePosixPath(request.path.partition("?")[0]).name
        sent[name] = sent.get(name, 0) + request.bytes
    times = [sent.get(path.name, 0) / path.stat().st_size for path in packed.iterdir() if path.stat().st_size > 1 << 20]
    return {"requests": len(requests), "most times": max(times), "times": sum(times) / len(times),
            "depth": _depth(requests, packed)}  # fmt: skip


def _depth(requests: Sequence[Request], packed: Path) -> int:
    ended: dict[str, float] = {}
    of_shard: dict[str, list[Request]] = {}
    for request in requests:
        name = PurePosixPath(request.path.partition("?")[0]).name
        of_shard.setdefault(name.partition(".")[0], []).append(request)
        ended[name] = max(ended.get(name, 0.0), request.ended)
    whole = [name for name in ended if (packed / name).exists() and (packed / name).stat().st_size > 1 << 20]
    first = min(whole, key=ended.__getitem__)
    chain = [one for name in {"index", first.partition(".")[0]} for one in of_shard.get(name, ())]
    depth, free_at = 0, 0.0
    for request in sorted(chain, key=lambda request: request.ended):
        if request.began >= free_at:
            depth, free_at = depth + 1, request.ended
    return depth


def _check(found: Sequence[Figures], expected: Tally) -> None:
    whole = Tally(*(int(sum(one[name] for one in found)) for name in ("samples", "bytes", "checksum")))
    whole.check(expected, OBJECTS.form)


def _run(python: str, order: Visit, ranks: int, limit: float) -> list[Figures]:
    """Run one trial for each rank; all begin when the last of them is ready."""
    with contextlib.ExitStack() as running:
        trials = [running.enter_context(_trial(python, order, rank, ranks, limit)) for rank in range(ranks)]
        for begin, _ in trials:
            begin()
        return [finish() for _, finish in trials]


@contextlib.contextmanager
def _trial(
    python: str, order: Visit, rank: int, ranks: int, limit: float
) -> Iterator[tuple[Callable[[], None], Callable[[], Figures]]]:
    """Start a trial; gives what lets it begin, once it is ready, and what returns its figures."""
    identity = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    variables = {**environment(), **_ACCOUNT, **{name: str(value) for name, value in identity.items()}}
    command = [python, "-m", "peers.far", order.text()]
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables,
        start_new_session=True, cwd=HERE.parent,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(limit, end_group, [process])
        late.start()
        output = process.stdout

        def line(prefix: str) -> str:
            for text in output:
                if text.startswith(prefix):
                    return text.removeprefix(prefix)
            errors.seek(0)
            raise TrialError(last_line(errors.read(), f"no end within {limit:.0f} s"))

        def begin() -> None:
            line(READY)
            print(file=process.stdin, flush=True)

        try:
            yield begin, lambda: json.loads(line(PREFIX))
        finally:
            late.cancel()
            end_group(process)
