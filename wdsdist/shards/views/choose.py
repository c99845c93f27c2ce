"""Choose samples by their columns: `select`, `split` and `repeat`."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s, Uint64s
from wdsdist._util.validation import check_integer
from wdsdist.errors import ArgumentError, ArgumentTypeError
from wdsdist.shards.columns import table
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.match import match
from wdsdist.shards.views import query
from wdsdist.shards.views.picks import MOST_IN_A_SHARD, NOTES_ON_ALL, Picks

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Explode = str | float | Mapping[str, Any] | None
"""What ``explode=`` of a data set takes: ``by`` of `Manifest.explode`, or all of its arguments by their names."""

Keys = Iterable[Any] | str | os.PathLike[str]

_SPLIT, _SAMPLE, _REPEAT = b"split", b"sample", b"repeat"
"""Keep the hashes for different choices apart."""

_CHUNK = 4_000_000
"""Samples whose texts are hashed at once, which bounds memory."""


def select(
    manifest: Manifest,
    where: str | None,
    keys: Keys | None,
    exclude: Keys | None,
    on: str,
    sample: int | float | None,
    seed: int,
) -> Manifest:
    """Return the view of the samples that fit all of the given conditions; see `Manifest.select`."""
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    amount = None if sample is None else _amount(sample)
    chosen = np.ones(manifest.num_samples, np.bool_)
    step: dict[str, Any] = {}
    if where is not None:
        chosen &= query.is_true(manifest, where)
        step["where"] = where
    for name, given, wanted in (("keys", keys, True), ("exclude", exclude, False)):
        if given is not None:
            values, label = _listed(given, on)
            found = match(manifest._column(on), values) >= 0
            chosen &= found == wanted
            step[name] = {"from": label, "values": len(values), "samples": int(found.sum()), "on": on}
    places = np.flatnonzero(chosen)
    if amount is not None:
        places = _sampled(manifest, places, amount, seed)
        step |= {"sample": sample, "seed": seed}
    return _view(manifest, places, step)


def split(manifest: Manifest, shares: Mapping[str, float], by: str, seed: int) -> tuple[Manifest, ...]:
    """Return a view for each share of the samples; see `Manifest.split`."""
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    if not shares:
        raise ArgumentError("split needs the share of each part by its name, as in split(train=0.98, val=0.02)")
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < float(share) <= 1:
            raise ArgumentError(f"the share of {name!r} is {share!r}: it must be above 0 and at most 1")
    # Rounded: 0.7 + 0.2 + 0.1 is a little less than 1, and the last part must not lose a sample to that.
    ends = [round(math.fsum(list(shares.values())[: number + 1]), 9) for number in range(len(shares))]
    if ends[-1] > 1:
        raise ArgumentError(f"the shares sum to {ends[-1]:g}: they can sum to 1 at most")
    places = _unit(_hashes(manifest._column(by), _SPLIT, seed))
    views = []
    for name, first, last in zip(shares, [0.0, *ends[:-1]], ends, strict=True):
        inside = np.flatnonzero((places >= first) & (places < last))
        views.append(_view(manifest, inside, {"split": dict(shares), "part": name, "by": by, "seed": seed}))
    return tuple(views)


def repeat(manifest: Manifest, times: str | int | float, seed: int) -> Manifest:
    """Return the view in which each sample comes as often as asked for; see `Manifest.repeat`."""
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    given = _numbers(manifest, times, "repeat samples")
    if len(given) and not (given.min() >= 0 and given.max() < MOST_IN_A_SHARD):
        raise ArgumentError(f"samples cannot be repeated {given.min():g} to {given.max():g} times: 0 is the least")
    counts = np.floor(given).astype(np.int64)
    rest = given - counts
    if rest.any():
        counts += _unit(_hashes(manifest._column("key"), _REPEAT, seed)) < rest
    return _view(manifest, np.repeat(np.arange(manifest.num_samples), counts), {"repeat": times})


def explode(manifest: Manifest, by: str | float, per: float, *, near: bool) -> Manifest:
    """Return the view in which each part of a record is a sample of its own; see `Manifest.explode`."""
    if manifest.has_parts:
        raise ArgumentError("the samples are parts of records already: explode the data set that they were made of")
    if isinstance(per, bool) or not isinstance(per, (int, float)):
        raise ArgumentTypeError(f"per is {per!r}: it must be a number, how much of the column a part has at most")
    if not 0 < per < math.inf:
        raise ArgumentError(f"per is {per!r}: how much of the column a part has at most must be above 0")
    counts = np.ceil(_numbers(manifest, by, "explode records") / per)
    impossible = np.flatnonzero(~((counts >= 0) & (counts < MOST_IN_A_SHARD)))
    if len(impossible):
        first = int(impossible[0])
        key = manifest._column("key").part(first, first + 1).array()[0]
        raise ArgumentError(
            f"the record {key!r} would have {counts[first]:,.0f} parts, where 0 to {MOST_IN_A_SHARD - 1:,} can be: "
            f"choose others by {by!r}, or give another per"
        )
    totals = counts.astype(np.int64)
    if manifest.num_samples:
        in_shards = np.add.reduceat(totals, (manifest.ends - manifest.counts)[manifest.counts > 0])
        if in_shards.max() >= MOST_IN_A_SHARD:
            raise ArgumentError(f"a shard would have {in_shards.max():,} parts: raise per, or explode fewer records")
    places, starts = np.repeat(np.arange(manifest.num_samples), totals), np.cumsum(totals) - totals
    parts = (np.arange(len(places)) - starts[places]).astype(np.uint32)
    step = {"explode": by, **({"per": per} if per != 1 else {}), **({"near": True} if near else {})}
    return _view(manifest, places, step, parts, totals[places].astype(np.uint32), is_near=near)


def exploded(manifest: Manifest, explode: Explode) -> Manifest:
    """Return the view that ``explode=`` asks for; without it the data set as it is."""
    if explode is None:
        return manifest
    arguments = explode if isinstance(explode, Mapping) else {"by": explode}
    unknown = sorted(map(str, arguments.keys() - {"by", "per", "near"}))
    if unknown or "by" not in arguments:
        raise ArgumentError(
            f'explode is {explode!r}: it is a column, a number, or a mapping such as {{"by": "mp4.seconds", "per": 5, '
            f'"near": True}}'
        )
    return manifest.explode(**arguments)


def _listed(given: Keys, on: str) -> tuple[Column, str]:
    """Return the values of a list that samples are kept or left out by, and where they came from, for people.

    Raises what `table.values` raises for a file.
    """
    if not isinstance(given, (str, os.PathLike)):
        values = Column.of(given)
        return values, f"{len(values):,} values"
    location = storage.normalise(os.fspath(given))
    return table.values(location, on), storage.shown(location)


def _numbers(manifest: Manifest, given: str | float, what: str) -> npt.NDArray[np.float64]:
    """Return float64 [samples]: the numbers in a column, or one number for all."""
    if not isinstance(given, str):
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise ArgumentTypeError(f"to {what}, give a number or the name of a column, not {given!r}")
        return np.full(manifest.num_samples, given, np.float64)
    column = manifest._column(given)
    if column.kind == "text":
        raise ArgumentError(f"the column {given!r} holds texts: to {what}, it must have a number for each")
    if column.is_missing is not None and column.is_missing.any():
        raise ArgumentError(
            f"the column {given!r} has no value for {int(column.is_missing.sum()):,} samples: to {what}, it must have "
            f"a number for each; choose those that have one, as in data.select('\"{given}\" IS NOT NULL')"
        )
    return column.typed().astype(np.float64)


def _view(
    manifest: Manifest,
    places: Int64s,
    step: dict[str, Any],
    parts: npt.NDArray[np.uint32] | None = None,
    totals: npt.NDArray[np.uint32] | None = None,
    *,
    is_near: bool = False,
) -> Manifest:
    """Return the view of the samples at some places of a data set or view, in increasing order.

    ``parts`` and ``totals`` say which part of its record each is; without them it is the part that it was.
    """
    before = manifest.picks
    stored = places if before is None else before.positions()[places]
    if parts is None and before is not None and before.parts is not None and before.totals is not None:
        parts, totals, is_near = before.parts[places], before.totals[places], before.is_near
    picks = Picks.of_positions(manifest.whole.counts, stored, parts, totals, is_near=is_near)
    about = {**step, "samples_before": manifest.num_samples, "samples_after": len(places)}
    notes = {name: note for name, note in manifest.extra.items() if name not in NOTES_ON_ALL}
    return replace(manifest, counts=picks.counts, picks=picks, made_by=(*manifest.made_by, about), extra=notes)


def _amount(sample: Any) -> int | float:
    """Return a share of samples as a float, or a number of them."""
    if isinstance(sample, bool) or not isinstance(sample, (int, float)):
        raise ArgumentTypeError(f"sample is {sample!r}: it must be a share up to 1.0, or a number of samples")
    if isinstance(sample, int):
        return check_integer("sample", sample, 0)
    if not 0 < sample <= 1:
        raise ArgumentError(f"sample is {sample!r}: it must be a share above 0 and up to 1.0, or a number of samples")
    return sample


def _sampled(manifest: Manifest, places: Int64s, amount: int | float, seed: int) -> Int64s:
    """Return some of the places: those whose samples' keys have the smallest hashes."""
    hashes = _hashes(manifest._column("key"), _SAMPLE, seed)[places]
    if isinstance(amount, float):
        return places[_unit(hashes) < amount]
    if amount > len(places):
        raise ArgumentError(f"sample is {amount:,}, but only {len(places):,} samples can be chosen from")
    return np.sort(places[np.argsort(hashes, kind="stable")[:amount]])


def _hashes(column: Column, purpose: bytes, seed: int) -> Uint64s:
    """Return uint64 [samples]: the hash of each value, which depends on its text, the purpose and the seed alone."""
    start = hashlib.blake2b(digest_size=8, person=purpose, salt=seed.to_bytes(8, "little"))
    hashes = np.empty(len(column), np.uint64)
    for first in range(0, len(column), _CHUNK):
        texts = column.part(first, first + _CHUNK).texts()
        digests = bytearray()
        for text in texts:
            state = start.copy()
            state.update(text)
            digests += state.digest()
        hashes[first : first + len(texts)] = np.frombuffer(digests, "<u8")
    return hashes


def _unit(hashes: Uint64s) -> npt.NDArray[np.float64]:
    """Return each hash as a number from 0 up to but not including 1."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
