"""Add columns to a data set: made from its shards, some at once and resumably, or joined from tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist import storage
from wdsdist._util import job_lock
from wdsdist._util.array_types import Int64s
from wdsdist._util.pools import Carried, completed, pool
from wdsdist._util.validation import check_callable, check_integer, check_path, hint
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError
from wdsdist.shards.columns import column_file, column_spec, from_index, from_members, join, read
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.column_file import StoredColumn
from wdsdist.shards.columns.column_spec import ColumnSpec
from wdsdist.shards.columns.join import JoinReport, Tables
from wdsdist.shards.progress import Report, ShardsProgress
from wdsdist.shards.shard_indexes import shard_index

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_WORK = ".unfinished"
"""The folder in that of the columns with what was made of single shards; a run that was killed leaves it."""
_LOCK = ".wdsdist-columns.lock"
_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column that a data set has now."""

    name: str
    kind: str
    num_samples: int
    num_missing: int
    num_failed: int
    """Samples, of those missing, whose member could not be read as asked for."""
    first_failed: str
    """The first of them, and why."""
    num_shards_made: int
    """Shards that its values were read from now; for the others they were there."""


@dataclass(frozen=True, slots=True)
class Added:
    """What adding columns did."""

    folder: Path
    """Where their files lie."""
    columns: tuple[AddedColumn, ...]
    join: JoinReport | None = None


def add_columns(
    manifest: Manifest,
    *,
    fields: Sequence[str] = (),
    probe: Sequence[str] = (),
    join_with: Tables | None = None,
    on: str | Mapping[str, str] = "key",
    only: Collection[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[ShardsProgress], None] | None = None,
) -> Added:
    """Add columns to a data set; see `Manifest.add_columns`."""
    check_callable("progress", progress)
    if workers is not None:
        check_integer("workers", workers, 1)
    data = manifest.whole
    if data.data_sets != (data,):
        raise ArgumentError("columns belong to one data set: add them to each of these before they are concatenated")
    keys = join.keys_of(on)
    specs = column_spec.parsed(fields, probe)
    if not specs and join_with is None:
        raise ArgumentError("say which columns: fields, probe or join (--field, --probe, --join)")
    if join_with is not None and keys[0] not in [*(spec.name for spec in specs), *read.names(data)]:
        specs += column_spec.parsed([keys[0]], [])
    _check_extensions(data, specs)
    _check_whole(data)
    listed: list[str] = []
    options = data.client_options
    if join_with is not None:
        listed, options = join.locations(join_with, options, storage_options)
    folder = column_file.prepare(data, None if output is None else check_path("output", output))

    def refuse() -> None:
        raise DestinationError(f"another process is adding columns in {folder}: wait until it is done")

    with job_lock.locked(folder / _LOCK, refuse):
        added = _make(data, specs, folder, workers, progress)
        report = None
        if listed:
            report, columns = join.read(data, listed, keys, only, options)
            added += _save_joined(data, columns, folder, listed, keys[0])
        return Added(folder, tuple(added), report)


def warn(added: Added) -> None:
    """Log what people should know of columns that were added."""
    for one in added.columns:
        if one.num_failed:
            _log.warning(
                "%s: the members of %s samples cannot be read, and have no value, such as %s",
                one.name, f"{one.num_failed:,}", one.first_failed,
            )  # fmt: skip
        elif one.num_samples and one.num_missing == one.num_samples:
            _log.warning("%s: no sample has a value", one.name)
    if added.join is not None:
        unmatched = added.join.rows_unmatched or added.join.samples_unmatched or added.join.rows_repeated
        _log.log(logging.WARNING if unmatched else logging.INFO, "joined %s", added.join)


def _check_extensions(data: Manifest, specs: Sequence[ColumnSpec]) -> None:
    """Raise `ArgumentError` for a column of members that no sample has, as far as ``index.json`` says."""
    noted = data.extra.get("fields")
    for spec in specs if isinstance(noted, list) else ():
        if spec.reading(extensions := [str(one) for one in noted or ()]) is None:
            member = spec.name.partition(".")[0]
            about = hint(member, extensions, "they have")
            raise ArgumentError(f"the column {spec.name!r} is of a member that no sample has: {about}")


