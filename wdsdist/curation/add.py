"""Add columns to a data set: made from its shards, several at once and resumably, or joined from tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.files import atomic_write, locked
from wdsdist._util.pools import Carried, completed, pool
from wdsdist._util.validation import check_callable, check_integer, check_path, hint
from wdsdist.curation import arrays, column_file
from wdsdist.curation.column_file import StoredColumn
from wdsdist.curation.columns import names, unknown
from wdsdist.curation.fields import Field, Values, parsed, read
from wdsdist.curation.join import Join, JoinReport, Tables
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError, DestinationError, WdsdistError
from wdsdist.shards.progress import Report, ShardsProgress
from wdsdist.shards.shard_indexes import extensions_in

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_WORK = ".unfinished"
"""Folder with columns that are not complete, and the columns of single shards; a killed run leaves it."""
_LOCK = ".wdsdist-columns.lock"
_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class Added:
    """What adding columns did."""

    folder: Path
    columns: tuple[StoredColumn, ...]
    joins: tuple[JoinReport, ...] = ()


def add_columns(
    manifest: Manifest,
    *,
    fields: Sequence[str] = (),
    probe: Sequence[str] = (),
    join: Tables | None = None,
    on: str | Mapping[str, str] = "key",
    only: Collection[str] | None = None,
    replace: bool = False,
    output: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[ShardsProgress], None] | None = None,
) -> Added:
    """Add columns to a data set, or refresh those that it has; see `Manifest.add_columns`."""
    check_callable("progress", progress)
    if workers is not None:
        check_integer("workers", workers, 1)
    data, joins = manifest.whole, list[Join]()
    requested = parsed(fields, probe)
    if join is not None:
        joins = [Join.of(data, join, on, only, storage_options, "replace" if replace else "error")]
    elif not requested:
        requested, joins = _recorded(data)
    for own in {join.on[0] for join in joins} - {field.name for field in requested} - set(names(data)):
        requested += parsed([own], [])
    folder = None if output is None else check_path("output", output)
    with making(data, requested, folder, workers=workers, progress=progress, replace=replace) as work:
        reports, added = [], [field.name for field in requested]
        for each in joins:
            report, columns = each.write(work)
            reports.append(report)
            added += columns
    stored = (column_file.load(data, name) for name in dict.fromkeys(added))
    return Added(work.parent, tuple(column for column in stored if column is not None), tuple(reports))


def warn(added: Added) -> None:
    """Log what people should know of columns that were added."""
    for column in added.columns:
        if column.num_failed:
            _log.warning(
                "%s: the members of %s samples cannot be read, and have no value, such as %s",
                column.name, f"{column.num_failed:,}", column.first_failed,
            )  # fmt: skip
        elif column.count()[0] == 0:
            _log.warning("%s: no sample has a value", column.name)
    for report in added.joins:
        is_partial = report.rows_unmatched or report.samples_unmatched or report.rows_repeated
        _log.log(logging.WARNING if is_partial else logging.INFO, "joined %s", report)


def _recorded(data: Manifest) -> tuple[list[Field], list[Join]]:
    """Return what made the columns that lack shards, for a call that names no column: it refreshes them.

    Values that are there stay. So a join that replaced others comes before them, the last one first.
    """
    listed = column_file.names(data)
    if not listed:
        raise ArgumentError("the data set has no columns to refresh: say which to add, by fields, probe or join")
    made: dict[str, list[str]] = {"field": [], "probe": []}
    joined: dict[str, list[str]] = {}
    for stored in filter(None, (column_file.load_or_warn(data, name) for name in listed)):
        if not stored.is_covered.all():
            for kind in made.keys() & stored.made_by.keys():
                made[kind].append(stored.made_by[kind])
            for record in stored.made_by.get("joins", ()):
                joined.setdefault(json.dumps(record), []).append(stored.name)
    records = [(json.loads(string), columns) for string, columns in joined.items()]
    replacing = [pair for pair in reversed(records) if pair[0]["replace"]]
    others = [pair for pair in records if not pair[0]["replace"]]
    return parsed(made["field"], made["probe"]), [
        Join.of(data, record["tables"], dict([record["on"]]), columns, None, "keep")
        for record, columns in (*replacing, *others)
    ]


@contextlib.contextmanager
def making(
    data: Manifest,
    requested: Sequence[Field],
    output: Path | None = None,
    *,
    workers: int | None = None,
    progress: Report = None,
    replace: bool = False,
) -> Iterator[Path]:
    """Make columns from members, and give the folder that holds them; leaving the block adds all columns in it.

    An exception in the block adds none.

    Raises `ArgumentError` for a column of a member that no sample has, and for a part of a data set: its columns would
    replace the columns of all.
    """
    if len(data.data_sets) != 1:
        raise ArgumentError("columns belong to one data set: add them to each data set before they are concatenated")
    extensions = extensions_in(data) if requested else []
    for field in requested:
        if extensions and field.reading(extensions) is None:
            member = field.name.partition(".")[0]
            if field.name in ("key", member):
                raise unknown(data, field.name)
            raise ArgumentError(
                f"the column {field.name!r} is of a member that no sample has: {hint(member, extensions, 'they have')}"
            )
    listed = 0
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        listed = len(json.loads(storage.read(data.origin, data.client_options))["shardlist"]) if data.origin else 0
    if listed > len(data.counts):
        raise ArgumentError(
            f"these are {len(data.counts):,} of the {listed:,} shards of {storage.shown(data.origin)}: open that, "
            f"and add columns to all of it"
        )

    def refuse() -> None:
        raise DestinationError("another process is adding columns to this data set: wait until it is done")

    try:
        folder = column_file.prepare(data, output)
        work = folder / _WORK
        with locked(folder / _LOCK, on_wait=refuse, optional=True):
            work.mkdir(exist_ok=True)
            if work.is_symlink():
                raise DestinationError(f"{work} is a link: remove it")
            try:
                _remove_columns(work)  # of a call that was killed
                _make(data, requested, work, workers, progress, replace=replace)
                yield work
                for path in [*work.glob(f"*{column_file.SUFFIX}")]:
                    path.replace(folder / path.name)
                shutil.rmtree(work)
            finally:
                if work.exists():
                    _remove_columns(work)
                    with contextlib.suppress(OSError):  # the columns of single shards stay for the next call
                        work.rmdir()
    except OSError as error:
        if isinstance(error, WdsdistError):
            raise
        location = storage.shown(column_file.folders(data)[0] if output is None else str(output))
        raise DestinationError(
            f"columns cannot be written to {location} ({error.strerror or error}): name another folder with output="
        ) from error


def _remove_columns(work: Path) -> None:
    for path in work.glob(f"*{column_file.SUFFIX}"):
        path.unlink()


class _Job(NamedTuple):
    """Columns that are made from members, shard by shard, into files of a folder."""

    data: Manifest
    fields: tuple[Field, ...]
    folder: Path
    ids: npt.NDArray[np.uint64]

    def path(self, shard: int) -> Path:
        """Return the file with the columns of one shard."""
        recipe = hashlib.sha256(json.dumps(self.fields).encode()).hexdigest()[:16]
        return self.folder / f"{int(self.ids[shard]):016x}-{recipe}"

    def column(self, shard: int, place: int) -> Values:
        """Return a column of one shard from its file."""
        pa = pyarrow()
        file = pa.ipc.open_file(pa.memory_map(os.fspath(self.path(shard))))
        return Values(file.get_batch(0).column(place), *json.loads(file.schema.metadata[b"failed"])[place])


def _make_shard(carried: Carried[_Job], shard: int) -> None:
    """Read the columns of one shard, and write their file."""
    pa, job = pyarrow(), carried.value
    made = read(job.data, shard, job.fields)
    columns = [made[field.name] for field in job.fields]
    failed = [
        [each.num_failed, f"{job.data.shown_name(shard)}: {each.first_failed}" if each.num_failed else ""]
        for each in columns
    ]
    batch = pa.record_batch([each.values for each in columns], names=[field.name for field in job.fields])
    batch = batch.replace_schema_metadata({"failed": json.dumps(failed)})
    with atomic_write(job.path(shard)) as stream, pa.ipc.new_file(stream, batch.schema) as writer:
        writer.write_batch(batch)


def _make(
    data: Manifest, requested: Sequence[Field], work: Path, workers: int | None, progress: Report, *, replace: bool
) -> None:
    """Make columns from the shards that they do not cover yet; an earlier call may have left some of their files."""
    known = {field: _known(data, field, replace=replace) for field in requested}
    none = np.zeros(len(data.counts), np.bool_)
    covered = {field: none if stored is None else stored.is_covered for field, stored in known.items()}
    fields = tuple(field for field in requested if known[field] is None or not covered[field].all())
    if not fields:
        return
    job = _Job(data, fields, work, column_file.shard_ids(data))
    shards = np.flatnonzero(~np.all([covered[field] for field in fields], axis=0)).tolist()
    done = [shard for shard in shards if job.path(shard).exists()]
    left = sorted(set(shards).difference(done))

    def report() -> None:
        if progress and shards:
            sizes = data.sizes.clip(0)
            in_bytes, in_samples = (int(sizes[done].sum()), int(sizes[shards].sum())), int(data.counts[done].sum())
            progress(ShardsProgress(len(done), len(shards), *in_bytes, in_samples))

    report()
    if left:
        carried = Carried(job)
        is_remote = any(storage.is_remote(data.location(shard)) for shard in left)
        with pool(workers, len(left), remote=is_remote) as executor:
            futures = {executor.submit(_make_shard, carried, shard): shard for shard in left}
            for future in completed(futures):
                future.result()
                done.append(futures[future])
                report()
    for place, field in enumerate(fields):
        stored = known[field]
        made_by: dict[str, Any] = {field.kind: field.name}
        kinds, num_failed, first_failed = set(), 0, ""
        if stored is not None:
            kinds, num_failed, first_failed = {stored.type}, stored.num_failed, stored.first_failed
            made_by |= {name: value for name, value in stored.made_by.items() if name == "joins"}
        for shard in np.flatnonzero(~covered[field]).tolist():
            values, failed, first = job.column(shard, place)
            kinds.add(values.type)
            num_failed, first_failed = num_failed + failed, first_failed or first
        parts = (
            stored.read(shard) if stored is not None and is_covered else job.column(shard, place).values
            for shard, is_covered in enumerate(covered[field].tolist())
        )
        kind = arrays.common_type(kinds)
        column_file.write(data, work, field.name, kind, made_by, parts, (num_failed, first_failed))


def _known(data: Manifest, field: Field, *, replace: bool) -> StoredColumn | None:
    """Return the stored column if it was made in the same way; the values of another one would be dropped."""
    stored = column_file.load_or_warn(data, field.name)
    if stored is None or stored.made_by.get(field.kind) == field.name:
        return stored
    if stored.made_by.get("joins") and not replace:
        raise ArgumentError(f"the column {field.name!r} has values that were joined: pass replace=True to drop them")
    return None
