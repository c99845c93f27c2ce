"""Verify the shards of a data set against their indexes, byte for byte, and repair them."""

from __future__ import annotations

import errno
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wdsdist import storage
from wdsdist._util.files import lies_in, mapped, sha256
from wdsdist._util.host import temporary_dir
from wdsdist._util.pools import Carried, pool
from wdsdist._util.validation import check_integer, counted
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    IndexFormatError,
    NotFoundError,
    ShardDamagedError,
    StorageError,
    WdsdistError,
    given,
)
from wdsdist.samples.bad_samples import checked_path
from wdsdist.samples.fields import ABSENT, Fields, SampleCheck
from wdsdist.shards import index as shard_index
from wdsdist.shards import scan
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest, Shard
from wdsdist.shards.open import Location, Shards
from wdsdist.shards.open import open as open_shards
from wdsdist.shards.progress import ShardsProgress, reported
from wdsdist.shards.quarantine import BadEntry, Quarantine
from wdsdist.shards.shard_indexes import regular
from wdsdist.shards.source import OpenShard
from wdsdist.storage import engine

Part = Literal["tar", "index", "member"]

_AGAIN = "fetch it again, or delete it and pack again"

_NOT_OF_THE_SHARD = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""Error numbers for a lack of this machine or process, which is not damage."""

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
class Repair:
    """The result of the repair of one shard."""

    shard: str
    """Its name in the manifest."""
    done: bool
    """Whether all damage of the shard is repaired."""
    what: str
    """What was done, or why the shard could not be repaired."""


@dataclass(frozen=True, slots=True)
class _Check:
    """What to check of the shards of a data set."""

    manifest: Manifest
    deep: bool = False
    fields: Fields | None = None
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
        workers: processes that read; by default one per core.
        storage_options: passed to fsspec for the stores that ``shards`` names, as `wdsdist.open` takes them.
        progress: called with a ``ShardsProgress`` before the first shard and after each shard.

    Raises what `wdsdist.open` raises if there is no data set, and `DestinationError` or `StorageError` if there is no
    space here to decompress or fetch a shard, which is not damage.

    >>> import tempfile, wdsdist
    >>> folder = Path(tempfile.mkdtemp()) / "shards"
    >>> manifest = wdsdist.pack([{"__key__": "0001", "txt": "hello"}], folder)
    >>> verify(manifest)
    []
    >>> (folder / "shard-000000.tar").unlink()
    >>> verify(manifest)[0].problem
    'is not there: fetch it, or pack again, which writes what is missing'
    """
    if workers is not None:
        check_integer("workers", workers, 1)
    Fields(fields)
    if quarantine is not None and fields is None and not deep:
        raise ArgumentError(
            f"quarantine is {str(quarantine)!r}, but samples are not read: pass {given('deep')} or {given('fields')}"
        )
    manifest = open_shards(shards, storage_options=storage_options)
    named = None if fields is None else Fields(fields, raw_images=manifest.has_raw_images)
    whole = manifest.whole
    numbers = np.flatnonzero((manifest.counts > 0) | (manifest is whole)).tolist()  # a view may have none of a shard
    check = Carried(_Check(whole, deep, named, "" if quarantine is None else checked_path(quarantine)))
    damage = dict[int, list[Damage]]()

    def report(state: ShardsProgress) -> None:
        if progress:
            progress(replace(state, damaged=sum(map(bool, damage.values()))))

    with pool(workers, len(numbers)) as executor:
        futures = {executor.submit(_check, check, number): number for number in numbers}
        damage.update(reported(futures, whole.sizes, whole.counts, report))
    return [problem for number in numbers for problem in damage[number]]


def _check(carried: Carried[_Check], number: int) -> list[Damage]:
    """Return all damage of one shard, which is fetched first if it is remote."""
    check = carried.value
    location = check.manifest.location(number)
    if not storage.is_remote(location):
        return _problems(storage.local_path(location), check, number)
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        path = Path(folder) / storage.split(location)[1]
        try:
            engine.fetch(location, path, check.manifest.part(number)[0].client_options)
            return _problems(path, check, number)
        except (NotFoundError, StorageError) as error:
            is_missing = isinstance(error, NotFoundError)
            problem = "is not there: upload it again" if is_missing else f"cannot be fetched: {error}"
            return [Damage(check.manifest.shown_name(number), problem, number=number)]