def _check_whole(data: Manifest) -> None:
    """Raise `ArgumentError` for some of the shards of a data set: its columns would be replaced by those of a part."""
    if not data.origin:
        return
    try:
        listed = json.loads(storage.read(data.origin, data.client_options))["shardlist"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
    if len(listed) > len(data.counts):
        raise ArgumentError(
            f"these are {len(data.counts):,} of the {len(listed):,} shards of {storage.shown(data.origin)}: open that, "
            f"and add columns to all of it"
        )


def _make(
    data: Manifest, specs: Sequence[ColumnSpec], folder: Path, workers: int | None, progress: Report
) -> list[AddedColumn]:
    """Make columns from the shards that they do not cover yet."""
    known = {spec.name: _known(data, spec) for spec in specs}
    job = _Job(data, tuple(specs), folder / _WORK)
    wanted: dict[int, list[ColumnSpec]] = {}
    for spec in specs:
        stored = known[spec.name]
        for number in range(len(data.counts)) if stored is None else np.flatnonzero(~stored.is_covered).tolist():
            wanted.setdefault(number, []).append(spec)
    if wanted:
        with _errors_in(folder):
            job.work.mkdir(exist_ok=True)
            if job.work.is_symlink():
                raise DestinationError(f"{job.work} is a link: remove it")
    _run(job, wanted, workers, progress)
    added = []
    with _errors_in(folder):
        for spec in specs:
            added.append(_assembled(job, spec, known[spec.name], folder))
            for path in job.work.glob(f"*-{_hash_of(spec)}"):
                path.unlink()
        with contextlib.suppress(OSError):  # another call that was killed has left something there
            job.work.rmdir()
    return added


@dataclass(frozen=True, slots=True)
class _Job:
    """What the workers need."""

    data: Manifest
    specs: tuple[ColumnSpec, ...]
    work: Path

    def part(self, number: int, spec: ColumnSpec) -> Path:
        """Return the path of what is made of one shard for one column."""
        return self.work / f"{int(column_file.shard_ids(self.data)[number]):016x}-{_hash_of(spec)}"


def _hash_of(spec: ColumnSpec) -> str:
    return hashlib.sha256(json.dumps(spec.made_by, sort_keys=True).encode()).hexdigest()[:16]


def _known(data: Manifest, spec: ColumnSpec) -> StoredColumn | None:
    """Return what there is of a column, if it was made in the same way."""
    try:
        stored = column_file.load(data, spec.name)
    except IndexFormatError:
        return None  # of other samples, or damaged: made anew
    return stored if stored is not None and stored.made_by == spec.made_by else None


def _run(job: _Job, wanted: dict[int, list[ColumnSpec]], workers: int | None, progress: Report) -> None:
    """Make the parts of all shards, except those that an earlier run has left."""
    sizes = job.data.sizes.clip(0)
    numbers = [number for number, specs in wanted.items() if not all(job.part(number, spec).exists() for spec in specs)]
    total = int(sizes[list(wanted)].sum())
    kept = [number for number in wanted if number not in set(numbers)]
    done, samples = [len(kept), int(sizes[kept].sum())], int(job.data.counts[kept].sum())
    if progress and wanted:
        progress(ShardsProgress(done[0], len(wanted), done[1], total, samples))
    if not numbers:
        return
    carried = Carried(job)
    is_remote = any(storage.is_remote(job.data.location(number)) for number in range(len(job.data.counts)))
    with pool(workers, len(numbers), remote=is_remote) as executor:
        futures = {
            executor.submit(_make_part, carried, number, [job.specs.index(spec) for spec in wanted[number]]): number
            for number in numbers
        }
        for future in completed(futures):
            future.result()
            number = futures[future]
            done, samples = [done[0] + 1, done[1] + int(sizes[number])], samples + int(job.data.counts[number])
            if progress:
                progress(ShardsProgress(done[0], len(wanted), done[1], total, samples))


def _make_part(carried: Carried[_Job], number: int, chosen: Sequence[int]) -> None:
    """Make columns of one shard, and write each to its file in the work folder."""
    job = carried.value
    data, specs = job.data, [job.specs[place] for place in chosen]
    specs = [spec for spec in specs if not job.part(number, spec).exists()]
    name = data.shown_name(number)
    index = shard_index(data, number)
    data.check_count(number, index.num_samples, name)
    made = from_members.read(data.location(number), index, specs, data.client_options, name)
    for spec in specs:
        with _errors_in(job.work):
            column_file.save_part(job.part(number, spec), made[spec.name], name)


def _assembled(job: _Job, spec: ColumnSpec, stored: StoredColumn | None, folder: Path) -> AddedColumn:
    """Write the file of a column, from what there was of it and the parts that were made now."""
    data = job.data
    if stored is not None and stored.is_covered.all():
        return _added(spec.name, stored.column, stored.num_failed, stored.first_failed, 0)
    is_covered = np.zeros(len(data.counts), np.bool_) if stored is None else stored.is_covered
    num_failed = np.zeros(len(data.counts), np.int64)
    num_failed[is_covered] = 0 if stored is None else stored.num_failed
    first_failed = "" if stored is None else stored.first_failed
    parts: list[Column] = []
    end = 0
    for number, covered in enumerate(is_covered.tolist()):
        if stored is not None and covered:
            begin, end = end, end + int(data.counts[number])
            parts.append(stored.column.part(begin, end))
            continue
        made = column_file.load_part(job.part(number, spec))
        parts.append(made.column)
        num_failed[number] = made.num_failed
        first_failed = first_failed or made.first_failed
    column = Column.joined(parts)
    column_file.save(folder, spec.name, column, data, spec.made_by, num_failed=num_failed, first_failed=first_failed)
    return _added(spec.name, column, num_failed, first_failed, int((~is_covered).sum()))


def _added(name: str, column: Column, num_failed: Int64s, first_failed: str, num_shards_made: int) -> AddedColumn:
    missing = 0 if column.is_missing is None else int(column.is_missing.sum())
    return AddedColumn(name, column.kind, len(column), missing, int(num_failed.sum()), first_failed, num_shards_made)


def _save_joined(
    data: Manifest, columns: Iterator[tuple[str, Column]], folder: Path, tables: Sequence[str], on: str
) -> list[AddedColumn]:
    """Write columns that were joined; those of names that the shards' indexes have are left out."""
    label = storage.shown(tables[0]) + (f" and {len(tables) - 1:,} more" if len(tables) > 1 else "")
    added = []
    for name, column in columns:
        if from_index.is_free(name) or not name:
            _log.warning("the column %r of %s is left out: that is the name of what the shards say", name, label)
            continue
        with _errors_in(folder):
            column_file.save(folder, name, column, data, {"join": label, "on": on})
        added.append(_added(name, column, np.zeros(0, np.int64), "", len(data.counts)))
    return added


@contextlib.contextmanager
def _errors_in(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DestinationError(f"columns cannot be written to {folder} ({error.strerror or error})") from error
