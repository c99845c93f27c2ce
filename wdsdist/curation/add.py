"""Add columns to a data set: made from its shards, several at once and resumably, or joined from tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.files import atomic_write
from wdsdist._util.lock import locked
from wdsdist._util.pools import Carried, completed, pool
from wdsdist._util.validation import check_callable, check_integer, check_path, counted, hint
from wdsdist.curation import arrays, column_file
from wdsdist.curation.column_file import ShardColumn, StoredColumn
from wdsdist.curation.columns import names, unknown
from wdsdist.curation.fields import Field, parsed, read
from wdsdist.curation.join import JoinReport, Matches, Tables, keys_of, locations, opened
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError, WdsdistError
from wdsdist.shards.progress import Report, ShardsProgress
from wdsdist.shards.shard_indexes import extensions_in

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_WORK = ".unfinished"
"""Folder with the columns of single shards that are done; a run that was killed leaves it."""
_LOCK = ".wdsdist-columns.lock"
_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class Added:
    """What adding columns did."""

    folder: Path
    columns: tuple[StoredColumn, ...]
    joins: tuple[JoinReport, ...] = ()


class _Join(NamedTuple):
    """One join of tables to a data set."""

    tables: list[str]
    on: tuple[str, str]
    only: Collection[str] | None
    options: storage.StorageOptions
    other: Literal["error", "replace", "keep"]
    """What to do for a sample that has another value."""


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
    data = manifest.whole
    if len(data.data_sets) != 1:
        raise ArgumentError("columns belong to one data set: add them to each data set before they are concatenated")
    pyarrow("columns")
    wanted, joins = parsed(fields, probe), list[_Join]()
    if join is not None:
        joins = [_join_of(data, join, on, only, storage_options, "replace" if replace else "error")]
    elif not wanted:
        wanted, joins = _recorded(data)
    for own in {asked.on[0] for asked in joins} - {field.name for field in wanted} - set(names(data)):
        wanted += parsed([own], [])
    _check(data, wanted)
    folder = column_file.prepare(data, None if output is None else check_path("output", output))

    def refuse() -> None:
        raise DestinationError(f"another process is adding columns in {folder}: wait until it is done")

    with locked(folder / _LOCK, on_wait=refuse, optional=True):
        _make(data, wanted, folder, workers, progress, replace=replace)
        reports, columns = [], [field.name for field in wanted]
        for asked in joins:
            report, joined = _save_joined(data, asked, folder)
            reports.append(report)
            columns += joined
        stored = (column_file.load(data, name) for name in dict.fromkeys(columns))
        return Added(folder, tuple(column for column in stored if column is not None), tuple(reports))


def warn(added: Added) -> None:
    """Log what people should know of columns that were added."""
    for column in added.columns:
        if failed := int(column.num_failed.sum()):
            _log.warning(
                "%s: the members of %s samples cannot be read, and have no value, such as %s",
                column.name, f"{failed:,}", column.first_failed,
            )  # fmt: skip
        elif column.num_missing and column.num_missing == column.num_samples:
            _log.warning("%s: no sample has a value", column.name)
    for report in added.joins:
        is_partial = report.rows_unmatched or report.samples_unmatched or report.rows_repeated
        _log.log(logging.WARNING if is_partial else logging.INFO, "joined %s", report)


def _join_of(
    data: Manifest,
    tables: Tables,
    on: str | Mapping[str, str],
    only: Collection[str] | None,
    storage_options: Mapping[str, Any] | None,
    other: Literal["error", "replace", "keep"],
) -> _Join:
    keys, options = keys_of(on), data.client_options
    if storage_options is not None:
        listed = [tables] if isinstance(tables, (str, os.PathLike)) else list(tables)
        options = storage.named(storage_options, [storage.normalise(os.fspath(table)) for table in listed])
    return _Join(locations(tables, options), keys, only, options, other)


def _recorded(data: Manifest) -> tuple[list[Field], list[_Join]]:
    """Return what made the columns that lack shards, for a call that names no column: it refreshes them.

    Values that are there stay. So a join that replaced others comes before them, the last one first.
    """
    made: dict[str, list[str]] = {"field": [], "probe": []}
    replacing, others = dict[str, list[str]](), dict[str, list[str]]()
    listed = column_file.names(data)
    if not listed:
        raise ArgumentError("the data set has no columns to refresh: say which to add, by fields, probe or join")
    for name in listed:
        stored = _stored(data, name)
        if stored is None or stored.is_covered.all():
            continue
        for kind, recipes in made.items():
            recipes += [stored.made_by[kind]] if kind in stored.made_by else []
        for record in stored.made_by.get("joins", ()):
            (replacing if record["replace"] else others).setdefault(json.dumps(record), []).append(name)
    joins = []
    for string, columns in (*reversed(replacing.items()), *others.items()):
        record = json.loads(string)
        joins.append(_join_of(data, record["tables"], {record["on"][0]: record["on"][1]}, columns, None, "keep"))
    return parsed(made["field"], made["probe"]), joins


def _check(data: Manifest, wanted: Sequence[Field]) -> None:
    """Raise `ArgumentError` for a column of a member that no sample has, and for some of the shards of a data set.

    The columns of some shards would replace the columns of all.
    """
    extensions = extensions_in(data) if wanted else []
    for field in wanted:
        if extensions and field.reading(extensions) is None:
            member = field.name.partition(".")[0]
            if field.name in ("key", member):
                raise unknown(data, field.name)
            raise ArgumentError(
                f"the column {field.name!r} is of a member that no sample has: {hint(member, extensions, 'they have')}"
            )
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


@contextlib.contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """Give a folder for column files, which all come into ``folder`` at the end, or none."""
    with _errors_in(folder), tempfile.TemporaryDirectory(prefix=".wdsdist-", dir=folder) as staging:
        yield Path(staging)
        for path in Path(staging).iterdir():
            path.replace(folder / path.name)


# From members


@dataclass(frozen=True, slots=True)
class _Job:
    """Columns that are made from members, shard by shard, into files of a work folder."""

    data: Manifest
    fields: tuple[Field, ...]
    work: Path
    recipe: str
    """A hash of the columns."""

    def path(self, number: int) -> Path:
        """Return the file with the columns of one shard."""
        return self.work / f"{int(column_file.shard_ids(self.data)[number]):016x}-{self.recipe}"

    def make(self, number: int) -> None:
        """Read the columns of one shard, and write its file."""
        pa, made = pyarrow(), read(self.data, number, self.fields)
        columns = [made[field.name] for field in self.fields]
        notes = [
            [column.num_failed, f"{self.data.shown_name(number)}: {column.first_failed}" if column.num_failed else ""]
            for column in columns
        ]
        batch = pa.record_batch([column.values for column in columns], names=[field.name for field in self.fields])
        batch = batch.replace_schema_metadata({"failed": json.dumps(notes)})
        with (
            _errors_in(self.work),
            atomic_write(self.path(number)) as stream,
            pa.ipc.new_file(stream, batch.schema) as writer,
        ):
            writer.write_batch(batch)

    def column(self, number: int, place: int) -> ShardColumn:
        """Return a column of one shard from its file."""
        pa = pyarrow()
        file = pa.ipc.open_file(pa.memory_map(os.fspath(self.path(number))))
        num_failed, first_failed = json.loads(file.schema.metadata[b"failed"])[place]
        return ShardColumn(file.get_batch(0).column(place), num_failed, first_failed)


def _make(
    data: Manifest, wanted: Sequence[Field], folder: Path, workers: int | None, progress: Report, *, replace: bool
) -> None:
    """Make columns from the shards that they do not cover yet."""
    known = {field: _known(data, field, replace=replace) for field in wanted}
    none = np.zeros(len(data.counts), np.bool_)
    covered = {field: none if stored is None else stored.is_covered for field, stored in known.items()}
    fields = tuple(field for field in wanted if known[field] is None or not covered[field].all())
    if not fields:
        return
    recipe = hashlib.sha256(json.dumps([field.made_by for field in fields]).encode()).hexdigest()[:16]
    job = _Job(data, fields, folder / _WORK, recipe)
    with _errors_in(folder):
        job.work.mkdir(exist_ok=True)
        if job.work.is_symlink():
            raise DestinationError(f"{job.work} is a link: remove it")
    _run(job, np.flatnonzero(~np.all([covered[field] for field in fields], axis=0)), workers, progress)
    with _staged(folder) as staging:
        for place, field in enumerate(fields):
            stored, made_by = known[field], dict[str, Any](field.made_by)
            if stored is not None and "joins" in stored.made_by:
                made_by["joins"] = stored.made_by["joins"]
            shards = np.flatnonzero(~covered[field]).tolist()
            kinds = {job.column(shard, place).values.type for shard in shards} | ({stored.type} if stored else set())
            parts = (
                stored.part(shard) if stored is not None and is_covered else job.column(shard, place)
                for shard, is_covered in enumerate(covered[field].tolist())
            )
            column_file.write(data, staging, field.name, arrays.common_type(kinds), made_by, parts)
    for path in job.work.glob(f"*-{recipe}"):
        path.unlink()
    with contextlib.suppress(OSError):  # another call that was killed has left something there
        job.work.rmdir()


def _known(data: Manifest, field: Field, *, replace: bool) -> StoredColumn | None:
    """Return the stored column if it was made in the same way; the values of another one would be dropped."""
    try:
        stored = column_file.load(data, field.name)
    except IndexFormatError:
        return None  # of other samples, or damaged: made again
    if stored is None or field.made_by.items() <= stored.made_by.items():
        return stored
    if stored.made_by.get("joins") and not replace:
        raise ArgumentError(f"the column {field.name!r} has values that were joined: pass replace=True to drop them")
    return None


def _run(job: _Job, wanted: npt.NDArray[np.int64], workers: int | None, progress: Report) -> None:
    """Make the files of some shards, except those that an earlier run has left."""
    sizes, counts = job.data.sizes.clip(0), job.data.counts
    is_left = np.array([job.path(number).exists() for number in wanted.tolist()], bool)
    done, numbers = wanted[is_left].tolist(), wanted[~is_left].tolist()

    def report() -> None:
        if progress and len(wanted):
            progress(
                ShardsProgress(
                    len(done), len(wanted), int(sizes[done].sum()), int(sizes[wanted].sum()), int(counts[done].sum())
                )
            )

    report()
    if not numbers:
        return
    carried = Carried(job)
    is_remote = any(storage.is_remote(job.data.location(number)) for number in numbers)
    with pool(workers, len(numbers), remote=is_remote) as executor:
        futures = {executor.submit(_make_shard, carried, number): number for number in numbers}
        for future in completed(futures):
            future.result()
            done.append(futures[future])
            report()


def _make_shard(carried: Carried[_Job], number: int) -> None:
    carried.value.make(number)


# From tables


def _save_joined(data: Manifest, asked: _Join, folder: Path) -> tuple[JoinReport, list[str]]:
    """Join tables: fill the values that columns lack, and keep those that they have.

    Raises `ArgumentError` if a sample has another value already, unless the join says what to do then; nothing is
    written.
    """
    pa, added, differing = pyarrow(), list[str](), Counter[str]()

    def parts(values: Any, stored: StoredColumn | None) -> Iterator[ShardColumn]:
        """Yield the column of each shard."""
        for shard, (end, count) in enumerate(zip(data.ends.tolist(), data.counts.tolist(), strict=True)):
            rows = matches.rows[end - count : end]
            new = values.take(pa.array(rows, mask=rows < 0))
            if stored is None or not stored.is_covered[shard]:
                yield ShardColumn(new)
                continue
            part = stored.part(shard)
            old = part.values.cast(values.type, safe=False)
            differing[stored.name] += _num_differing(old, new)
            first, second = (new, old) if asked.other == "replace" else (old, new)
            yield replace(part, values=pa.compute.coalesce(first, second))

    with contextlib.ExitStack() as stack:
        matches = Matches(
            data, [stack.enter_context(opened(location, asked.options)) for location in asked.tables], asked.on
        )
        matches.check()
        staging = stack.enter_context(_staged(folder))
        for name, values in matches.columns(asked.only):
            if column_file.is_free(name) or not name:
                _log.warning("the column %r of %s is left out: the shards say it", name, matches.label)
                continue
            stored = _stored(data, name)
            kind = arrays.common_type([values.type, *([] if stored is None else [stored.type])])
            made_by: dict[str, Any] = {} if stored is None else dict(stored.made_by)
            if asked.other != "keep":
                tables = list(map(storage.shown, asked.tables))
                record = {"tables": tables, "on": list(asked.on), "replace": asked.other == "replace"}
                made_by["joins"] = [*(other for other in made_by.get("joins", ()) if other != record), record]
            columns = parts(values.cast(kind, safe=False), stored)
            column_file.write(data, staging, name, kind, made_by, columns)
            added.append(name)
        for name, count in differing.most_common(1):
            if count and asked.other == "error":
                raise ArgumentError(
                    f"{counted(count, 'sample')} {'has' if count == 1 else 'have'} another {name!r} already than "
                    f"{matches.label} says, so nothing was written: pass replace=True to take the new values",
                    argument="replace",
                )
    return matches.report, added


def _num_differing(old: Any, new: Any) -> int:
    """Return how many values are in both arrays and differ; a missing value differs from none."""
    compute = pyarrow().compute
    differs = compute.not_equal(old, new)
    if str(old.type) == "double":
        differs = compute.and_not(differs, compute.and_(compute.is_nan(old), compute.is_nan(new)))
    return int(compute.sum(differs).as_py() or 0)


def _stored(data: Manifest, name: str) -> StoredColumn | None:
    try:
        return column_file.load(data, name)
    except IndexFormatError as error:
        _log.warning("%s; it is replaced", error)
        return None


@contextlib.contextmanager
def _errors_in(folder: Path) -> Iterator[None]:
    try:
        yield
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(f"columns cannot be written to {folder} ({error.strerror or error})") from error
