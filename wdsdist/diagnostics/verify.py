"""Verify the shards of a data set against their indexes, byte for byte, and decode their members."""

from __future__ import annotations

import errno
import functools
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wdsdist import storage
from wdsdist._util.files import sha256
from wdsdist._util.host import temporary_dir
from wdsdist._util.pools import completed, pool
from wdsdist._util.validation import check_integer
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    IndexFormatError,
    NotFoundError,
    ShardDamagedError,
    StorageError,
)
from wdsdist.samples.bad_samples import checked_path
from wdsdist.samples.check import SampleCheck
from wdsdist.samples.fields import ABSENT, Fields, with_raw_images
from wdsdist.shards import index as shard_index
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.local_index import regular
from wdsdist.shards.manifest import Manifest, Shard
from wdsdist.shards.open import open as open_shards
from wdsdist.shards.progress import ShardsProgress
from wdsdist.shards.quarantine import BadEntry, Quarantine
from wdsdist.shards.spellings import Shards
from wdsdist.storage.compression import Expansion

Part = Literal["tar", "index", "member"]

_AGAIN = "fetch it again, or delete it and pack again"

_NOT_OF_THE_SHARD = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""Error numbers for a lack of this machine or process, which is no damage."""

_NAMED = 10
"""Most members to name for each shard; the others are counted."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage of a shard."""

    shard: str
    """Its name in the manifest."""
    problem: str
    """The problem, and its remedy."""
    part: Part = "tar"
    """The damaged part: the tar, its index, or a member, which is the same in every copy."""
    number: int = 0
    """Number of the shard in the manifest."""


@dataclass(frozen=True, slots=True)
class Task:
    """One shard to check."""

    name: str
    """Name for messages."""
    location: str
    """Path or URL."""
    listed: Shard
    folder: str
    """Folder of the index.json that lists it."""
    options: storage.StorageOptions
    fingerprint: str
    """Fingerprint of the data set, for the quarantine file."""
    key_rule: str
    deep: bool = False
    fields: tuple[str, ...] | None = None
    """Fields that each sample must have."""
    quarantine: str = ""
    """Path of the file that lists bad samples, or an empty string."""


