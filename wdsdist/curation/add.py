"""Add columns to a data set: made from its shards, several at once and resumably, or joined from tables."""

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
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util import job_lock
from wdsdist._util.files import atomic_write
from wdsdist._util.pools import Carried, completed, pool
from wdsdist._util.validation import check_callable, check_integer, check_path, counted, hint
from wdsdist.curation import arrays, column_file, column_spec, join, members
from wdsdist.curation.column_file import ColumnWriter, StoredColumn
from wdsdist.curation.column_spec import ColumnSpec
from wdsdist.curation.columns import names, unknown
from wdsdist.curation.join import Joined, JoinReport, Tables
from wdsdist.curation.members import ShardColumn
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError
from wdsdist.shards.progress import Report, ShardsProgress
from wdsdist.shards.shard_indexes import extensions_in, shard_index

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_WORK = ".unfinished"
"""Folder with the columns of single shards that are done; a run that was killed leaves it."""
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
    """Samples whose member could not be read as asked for."""
    first_failed: str
    """The first of these samples, and the reason."""
    num_shards_made: int
    """Shards that were read now; the file had the values of the others."""


@dataclass(frozen=True, slots=True)
class Added:
    """What adding columns did."""

    folder: Path
    columns: tuple[AddedColumn, ...]
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
    data = manifest.whole
    if len(data.data_sets) != 1:
        raise ArgumentError("columns belong to one data set: add them to each data set before they are concatenated")
    pyarrow("columns")
    specs = column_spec.parsed(fields, probe)
    joins = [] if join is None else [_Join.of(data, join, on, only, storage_options, replaces=replace)]
    if not specs and not joins:
        specs, joins = _recorded(data)
    for own in {one.on[0] for one in joins} - {spec.name for spec in specs} - set(names(data)):
        specs += column_spec.parsed([own], [])
    _check_extensions(data, specs)
    _check_whole(data)
    folder = column_file.prepare(data, None if output is None else check_path("output", output))

    def refuse() -> None:
        raise DestinationError(f"another process is adding columns in {folder}: wait until it is done")

    with job_lock.locked(folder / _LOCK, refuse):
        added = {one.name: one for one in _make(data, specs, folder, workers, progress, replace=replace)}
        reports = []
        for one in joins:
            report, columns = _save_joined(data, one, folder)
            reports.append(report)
            added |= {column.name: column for column in columns}
        return Added(folder, tuple(added.values()), tuple(reports))


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
    for report in added.joins:
        unmatched = report.rows_unmatched or report.samples_unmatched or report.rows_repeated
        _log.log(logging.WARNING if unmatched else logging.INFO, "joined %s", report)


@dataclass(frozen=True)
class _Join:
    """Arguments of one join of a table to a data set, as its column file records them."""

    tables: tuple[str, ...]
    on: tuple[str, str]
    only: tuple[str, ...] | None
    options: storage.StorageOptions
    replaces: bool
    """Whether the values of the tables count, if a sample has other values."""
    shards: Mapping[str, npt.NDArray[np.bool_]] | None = None
    """bool [shards], by column: the shards to refresh; ``None`` for all."""

    @classmethod
    def of(
        cls,
        data: Manifest,
        tables: Tables,
        on: str | Mapping[str, str],
        only: Collection[str] | None,
        storage_options: Mapping[str, Any] | None,
        *,
        replaces: bool,
        shards: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    ) -> _Join:
        keys, options = join.keys_of(on), data.client_options
        if storage_options is not None:
            listed = [tables] if isinstance(tables, (str, os.PathLike)) else list(tables)
            options = storage.named(storage_options, [storage.normalise(os.fspath(one)) for one in listed])
        found = tuple(join.locations(tables, options))
        return cls(found, keys, None if only is None else tuple(only), options, replaces, shards)

    @property
    def record(self) -> dict[str, Any]:
        return {"tables": list(map(storage.shown, self.tables)), "on": list(self.on), "replace": self.replaces}