def _stored(manifest: Manifest, number: int) -> tuple[ShardIndex | None, str, str]:
    """Load the index of a shard: from below the index.json that lists it, or else from beside the shard.

    Returns the index, or else the problem with it; and where it lies, or should lie.
    """
    location, data = manifest.location(number), manifest.part(number)[0]
    is_remote = storage.is_remote(location)
    places = [place for place in shard_index.places(location, data.base) if is_remote or not storage.is_remote(place)]
    for place in places:
        problem = ""
        try:
            return shard_index.load(storage.read(place, data.client_options), storage.shown(place)), "", place
        except FileNotFoundError:
            continue
        except (IndexFormatError, OSError) as error:
            # A URL that is signed for the shard alone cannot tell whether there is an index.
            if "?" not in location or getattr(error, "kind", "") in storage.PASSING:
                problem = f"has an index that cannot be read: {getattr(error, 'strerror', None) or error}"
        return None, problem, place
    name = storage.split(places[-1])[1]
    return None, f"has no index {name} beside it: run `wdsdist index`, or pack again", places[-1]


def _problems(path: Path, check: _Check, number: int) -> list[Damage]:
    """Return the damage of a local shard, its index and its members."""
    listed, data, name = check.manifest.shard(number), check.manifest.part(number)[0], check.manifest.shown_name(number)
    (known, index_problem, place), scanned, problems = _stored(check.manifest, number), None, list[Damage]()

    def add(problem: str, part: Part = "tar") -> None:
        problems.append(Damage(name, problem, part, number))

    try:
        size = regular(path).st_size
        if listed.size >= 0 and size != listed.size:
            how = "short of" if size < listed.size else "longer than"
            add(
                f"is {counted(abs(size - listed.size), 'byte')} {how} what index.json gives ({listed.size:,}): {_AGAIN}"
            )
        try:
            skip = known is not None and bool(known.left_out)
            scanned = scan.scan_shard(path, tar_size=listed.tar_size, skip=skip, key_rule=data.key_rule)
            digest = scanned.file.sha256
            if scanned.num_samples != listed.num_samples:
                add(f"holds {scanned.num_samples:,} samples, not the {listed.num_samples:,} of index.json")
        except ShardDamagedError as error:
            add(str(error).removeprefix("shard ").removeprefix(f"{path}").removeprefix(":").strip())
            digest = sha256(path)
        if listed.sha256 and digest != listed.sha256:
            digests = f"({digest[:12]}..., not {listed.sha256[:12]}...)"
            add(f"does not have the SHA-256 digest that index.json gives {digests}: {_AGAIN}")
        if scanned is not None and (check.deep or check.fields is not None):
            with scan.decompressed(path, tar_size=scanned.size) as tar:
                failing, entries = _check_members(tar, scanned, check, number)
            for problem in failing:
                add(problem, "member")
            if check.quarantine:
                Quarantine(check.quarantine).add(
                    BadEntry(key, field=field, reason=reason, shard=name, fingerprint=data.fingerprint)
                    for key, (field, reason) in entries.items()
                )
    except FileNotFoundError:
        add("is not there: fetch it, or pack again, which writes what is missing")
    except ShardDamagedError as error:
        add(str(error).removeprefix(f"shard {path} "))
    except OSError as error:
        if isinstance(error, DestinationError) or error.errno in _NOT_OF_THE_SHARD:
            raise
        add(f"cannot be read: {error.strerror or error}")
    if known is not None:
        index_problem = _disagreement(known, listed, scanned, storage.split(place)[1])
    if index_problem:
        add(index_problem, "index")
    return problems


