"""Views: which samples of a data set are chosen, by their columns, by hash of their keys, or repeated."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s, Uint64s
from wdsdist._util.validation import as_number, check_column, check_flag, check_integer, counted
from wdsdist.errors import ArgumentError
from wdsdist.shards.columns import read, table
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.join import ValueIndex
from wdsdist.shards.manifest.manifest import join
from wdsdist.shards.views import query
from wdsdist.shards.views.picks import MOST_IN_A_SHARD, Picks

if TYPE_CHECKING:
    from wdsdist.shards.manifest.manifest import Manifest

Explode = str | float | Mapping[str, Any] | None
"""What ``explode=`` of a data set takes: ``by`` of `Manifest.explode`, or all of its arguments by their names."""

Keys = Iterable[Any] | str | os.PathLike[str]

_SPLIT, _SAMPLE, _REPEAT = b"split", b"sample", b"repeat"
"""Keep the hashes for different choices apart."""

_CHUNK = 4_000_000
"""Samples whose texts are hashed at once, which bounds memory."""

_log = logging.getLogger("wdsdist")


def select(
    manifest: Manifest,
    where: str | None = None,
    *,
    keys: Iterable[Any] | str | os.PathLike[str] | None = None,
    exclude: Iterable[Any] | str | os.PathLike[str] | None = None,
    on: str = "key",
    sample: int | float | None = None,
    seed: int = 0,
) -> Manifest:
    """Choose samples; see `Manifest.select`."""
    data = _countable(manifest)
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    amount = None if sample is None else _amount(sample)
    chosen = np.ones(data.num_samples, np.bool_)
    step: dict[str, Any] = {}
    if where is not None:
        chosen &= query.is_true(data, where)
        step["where"] = where
    for name, given, wanted in (("keys", keys, True), ("exclude", exclude, False)):
        if given is not None:
            values, label = _listed(name, given, check_column("on", on), data.client_options)
            column = read.column(data, on)
            found = ValueIndex([values]).places(column) >= 0
            if len(values) and len(column) and not found.any():
                theirs, ours = (one.part(0, 1).array().tolist()[0] for one in (values, column))
                _log.warning(
                    "%s: no sample's %s is among %s (there %r, for instance, in the data %r)",
                    name, on, label, theirs, ours,
                )  # fmt: skip
            chosen &= found == wanted
            step[name] = {"from": label, "values": len(values), "samples": int(found.sum()), "on": on}
    places = np.flatnonzero(chosen)
    if amount is not None:
        places = _sampled(data, places, amount, seed)
        step |= {"sample": amount, "seed": seed}
    return _view(data, places, step)


def split(manifest: Manifest, shares: dict[str, float], *, by: str = "key", seed: int = 0) -> tuple[Manifest, ...]:
    """Split the samples into views; see `Manifest.split`."""
    data = _countable(manifest)
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    if not shares:
        raise ArgumentError("split needs the share of each part by its name, as in split(train=0.98, val=0.02)")
    for name, share in shares.items():
        number = as_number(share)
        if number is None or not 0 < number <= 1:
            raise ArgumentError(f"the share of {name!r} is {share!r}: it must be above 0 and at most 1")
        shares[name] = number
    # Rounded: 0.7 + 0.2 + 0.1 is a little less than 1, and the last part must not lose a sample to that.
    ends = [round(math.fsum(list(shares.values())[: number + 1]), 9) for number in range(len(shares))]
    if ends[-1] > 1:
        raise ArgumentError(f"the shares sum to {ends[-1]:g}: they can sum to 1 at most")
    turn = _times_before(data, "split", seed=seed, by=check_column("by", by))
    places = _unit(_hashes(read.column(data, by), _SPLIT, seed, turn))
    views = []
    for name, first, last in zip(shares, [0.0, *ends[:-1]], ends, strict=True):
        inside = np.flatnonzero((places >= first) & (places < last))
        views.append(_view(data, inside, {"split": dict(shares), "part": name, "by": by, "seed": seed}))
    return tuple(views)


def repeat(manifest: Manifest, times: npt.ArrayLike, *, seed: int = 0) -> Manifest:
    """Repeat samples; see `Manifest.repeat`."""
    data = _countable(manifest)
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    if isinstance(times, (str, bool, NoneType)) or as_number(times) is not None:
        said = _number_or_column(times, "repeat samples")
        given = _numbers(data, said, "repeat samples")
    else:
        given = _for_each(data, times)
        said = f"{counted(len(given), 'number')}, one a sample"
    if len(given) and not (given.min() >= 0 and given.max() < MOST_IN_A_SHARD):
        raise ArgumentError(f"samples cannot be repeated {given.min():g} to {given.max():g} times: 0 is the least")
    counts = np.floor(given).astype(np.int64)
    rest = given - counts
    if rest.any():
        turn = _times_before(data, "repeat")
        counts += _unit(_hashes(read.column(data, "key"), _REPEAT, seed, turn)) < rest
    return _view(data, np.repeat(np.arange(data.num_samples), counts), {"repeat": said})


def explode(manifest: Manifest, by: str | float, *, per: float = 1, near: bool = False) -> Manifest:
    """Make the parts of each record samples of their own; see `Manifest.explode`."""
    data = _countable(manifest)
    if data.has_parts:
        raise ArgumentError("the samples are parts of records already: explode the data set that they were made of")
    by, near, width = _number_or_column(by, "explode records"), check_flag("near", near), as_number(per)
    if width is None:
        raise ArgumentError(f"per is {per!r}: it must be a number, how much of the column a part has at most")
    per = width
    if not 0 < per < math.inf:
        raise ArgumentError(f"per is {per!r}: how much of the column a part has at most must be above 0")
    counts = np.ceil(_numbers(data, by, "explode records") / per)
    impossible = np.flatnonzero(~((counts >= 0) & (counts < MOST_IN_A_SHARD)))
    if len(impossible):
        first = int(impossible[0])
        key = read.column(data, "key").part(first, first + 1).array()[0]
        raise ArgumentError(
            f"the record {key!r} would have {counts[first]:,.0f} parts, where 0 to {MOST_IN_A_SHARD - 1:,} can be: "
            f"choose others by {by!r}, or give another per"
        )
    totals = counts.astype(np.int64)
    if data.num_samples:
        in_shards = np.add.reduceat(totals, (data.ends - data.counts)[data.counts > 0])
        if in_shards.max() >= MOST_IN_A_SHARD:
            raise ArgumentError(f"a shard would have {in_shards.max():,} parts: raise per, or explode fewer records")
    places, starts = np.repeat(np.arange(data.num_samples), totals), np.cumsum(totals) - totals
    parts = (np.arange(len(places)) - starts[places]).astype(np.uint32)
    step = {"explode": by, **({"per": per} if per != 1 else {}), **({"near": True} if near else {})}
    return _view(data, places, step, parts, totals[places].astype(np.uint32), is_near=near)


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
    if manifest.labels == ("",):
        return manifest.explode(**arguments)
    return join([part.explode(**arguments) for part in manifest.parts], manifest.labels)


def _countable(data: Manifest) -> Manifest:
    """Return the manifest; raise `ArgumentError` where memory cannot hold a number for each sample that it lists."""
    try:
        np.empty(data.num_samples, np.int64)  # which takes none yet
    except (MemoryError, ValueError) as error:
        raise ArgumentError(
            f"{storage.shown(data.origin or data.base)} lists {data.num_samples:,} samples, for which memory does not "
            f"suffice ({error}): if that is not their number, make the index anew by `wdsdist index`"
        ) from None
    return data


def _listed(name: str, given: Keys, on: str, options: storage.StorageOptions) -> tuple[Column, str]:
    """Return the values of a list that samples are kept or left out by, and where they came from, for people.

    Raises what `table.values` raises for a file.
    """
    if not isinstance(given, (str, os.PathLike)):
        if not isinstance(given, Iterable) or isinstance(given, bytes):
            raise ArgumentError(f"{name} is {given!r}: it must be a list of keys, or the path of a file")
        values = Column.of(given)
        return values, f"{len(values):,} values"
    location = storage.normalise(os.fspath(given))
    return table.values(location, on, options), storage.shown(location)


def _number_or_column(given: Any, what: str) -> str | int | float:
    found = given if isinstance(given, str) else as_number(given)
    if found is None:
        raise ArgumentError(f"to {what}, give a number or the name of a column, not {given!r}")
    return found


def _numbers(manifest: Manifest, given: str | float, what: str) -> npt.NDArray[np.float64]:
    """Return float64 [samples]: the numbers in a column, or one number for all."""
    if not isinstance(given, str):
        return np.full(manifest.num_samples, given, np.float64)
    column = read.column(manifest, given)
    if column.kind == "text":
        raise ArgumentError(f"the column {given!r} holds texts: to {what}, it must have a number for each")
    if column.is_missing is not None and column.is_missing.any():
        missing = counted(int(column.is_missing.sum()), "sample")
        raise ArgumentError(
            f"the column {given!r} has no value for {missing}: to {what}, it must have "
            f"a number for each; choose those that have one, as in data.select('\"{given}\" IS NOT NULL')"
        )
    return column.typed().astype(np.float64)


def _for_each(manifest: Manifest, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return float64 [samples]: the numbers of an array that has one for each sample."""
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"to repeat samples, give an array of numbers: {error}") from error
    if numbers.shape != (manifest.num_samples,):
        raise ArgumentError(
            f"to repeat samples, an array must have a number for each of the {manifest.num_samples:,}, in the order of "
            f"data.column('key'): it has the shape {list(numbers.shape)}"
        )
    if missing := int(np.isnan(numbers).sum()):
        raise ArgumentError(f"to repeat samples, an array must have a number for each: it has NaN for {missing:,}")
    return numbers


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
    return manifest.chosen(picks, (*manifest.made_by, about))