def _recorded(data: Manifest) -> tuple[list[ColumnSpec], list[_Join]]:
    """Return what made the columns that a data set has, for a call that names no column: it refreshes them."""
    fields, probes = list[str](), list[str]()
    joins: dict[str, tuple[dict[str, Any], dict[str, npt.NDArray[np.bool_]]]] = {}
    for name in column_file.names(data):
        try:
            stored = column_file.load(data, name)
        except IndexFormatError as error:
            _log.warning("%s", error)
            continue
        if stored is None or stored.is_covered.all():
            continue
        for kind, recipes in (("field", fields), ("probe", probes)):
            recipes += [stored.made_by[kind]] if kind in stored.made_by else []
        for record in stored.made_by.get("joins", ()):
            joins.setdefault(json.dumps(record), (record, {}))[1][name] = ~stored.is_covered
    if not column_file.names(data):
        raise ArgumentError("the data set has no columns to refresh: say which to add, by fields, probe or join")
    made = []
    for record, shards in joins.values():
        replaces, on = bool(record["replace"]), {record["on"][0]: record["on"][1]}
        made.append(_Join.of(data, record["tables"], on, list(shards), None, replaces=replaces, shards=shards))
    return column_spec.parsed(fields, probes), made


def _check_extensions(data: Manifest, specs: Sequence[ColumnSpec]) -> None:
    """Raise `ArgumentError` for a column of a member that no sample has."""
    extensions = extensions_in(data) if specs else []
    for spec in specs:
        if extensions and spec.reading(extensions) is None:
            member = spec.name.partition(".")[0]
            if spec.name in ("key", member):
                raise unknown(data, spec.name)
            raise ArgumentError(
                f"the column {spec.name!r} is of a member that no sample has: {hint(member, extensions, 'they have')}"
            )


def _check_whole(data: Manifest) -> None:
    """Raise `ArgumentError` for some of the shards of a data set: their columns would replace those of all."""
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


# From members


@dataclass(frozen=True, slots=True)
class _Job:
    """What the workers need."""

    data: Manifest
    specs: tuple[ColumnSpec, ...]
    work: Path

    def part(self, number: int, spec: ColumnSpec) -> Path:
        """Return the path of the column of one shard."""
        return self.work / f"{int(column_file.shard_ids(self.data)[number]):016x}-{_hash_of(spec)}"


def _hash_of(spec: ColumnSpec) -> str:
    return hashlib.sha256(json.dumps(spec.made_by, sort_keys=True).encode()).hexdigest()[:16]


def _known(data: Manifest, spec: ColumnSpec, *, replace: bool) -> StoredColumn | None:
    """Return the stored column if it was made in the same way; the values of another one would be dropped."""
    try:
        stored = column_file.load(data, spec.name)
    except IndexFormatError:
        return None  # of other samples, or damaged: made again
    if stored is None or spec.made_by.items() <= stored.made_by.items():
        return stored
    if stored.made_by.get("joins") and not replace:
        raise ArgumentError(f"the column {spec.name!r} has values that were joined: pass replace=True to drop them")
    return None


def _make(
    data: Manifest, specs: Sequence[ColumnSpec], folder: Path, workers: int | None, progress: Report, *, replace: bool
) -> list[AddedColumn]:
    """Make columns from the shards that they do not cover yet."""
    known = {spec.name: _known(data, spec, replace=replace) for spec in specs}
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
    specs = [spec for spec in map(job.specs.__getitem__, chosen) if not job.part(number, spec).exists()]
    made = members.read(job.data, number, shard_index(job.data, number), specs)
    pa, shard = pyarrow(), job.data.shown_name(number)
    for spec in specs:
        column = made[spec.name]
        first_failed = f"{shard}: {column.first_failed}" if column.first_failed else ""
        notes = {"num_failed": str(column.num_failed), "first_failed": first_failed.encode("utf-8", "backslashreplace")}
        batch = pa.record_batch([column.values], schema=pa.schema([("", column.values.type)], metadata=notes))
        with (
            _errors_in(job.work),
            atomic_write(job.part(number, spec)) as stream,
            pa.ipc.new_file(stream, batch.schema) as writer,
        ):
            writer.write_batch(batch)


def _part(path: Path) -> ShardColumn:
    """Return the column of one shard that `_make_part` wrote."""
    table = pyarrow().ipc.open_file(pyarrow().memory_map(os.fspath(path))).read_all()
    notes = table.schema.metadata
    return ShardColumn(table.column(0), int(notes[b"num_failed"]), notes[b"first_failed"].decode())


