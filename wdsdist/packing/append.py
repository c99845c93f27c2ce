"""Append to a data set: further shards, then a new generation of ``index.json``; nothing that is there changes.

A record beside the shards names what was appended, and what an interrupted run was about to append. The ``index.json``
stays as it is until the new one replaces it, so that the data set can be read at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from wdsdist import storage
from wdsdist.errors import ArgumentError, DestinationError, DestinationExistsError
from wdsdist.packing.destination import Place, data_set, file_number, first_free, records, save_records
from wdsdist.packing.job import Job, Record
from wdsdist.shards.manifest import APPEND_RECORD, Manifest

_FROM_PYTHON = ("dataset", "iterable")
"""Kinds of sources whose location does not tell what they hold."""


def holds(known: Manifest, place: Place, job: Job) -> bool:
    """Return whether a data set holds the samples of a job's source, from its packing or from an earlier append."""
    packed = [one.job.fingerprint for one in records(place)]
    return _digest(job) in known.extra.get("appended", ()) or job.fingerprint in packed


def claim(place: Place, known: Manifest, job: Job, notes: Mapping[str, Any], *, overwrite: bool) -> int:
    """Prepare a destination for the shards of a job, under its lock, and return the number of the first.

    ``notes`` are what ``index.json`` is to say of the source.

    The shards of an earlier run of the same job stay; the shards of another, unfinished job are removed with
    ``overwrite``.

    Raises:
        DestinationExistsError: another append is unfinished, or a shard would replace a file of somebody else.
        DestinationError: the data set lists shards that lie elsewhere, or whose keys end elsewhere than packing has it.
        ArgumentError: the source was added before and has changed since, or its classes have other numbers, or its
            arrays other types.
    """
    if known.base != place.location or known.is_named:
        raise DestinationError(
            f"the index.json of {place} lists shards that lie elsewhere: append where they lie, or pack into a folder "
            f"of its own and use both with wdsdist.concat"
        )
    if "key_rule" in known.extra:  # which scans of all of its shards go by
        raise DestinationError(
            f"the keys of the shards in {place} end by the rule {known.key_rule}, and those of packed ones at the "
            f"first dot: pack into a folder of its own and use both with wdsdist.concat"
        )
    _check_notes(known, notes, job)
    earlier = records(place, APPEND_RECORD)
    finished = [one for one in earlier if one.shards < len(known.counts)]
    _refuse_more_of_the_same(job, [*records(place), *finished], place)
    first = first_free(known)
    left = sorted(name for name in place.sizes() if file_number(name) >= first)
    unfinished = earlier[-1].job if len(earlier) > len(finished) else None
    differences = unfinished.differences(job) if unfinished else []
    if unfinished and differences:
        if not overwrite:
            raise DestinationExistsError(
                f"appending {unfinished.location} to {place} was not finished ({'; '.join(differences)}): run that "
                f"command again first, or drop what it has written with overwrite=True"
            )
        for name in left:
            place.remove(name)
    elif left and not unfinished:
        raise DestinationExistsError(
            f"{place} holds {left[0]}, which its index.json does not list and appending would replace: move it away"
        )
    count = len(known.counts)
    appended = [asdict(one) for one in (*finished, Record(job, count))]
    save_records(place, APPEND_RECORD, {"shards": count, "appended": appended})
    if place.folder is None and records(place, APPEND_RECORD)[-1].job.differences(job):  # stores have no locks
        raise DestinationExistsError(f"another process has begun to append to {place}: run this again once it is done")
    return first


def _check_notes(known: Manifest, notes: Mapping[str, Any], job: Job) -> None:
    """Raise `ArgumentError` if a class number or the type of an array is another one in the source."""
    before, place = known.extra, storage.shown(known.base)
    classes = zip(before.get("classes", ()), notes.get("classes", ()), strict=False)
    for number, (old, new) in enumerate(classes):
        if old != new:
            raise ArgumentError(
                f"class {number} is {old!r} in {place} and {new!r} in {job.location}: labels would be mixed up; pack "
                f"both sources together, or the source with the same class folders"
            )
    mine = notes.get("arrays", {})
    for name in before.get("fields", ()):
        old, new = before.get("arrays", {}).get(name), mine.get(name)
        if new is not None and old != new:
            raise ArgumentError(f"arrays {name!r} are {old} in {place} and {new} in {job.location}: make them alike")


def merged(known: Manifest, added: Manifest, job: Job, place: Place) -> Manifest:
    """Return the next generation of a data set: its shards, then those that were added.

    Raises `DestinationExistsError` where another process has appended meanwhile, which only stores allow.
    """
    now = data_set(place)
    if now is None or now.fingerprint != known.fingerprint:
        raise DestinationExistsError(f"{place} was changed while {job.location} was appended: run the same again")
    notes = dict(known.extra)
    more = added.extra
    for total in ("payload_bytes", "with_checksums", "left_out", "renamed_keys"):
        if total in notes or total in more:
            notes[total] = notes.get(total, 0) + more.get(total, 0)
    has_labels = "cls" in notes.get("fields", ())
    notes["fields"] = sorted({*notes.get("fields", ()), *more.get("fields", ())})
    if len(more.get("classes", ())) > len(notes.get("classes", ())) and ("classes" in notes or not has_labels):
        notes["classes"] = more["classes"]
    if arrays := {**notes.get("arrays", {}), **more.get("arrays", {})}:
        notes["arrays"] = arrays
    shards = (*known.shards, *added.shards)
    notes["generations"] = [*known.generations, len(shards)]
    notes["appended"] = [*notes.get("appended", ()), _digest(job)]
    return Manifest.of(known.base, shards, name=known.name, extra=notes, origin=known.origin)


def _refuse_more_of_the_same(job: Job, before: list[Record], place: Place) -> None:
    """Raise `ArgumentError` for a source that was added before and holds something else now."""
    if job.kind not in _FROM_PYTHON and any(one.job.location == job.location for one in before):
        raise ArgumentError(
            f"{job.location} was packed into {place} before, and has changed since: what it held then would come "
            f"twice; append what is new from a folder or file of its own"
        )


def _digest(job: Job) -> str:
    return job.fingerprint[:32]