def _amount(sample: Any) -> int | float:
    """Return a share of samples as a float, or a number of them."""
    amount = as_number(sample)
    if amount is None:
        raise ArgumentError(f"sample is {sample!r}: it must be a share up to 1.0, or a number of samples")
    if isinstance(amount, int):
        return check_integer("sample", amount, 0)
    if not 0 < amount <= 1:
        raise ArgumentError(f"sample is {sample!r}: it must be a share above 0 and up to 1.0, or a number of samples")
    return amount


def _sampled(manifest: Manifest, places: Int64s, amount: int | float, seed: int) -> Int64s:
    """Return some of the places: those whose samples' keys have the smallest hashes."""
    hashes = _hashes(read.column(manifest, "key"), _SAMPLE, seed, _times_before(manifest, "sample", seed=seed))[places]
    if isinstance(amount, float):
        return places[_unit(hashes) < amount]
    if amount > len(places):
        raise ArgumentError(f"sample is {amount:,}, but only {len(places):,} samples can be chosen from")
    return np.sort(places[np.argsort(hashes, kind="stable")[:amount]])


def _times_before(manifest: Manifest, choice: str, **same: Any) -> int:
    """Return how many splits or random subsets with the same seed a view comes from: their hash, used again, would put
    all of a part on one side."""
    steps = [step for step in manifest.made_by if choice in step]
    return sum(all(step.get(name) == value for name, value in same.items()) for step in steps)


def _hashes(column: Column, purpose: bytes, seed: int, turn: int) -> Uint64s:
    """Return uint64 [samples]: the hash of each value, which depends on its text and the other arguments alone."""
    person = purpose + (b"%d" % turn if turn else b"")
    start = hashlib.blake2b(digest_size=8, person=person, salt=seed.to_bytes(8, "little"))
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