def _assembled(job: _Job, spec: ColumnSpec, stored: StoredColumn | None, folder: Path) -> AddedColumn:
    """Write the file of a column, from its values so far and the parts that were made now."""
    data = job.data
    if stored is not None and stored.is_covered.all():
        missing = sum(stored.read([number]).null_count for number in np.flatnonzero(data.counts).tolist())
        kind = column_file.KINDS[str(stored.type)]
        return AddedColumn(
            spec.name, kind, data.num_samples, missing, int(stored.num_failed.sum()), stored.first_failed, 0
        )
    is_covered = np.zeros(len(data.counts), np.bool_) if stored is None else stored.is_covered

    def columns() -> Iterator[ShardColumn]:
        for number, covered in enumerate(is_covered.tolist()):
            if stored is not None and covered:
                yield ShardColumn(stored.read([number]), int(stored.num_failed[number]), stored.first_failed)
            else:
                yield _part(job.part(number, spec))

    kind = arrays.common_type(column.values for column in columns())
    made_by = {**spec.made_by, **({"joins": stored.made_by["joins"]} if stored and "joins" in stored.made_by else {})}
    with ColumnWriter(folder, spec.name, kind, data, made_by) as writer:
        for column in columns():
            writer.write(column.values, column.num_failed, column.first_failed)
    return _added(writer, data, spec.name, kind, int((~is_covered).sum()))


def _added(writer: ColumnWriter, data: Manifest, name: str, kind: Any, shards_made: int) -> AddedColumn:
    shown = column_file.KINDS[str(kind)]
    return AddedColumn(
        name, shown, data.num_samples, writer.num_missing, writer.num_failed, writer.first_failed, shards_made
    )


# From tables


def _save_joined(data: Manifest, asked: _Join, folder: Path) -> tuple[JoinReport, list[AddedColumn]]:
    """Join tables: fill the values that columns lack, and keep those that they have.

    Raises `ArgumentError` if a sample has another value already, unless the join replaces it; then nothing is written.
    """
    pa, added, differing = pyarrow(), list[tuple[ColumnWriter, str, Any]](), dict[str, int]()
    with _errors_in(folder), contextlib.ExitStack() as stack:
        tables = [stack.enter_context(join.opened(location, asked.options)) for location in asked.tables]
        joined = Joined(data, tables, asked.on, asked.only)
        joined.check_matched()
        writers = stack.enter_context(contextlib.ExitStack())
        for name, values in joined.columns():
            if column_file.is_free(name) or not name:
                _log.warning("the column %r of %s is left out: the shards say it", name, joined.report.tables)
                continue
            stored = _stored(data, name)
            is_covered = np.zeros(len(data.counts), np.bool_) if stored is None else stored.is_covered
            kinds = [] if stored is None else [stored.read([shard]) for shard in np.flatnonzero(is_covered).tolist()]
            kind = arrays.common_type([values, *kinds])
            values = values.cast(kind)
            made_by = dict(stored.made_by) if stored is not None else {}
            made_by["joins"] = [*(one for one in made_by.get("joins", ()) if one != asked.record), asked.record]
            writer = writers.enter_context(ColumnWriter(folder, name, kind, data, made_by))
            for shard, (start, end) in enumerate(
                zip((data.ends - data.counts).tolist(), data.ends.tolist(), strict=True)
            ):
                rows = joined.rows[start:end]
                new = values.take(pa.array(rows, mask=rows < 0))
                failed, reason = 0, ""
                if stored is not None and is_covered[shard]:
                    failed, reason = int(stored.num_failed[shard]), stored.first_failed
                    old = stored.read([shard]).cast(kind).combine_chunks()
                    if asked.shards is not None and not asked.shards[name][shard]:
                        new = old
                    differing[name] = differing.get(name, 0) + _num_differing(old, new)
                    new = pa.compute.coalesce(*((new, old) if asked.replaces else (old, new)))
                writer.write(new, failed, reason)
            added.append((writer, name, kind))
        if sum(differing.values()) and not asked.replaces:
            name, count = max(differing.items(), key=lambda item: item[1])
            raise ArgumentError(
                f"{counted(count, 'sample')} {'has' if count == 1 else 'have'} another {name!r} already than "
                f"{joined.report.tables} says, so nothing was written: pass replace=True to take the new values",
                argument="replace",
            )
    return joined.report, [_added(writer, data, name, kind, len(data.counts)) for writer, name, kind in added]


def _stored(data: Manifest, name: str) -> StoredColumn | None:
    try:
        return column_file.load(data, name)
    except IndexFormatError as error:
        _log.warning("%s; it is replaced", error)
        return None


def _num_differing(old: Any, new: Any) -> int:
    """Return how many values are in both arrays and differ; a missing value differs from none."""
    compute = pyarrow().compute
    differs = compute.not_equal(old, new)
    if str(old.type) == "double":
        differs = compute.and_not(differs, compute.and_(compute.is_nan(old), compute.is_nan(new)))
    return int(compute.sum(differs).as_py() or 0)


@contextlib.contextmanager
def _errors_in(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DestinationError(f"columns cannot be written to {folder} ({error.strerror or error})") from error