def verify(
    shards: Shards,
    *,
    deep: bool = False,
    fields: Sequence[str] | None = None,
    quarantine: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[ShardsProgress], None] | None = None,
) -> list[Damage]:
    """Verify every shard of a data set and return the damage, in the order of the shards.

    Each shard must exist with the size, digest and number of samples in ``index.json``, must be a whole tar, and must
    have an index that agrees with both. An empty list means no damage. Remote shards are fetched, a few at a time,
    checked and deleted; compressed shards are decompressed in the same way.

    Args:
        shards: what `wdsdist.open` takes; for a view, the shards that hold its samples are verified.
        deep: also decode every member (with ``fields``, only these), images to their last pixel.
        fields: also check that each sample has these fields, not empty; named as in `wdsdist.StreamingDataset`.
        quarantine: path of a file that gets each sample that fails ``deep`` or ``fields``, as from
            `wdsdist.StreamingDataset`; ``wdsdist select --exclude`` takes it.
        workers: processes that read; by default one for each core.
        storage_options: passed to fsspec for the stores that ``shards`` names, as `wdsdist.open` takes them.
        progress: called with a ``ShardsProgress`` before the first shard and after each shard.

    Raises what `wdsdist.open` raises if there is no data set, and `DestinationError` or `StorageError` if there is no
    space here to decompress or fetch a shard, which is not damage.

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
    Fields(fields)
    if quarantine is not None and fields is None and not deep:
        raise ArgumentError(
            f"quarantine is {str(quarantine)!r}, but samples are not looked at: pass deep= or fields= too"
        )
    listed = "" if quarantine is None else checked_path(quarantine)
    manifest = open_shards(shards, storage_options=storage_options)
    if manifest.picks is not None:
        manifest.picks.check()
    named = None if fields is None else tuple(fields)
    named = with_raw_images(named) if named and manifest.has_raw_images else named
    tasks = find_tasks(manifest, deep=deep, fields=named, quarantine=listed)
    found: dict[int, list[Damage]] = {}
    sizes = {number: max(task.listed.size, 0) for number, task in tasks.items()}
    state = ShardsProgress(0, len(tasks), 0, sum(sizes.values()), 0, damaged=0)
    if progress:
        progress(state)
    with pool(workers, len(tasks)) as executor:
        futures = {executor.submit(check, task, number): number for number, task in tasks.items()}
        for future in completed(futures):
            number = futures[future]
            found[number] = future.result()
            state = replace(
                state,
                shards_done=len(found),
                bytes_done=state.bytes_done + sizes[number],
                samples_done=state.samples_done + tasks[number].listed.num_samples,
                damaged=(state.damaged or 0) + bool(found[number]),
            )
            if progress:
                progress(state)
    return [damage for number in tasks for damage in found[number]]


def find_tasks(manifest: Manifest, **checks: Any) -> dict[int, Task]:
    """Return the shards to check, by number; ``checks`` are the last fields of a `Task`."""
    tasks = {}
    view, manifest = manifest, manifest.whole
    for number in range(len(manifest.counts)):
        if view is not manifest and not view.counts[number]:
            continue  # a view has no sample of this shard
        part, _ = manifest.part(number)
        tasks[number] = Task(
            manifest.shown_name(number), manifest.location(number), manifest.shard(number),
            part.base, part.client_options,
            fingerprint=part.fingerprint, key_rule=part.key_rule, **checks,
        )  # fmt: skip
    return tasks


def check(task: Task, number: int = 0) -> list[Damage]:
    """Return all damage of one shard."""
    if not storage.is_remote(task.location):
        path = storage.local_path(task.location)
        problems = _check(path, task)
    else:
        with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
            path = Path(folder) / storage.split(task.location)[1]
            try:
                is_known = _fetch(task, path)
                problems = [one for one in _check(path, task) if is_known or one[0] != "index"]
            except NotFoundError:
                problems = [("tar", "is not there: upload it again")]
            except StorageError as error:
                problems = [("tar", f"cannot be fetched: {error}")]
    return [Damage(task.name, problem, part, number) for part, problem in problems]


def _fetch(task: Task, path: Path) -> bool:
    """Download a shard and its index; return false if a signed URL cannot tell whether there is an index."""
    storage.fetch(task.location, path, task.options)
    try:
        sidecar = storage.read(storage.beside(task.location, shard_index.SUFFIX), task.options)
        shard_index.beside(path).write_bytes(sidecar)
    except FileNotFoundError:
        pass
    except StorageError as error:
        if "?" in task.location and error.kind not in storage.PASSING:  # signed, which is for the shard alone
            return False
        raise
    return True


def index_path(path: Path, task: Task) -> Path:
    """Return the path of a local tar's index: beside the tar, or else beside the index.json that lists it."""
    beside = shard_index.beside(path)
    if beside.exists() or storage.is_remote(task.folder):
        return beside
    elsewhere = storage.local_path(task.folder) / shard_index.index_name(task.location, task.folder)
    return elsewhere if elsewhere.exists() else beside


def _check(path: Path, task: Task) -> list[tuple[Part, str]]:
    """Return the problems of a local shard, its index and its members."""
    listed, sidecar = task.listed, index_path(path, task)
    problems: list[tuple[Part, str]] = []
    scanned, digest = None, ""
    try:
        size = regular(path).st_size
        if listed.size >= 0 and size != listed.size:
            how = "short of" if size < listed.size else "longer than"
            gap = f"is {abs(size - listed.size):,} bytes {how} what index.json gives ({listed.size:,})"
            problems.append(("tar", f"{gap}: {_AGAIN}"))
        try:
            scanned = scan_local.scan_shard(path, tar_size=listed.tar_size, skip=skips(sidecar), key_rule=task.key_rule)
            digest = scanned.file.sha256
            if scanned.num_samples != listed.num_samples:
                counts = f"{scanned.num_samples:,} samples, not the {listed.num_samples:,} of index.json"
                problems.append(("tar", f"holds {counts}"))
        except ShardDamagedError as error:
            problems.append(
                ("tar", str(error).removeprefix("shard ").removeprefix(f"{path}").removeprefix(":").strip())
            )
            digest = sha256(path)
        if listed.sha256 and digest != listed.sha256:
            digests = f"({digest[:12]}..., not {listed.sha256[:12]}...)"
            problems.append(("tar", f"does not have the SHA-256 digest that index.json gives {digests}: {_AGAIN}"))
        if scanned is not None and (task.deep or task.fields is not None):
            with scan_local.decompressed(path, tar_size=scanned.size) as tar:
                problems += [("member", problem) for problem in _check_members(tar, scanned, task)]
    except FileNotFoundError:
        problems.append(("tar", "is not there: fetch it, or pack again, which writes what is missing"))
    except ShardDamagedError as error:
        problems.append(("tar", str(error).removeprefix(f"shard {path} ")))
    except OSError as error:
        if isinstance(error, DestinationError) or error.errno in _NOT_OF_THE_SHARD:
            raise
        problems.append(("tar", f"cannot be read: {error.strerror or error}"))
    problem = _check_index(sidecar, listed, scanned)
    return [*problems, ("index", problem)] if problem else problems