def _check_members(
    path: Path, index: ShardIndex, check: _Check, number: int
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Check the samples of a whole shard; return the first problems, and the first bad field of each key with a reason.

    Members with extensions that no codec reads are skipped; no code in a member is run.

    Raises `SampleError` if a package that a codec needs is missing.
    """
    samples = SampleCheck(check.fields, decode=check.deep)
    shard = OpenShard(check.manifest, number, index, mapped(path))
    bad: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    for sample in range(index.num_samples):
        members, key = index.members(sample), index.key(sample)
        sizes, unzip = [size for *_, size in members], functools.partial(shard.unzip, sample)

        def read(place: int, sample: int = sample) -> bytes:
            return bytes(shard.member(sample, place))

        for field, place, reason in samples.problems(shard.layout(sample), sizes, read, unzip):
            problem = f"holds sample {key!r}, which {reason}"
            if place != ABSENT:
                extension, offset, size = members[place]
                what = f": {reason}" if size else ", which is empty"
                problem = f"holds {key}.{extension} at byte {offset:,}{what}"
            problems.append(problem)
            bad.setdefault(key, (field, reason))
    more = [f"holds {len(problems) - _NAMED:,} more members that fail"] if len(problems) > _NAMED else []
    return problems[:_NAMED] + more, bad


def _disagreement(known: ShardIndex, listed: Shard, scanned: ShardIndex | None, name: str) -> str:
    """Return how an index differs from the tar, or else from index.json; an empty string if it agrees."""
    if scanned is None:
        is_other = listed.sha256 not in ("", known.file.sha256, known.sha256) or known.num_samples != listed.num_samples
        return f"has an index, {name}, that disagrees with index.json: fetch or pack both again" * is_other

    def differ(*names: str) -> bool:
        return not all(np.array_equal(getattr(known, name), getattr(scanned, name)) for name in names)

    members = differ("extensions", "sample_starts", "extension_ids", "offsets", "sizes")
    differences = {
        "size": differ("size"),
        "digest": known.sha256 and differ("sha256"),  # an index made of headers alone has no digest
        "compressed file": scanned.stored and differ("stored"),
        "keys": differ("key_starts", "key_bytes"),
        "members": members,
        "checksums of members": not members and known.checksums is not None and differ("checksums"),
    }
    parts = ", ".join(part for part, is_different in differences.items() if is_different)
    return parts and (
        f"has an index, {name}, that disagrees with the tar in {parts}: delete the one that is wrong, then pack or run "
        f"`wdsdist index` again"
    )


def repair(
    shards: Shards,
    damage: Iterable[Damage],
    *,
    source: Location | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Repair]:
    """Repair the damage that `wdsdist.verify` found, as far as possible, and return the result for each shard.

    An index that is missing or wrong is rebuilt from a whole tar. A damaged tar is replaced by a copy from ``source``,
    but only if the copy agrees with ``index.json``. Nothing else changes a tar. A member that does not decode is the
    same in every copy, so it cannot be repaired.

    Args:
        shards: as passed to `wdsdist.verify`.
        damage: its result.
        source: a folder or URL with whole shards of the same names.
        storage_options: as passed to `wdsdist.verify`. A ``source`` in another store gets them only if they name that
            store; if ``shards`` is local, ``source`` gets them.

    >>> import tempfile, wdsdist
    >>> folder = Path(tempfile.mkdtemp()) / "shards"
    >>> manifest = wdsdist.pack([{"__key__": "0001", "txt": "hello"}], folder)
    >>> (folder / "shard-000000.tar.wdsindex").unlink()
    >>> repair(manifest, verify(manifest))
    [Repair(shard='shard-000000.tar', done=True, what='indexed again')]
    """
    manifest = open_shards(shards, storage_options=storage_options)
    bound = manifest.client_options or storage.named(None, [])
    if source is not None and not bound.stores:
        options = storage.named(storage_options or bound.given, [os.fspath(source)])
        manifest = manifest.with_source(client_options=options)
    by_shard: dict[int, set[str]] = {}
    for problem in damage:
        by_shard.setdefault(problem.number, set()).add(problem.part)
    manifest = manifest.whole
    check, repairs = Carried(_Check(manifest)), list[Repair]()
    for number, parts in by_shard.items():
        name = manifest.shown_name(number)
        try:
            done = _repaired(manifest, number, parts, source)
            if left := _check(check, number):
                raise WdsdistError(f"{done}, but it {left[0].problem}")
            if "member" in parts:
                raise WdsdistError("some members do not decode, and were packed so: correct the files, and pack again")
            repairs.append(Repair(name, True, done))
        except (WdsdistError, OSError) as error:
            repairs.append(Repair(name, False, str(error)))
    return repairs


def _repaired(manifest: Manifest, number: int, parts: set[str], source: Location | None) -> str:
    """Repair one shard: rebuild its index or replace its tar; return a description of the repair."""
    location, data = manifest.location(number), manifest.part(number)[0]
    if storage.is_remote(location):
        raise WdsdistError("it lies in a store: upload a whole copy of it there")
    path = storage.local_path(location)
    # A shard that the user did not name is repaired only if it lies in the folder of the data set.
    if not data.sources[0].is_named and (
        storage.is_remote(data.base) or not lies_in(path, storage.local_path(data.base))
    ):
        raise WdsdistError(
            f"it lies outside {storage.shown(data.base)}, the folder of the data set, or behind a link out of it: "
            f"repair it there"
        )
    known, _, place = _stored(manifest, number)
    done = "indexed again"
    if "tar" in parts:
        if source is None:
            raise WdsdistError(
                "there is nothing to fetch it from: name a folder or URL of intact copies by `--source`, or pack again"
            )
        whole = storage.join(storage.normalise(source), path.name)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
            copy = Path(folder) / path.name
            engine.fetch(whole, copy, data.client_options)
            for problem in _problems(copy, _Check(manifest), number):
                if problem.part == "tar":
                    raise ShardDamagedError(
                        f"{storage.shown(whole)} is not the shard that was packed: it {problem.problem}"
                    )
            with copy.open("rb") as stream:
                os.fsync(stream.fileno())
            # The old index goes first, so that no process can pair it with the new tar.
            shard_index.beside(path).unlink(missing_ok=True)
            copy.replace(path)
        storage.delete(place)
        done = f"replaced by {storage.shown(whole)}"
    elif "index" not in parts:
        return "nothing done"
    skip = known is not None and bool(known.left_out)
    index = scan.scan_shard(path, skip=skip, key_rule=data.key_rule)
    storage.put(place, shard_index.dumps(index))
    return done
