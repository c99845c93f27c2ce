"""Check that the shards of a data set are what their indexes say, byte for byte."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wdsdist import catalog, shardindex, storage, tarindex
from wdsdist.catalog import Shards
from wdsdist.checks import check_integer
from wdsdist.errors import IndexFormatError, ShardDamagedError, StorageError
from wdsdist.manifest import Shard
from wdsdist.processes import pool
from wdsdist.shardindex import ShardIndex


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with a shard."""

    shard: str
    """Its name in the manifest."""
    problem: str
    """What is wrong, and what to do about it."""


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far verification has come."""

    shards_done: int
    shards: int
    bytes_done: int
    bytes: int
    damaged: int
    """Shards found damaged so far."""


def verify(
    shards: Shards,
    *,
    workers: int | None = None,
    progress: Callable[[VerifyProgress], None] | None = None,
) -> list[Damage]:
    """Read every shard of a local data set and return all that is wrong, in the order of the shards.

    Each shard must be there with the size, digest and number of samples that ``index.json`` gives, must be a whole
    tar, and must have an index beside it that agrees with both. An empty list means that all is well.

    Args:
        shards: what `wdsdist.open` takes.
        workers: processes that read; by default one for each core.
        progress: called with a `VerifyProgress` after each shard.

    Raises what `wdsdist.open` raises where there is no data set, and `StorageError` for shards that are remote.

    >>> import tempfile, pathlib
    >>> from wdsdist.packing import pack
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> (root / "files").mkdir()
    >>> _ = (root / "files" / "0001.txt").write_text("hello")
    >>> manifest = pack(root / "files", root / "shards")
    >>> verify(manifest)
    []
    >>> (root / "shards" / "shard-000000.tar").unlink()
    >>> verify(manifest)[0].problem
    'is not there: fetch it, or pack again, which writes what is missing'
    """
    if workers is not None:
        check_integer("workers", workers, 1)
    manifest = catalog.open(shards)
    paths = [_local(manifest.location(number)) for number in range(len(manifest.counts))]
    found: dict[int, list[str]] = {}
    bytes_done = 0
    with pool(workers, len(paths)) as executor:
        futures = {executor.submit(_check, path, manifest.shard(number)): number for number, path in enumerate(paths)}
        for future in concurrent.futures.as_completed(futures):
            number = futures[future]
            found[number] = future.result()
            bytes_done += max(int(manifest.sizes[number]), 0)
            if progress:
                damaged = sum(map(bool, found.values()))
                progress(VerifyProgress(len(found), len(paths), bytes_done, manifest.num_bytes, damaged))
    return [Damage(manifest.shard(number).name, problem) for number in range(len(paths)) for problem in found[number]]


def _local(location: str) -> Path:
    if storage.is_remote(location):
        raise StorageError(f"{storage.shown(location)} is remote: verify the shards where they lie on a local disk")
    return storage.local_path(location)


def _check(path: Path, listed: Shard) -> list[str]:
    """Return everything that is wrong with one shard."""
    problems: list[str] = []
    try:
        size = path.stat().st_size
        if listed.size >= 0 and size != listed.size:
            how = "short of" if size < listed.size else "longer than"
            problems.append(
                f"is {abs(size - listed.size):,} bytes {how} what index.json gives ({listed.size:,}): fetch it again, "
                f"or delete it and pack again"
            )
        scanned = _scan(path, listed, problems)
    except FileNotFoundError:
        problems.append("is not there: fetch it, or pack again, which writes what is missing")
        scanned = None
    except OSError as error:
        problems.append(f"cannot be read: {error.strerror or error}")
        scanned = None
    _check_sidecar(path, listed, scanned, problems)
    return problems


def _scan(path: Path, listed: Shard, problems: list[str]) -> ShardIndex | None:
    """Read a tar; note where its bytes or its samples are not those that the manifest lists."""
    scanned = None
    try:
        scanned = tarindex.scan_shard(path)
        digest = scanned.sha256
        if scanned.num_samples != listed.num_samples:
            problems.append(f"holds {scanned.num_samples:,} samples, not the {listed.num_samples:,} of index.json")
    except ShardDamagedError as error:
        problems.append(str(error).removeprefix(f"{path}: "))
        digest = storage.sha256(path)
    if listed.sha256 and digest != listed.sha256:
        problems.append(
            f"does not have the SHA-256 digest that index.json gives ({digest[:12]}..., not {listed.sha256[:12]}...): "
            f"fetch it again, or delete it and pack again"
        )
    return scanned


def _check_sidecar(path: Path, listed: Shard, scanned: ShardIndex | None, problems: list[str]) -> None:
    sidecar = shardindex.beside(path)
    try:
        known = shardindex.load(sidecar)
    except FileNotFoundError:
        problems.append(f"has no index {sidecar.name} beside it: run `wdsdist index`, or pack again")
        return
    except IndexFormatError as error:
        problems.append(str(error))
        return
    except OSError as error:
        problems.append(f"has an index that cannot be read ({error.strerror or error})")
        return
    if scanned is not None:
        differing = _differences(known, scanned)
        if differing:
            problems.append(
                f"has an index, {sidecar.name}, that disagrees with the tar in {', '.join(differing)}: delete the one "
                f"that is wrong, then pack or run `wdsdist index` again"
            )
    elif (listed.sha256 and known.sha256 != listed.sha256) or known.num_samples != listed.num_samples:
        problems.append(f"has an index, {sidecar.name}, that disagrees with index.json: fetch or pack both again")


def _differences(known: ShardIndex, scanned: ShardIndex) -> list[str]:
    """Say in which respects two indexes of one tar are not the same."""
    found = []
    if known.size != scanned.size:
        found.append("size")
    if known.sha256 != scanned.sha256:
        found.append("digest")
    if not (_same(known, scanned, "key_starts") and _same(known, scanned, "key_bytes")):
        found.append("keys")
    if known.extensions != scanned.extensions or not all(
        _same(known, scanned, name) for name in ("sample_starts", "extension_ids", "offsets", "sizes")
    ):
        found.append("members")
    return found


def _same(known: ShardIndex, scanned: ShardIndex, name: str) -> bool:
    return np.array_equal(getattr(known, name), getattr(scanned, name))