def skips(sidecar: Path) -> bool:
    """Return whether a shard was indexed with samples left out; an index that cannot be read is damage of its own."""
    try:
        return bool(shard_index.load(sidecar).left_out)
    except (OSError, IndexFormatError):
        return False


def _check_members(path: Path, index: ShardIndex, task: Task) -> list[str]:
    """Check the samples of a whole shard; return the first problems, and add all to the quarantine file.

    Members with extensions that no codec reads are skipped; no code in a member is run.

    Raises `SampleError` if a package that a codec needs is missing.
    """
    samples = SampleCheck(task.fields, decode=task.deep)
    expansion = Expansion(index.file.size)
    bad: dict[str, BadEntry] = {}
    problems: list[str] = []
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for sample in range(index.num_samples):
            members, key, first = index.members(sample), index.key(sample), int(index.sample_starts[sample])

            def read(number: int, members: list[tuple[str, int, int]] = members) -> bytes:
                _, offset, size = members[number]
                return content[offset : offset + size]

            def unzip(number: int, first: int = first) -> Any:
                return functools.partial(expansion.unzip, first + number)

            layout, sizes = tuple(extension.lower() for extension, *_ in members), [size for *_, size in members]
            for field, number, reason in samples.problems(layout, sizes, read, unzip):
                problem = f"holds sample {key!r}, which {reason}"
                if number != ABSENT:
                    extension, offset, size = members[number]
                    what = f", which {reason}" if size else ", which is empty"
                    problem = f"holds {key}.{extension} at byte {offset:,}{what}"
                problems.append(problem)
                entry = BadEntry(key, field=field, reason=reason, shard=task.name, fingerprint=task.fingerprint)
                bad.setdefault(key, entry)
    if task.quarantine:
        Quarantine(task.quarantine).add(bad.values())
    more = [f"holds {len(problems) - _NAMED:,} more members that fail"] if len(problems) > _NAMED else []
    return problems[:_NAMED] + more


def _check_index(sidecar: Path, listed: Shard, scanned: ShardIndex | None) -> str:
    """Return the problem of a shard's index; an empty string if it has no problem."""
    try:
        known = shard_index.load(sidecar)
    except FileNotFoundError:
        return f"has no index {sidecar.name} beside it: run `wdsdist index`, or pack again"
    except IndexFormatError as error:
        return str(error)
    except OSError as error:
        return f"has an index that cannot be read ({error.strerror or error})"
    if scanned is not None:
        differing = _differences(known, scanned)
        if differing:
            return (
                f"has an index, {sidecar.name}, that disagrees with the tar in {', '.join(differing)}: delete the one "
                f"that is wrong, then pack or run `wdsdist index` again"
            )
    elif listed.sha256 not in ("", known.file.sha256, known.sha256) or known.num_samples != listed.num_samples:
        return f"has an index, {sidecar.name}, that disagrees with index.json: fetch or pack both again"
    return ""


def _differences(known: ShardIndex, scanned: ShardIndex) -> list[str]:
    """Return the names of the parts in which two indexes of one tar differ."""

    def differ(*names: str) -> bool:
        return not all(np.array_equal(getattr(known, name), getattr(scanned, name)) for name in names)

    members = known.extensions != scanned.extensions or differ("sample_starts", "extension_ids", "offsets", "sizes")
    differences = {
        "size": known.size != scanned.size,
        "digest": known.sha256 and known.sha256 != scanned.sha256,  # one made of headers alone has none
        "compressed file": scanned.stored and known.stored != scanned.stored,
        "keys": differ("key_starts", "key_bytes"),
        "members": members,
        "checksums of members": not members and known.checksums is not None and differ("checksums"),
    }
    return [name for name, is_different in differences.items() if is_different]
