"""Views: samples that are chosen by their columns or by a hash of their keys, repeated, or exploded into parts."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.arrow import concatenated, pyarrow, to_numpy
from wdsdist._util.validation import as_number, check_column, check_integer, check_path, counted
from wdsdist.curation import columns, fields, query
from wdsdist.curation.join import examples, match
from wdsdist.errors import ArgumentError, IndexFormatError, given
from wdsdist.packing.tables.table import from_values, read_list
from wdsdist.shards import view_file
from wdsdist.shards.view_file import MOST_IN_A_SHARD, Picks

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Keys = Iterable[Any] | str | os.PathLike[str]

_FEW = 1000
"""Values of a list that a view holds, so that it can be made again."""


def select(
    manifest: Manifest,
    where: str | None = None,
    *,
    keys: Keys | None = None,
    exclude: Keys | None = None,
    on: str = "key",
    sample: int | float | None = None,
    seed: int = 0,
    allow_empty: bool = False,
) -> Manifest:
    """Choose samples; see `Manifest.select`."""
    seed, amount = check_integer("seed", seed, 0, 2**64 - 1), as_number(sample)
    is_number = isinstance(amount, int) and amount >= 0
    if sample is not None and not is_number and (not isinstance(amount, float) or not 0 < amount <= 1):
        raise ArgumentError(
            f"sample is {sample!r}: it must be a share above 0 and up to 1.0, or a number of samples", argument="sample"
        )
    is_chosen = np.ones(manifest.num_samples, np.bool_)
    step: dict[str, Any] = {}
    if where is not None:
        is_chosen &= query.is_true(manifest, where)
        step["where"] = where
    for name, values, is_kept in (("keys", keys, True), ("exclude", exclude, False)):
        if values is not None:
            is_listed, step[name] = _is_listed(manifest, name, values, check_column("on", on))
            is_chosen &= is_listed == is_kept
    positions = np.flatnonzero(is_chosen)
    if amount is not None:  # the keys with the smallest hashes
        points = _points(manifest, "sample", seed)[positions]
        if amount > len(positions):
            raise ArgumentError(f"sample is {amount:,}, but only {len(positions):,} samples can be chosen from")
        chosen = np.argsort(points, kind="stable")[:amount] if is_number else np.flatnonzero(points < amount)
        positions = np.sort(positions[chosen])
        step |= {"sample": amount, "seed": seed}
    return _view(manifest, positions, step, allow_empty=allow_empty)


def _is_listed(data: Manifest, argument: str, values: Any, on: str) -> tuple[npt.NDArray[np.bool_], dict[str, Any]]:
    """Match the column ``on`` with a list of keys; return a mask, bool [samples], and the note for the view.

    ``on`` may name a field of a member without a column too. Raises `ArgumentError` if no sample is in the list.
    """
    if on in columns.names(data):
        own = columns.column(data, on)
    elif on in (known := examples(data)):
        picks, shards = data.picks, np.flatnonzero(data.counts).tolist()
        read = fields.read_all(data.whole, fields.checked(data.whole, [on]), shards)
        parts = (read[n][on] if picks is None else read[n][on].take(pyarrow().array(picks.of_shard(n))) for n in shards)
        own = concatenated(parts)
    else:
        raise columns.unknown(data, on, known)
    note: dict[str, Any] = {}
    if isinstance(values, (str, os.PathLike)):
        location = storage.normalise(os.fspath(values))
        location = location if storage.is_remote(location) else str(Path(location).absolute())
        label, note["from"] = storage.shown(location), location
        listed = read_list(location, on, data.client_options)
    elif isinstance(values, Iterable) and not isinstance(values, bytes):
        listed = from_values(value.item() if isinstance(value, np.generic) else value for value in values)
        label = note["from"] = counted(len(listed), "value")
        if len(listed) <= _FEW:
            note["list"] = listed.cast("large_string").to_pylist()
    else:
        reason = "it must be a list of keys, or the path of a file"
        raise ArgumentError(f"{argument} is {values!r}: {reason}", argument=argument)
    is_listed = match(data, on, own.chunks, [listed], label, argument) >= 0
    return is_listed, note | {"values": len(listed), "on": on, "samples": int(is_listed.sum())}


def split(
    manifest: Manifest, shares: dict[str, float], *, by: str = "key", seed: int = 0, allow_empty: bool = False
) -> tuple[Manifest, ...]:
    """Split the samples into views; see `Manifest.split`."""
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
    points = _points(manifest, "split", seed, check_column("by", by))
    views = []
    for name, first, last in zip(shares, [0.0, *ends[:-1]], ends, strict=True):
        inside = np.flatnonzero((points >= first) & (points < last))
        step = {"split": dict(shares), "part": name, "by": by, "seed": seed}
        views.append(_view(manifest, inside, step, allow_empty=allow_empty))
    return tuple(views)


def repeat(manifest: Manifest, times: npt.ArrayLike, *, seed: int = 0, allow_empty: bool = False) -> Manifest:
    """Repeat samples; see `Manifest.repeat`."""
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    numbers, by = _numbers(manifest, times, "repeat samples")
    counts = np.floor(numbers)
    step: dict[str, Any] = {"repeat": by}
    if (counts < numbers).any():
        counts += _points(manifest, "repeat", seed) < numbers - counts
        step["seed"] = seed
    positions = np.repeat(np.arange(manifest.num_samples), _checked(counts, "repeat samples"))
    return _view(manifest, positions, step, allow_empty=allow_empty)


def explode(manifest: Manifest, by: npt.ArrayLike, *, per: float = 1, allow_empty: bool = False) -> Manifest:
    """Make the parts of each record samples of their own; see `Manifest.explode`."""
    if manifest.has_parts:
        raise ArgumentError("the samples are parts of records already: explode the data set that they were made of")
    width = as_number(per)
    if width is None or not 0 < width < math.inf:
        raise ArgumentError(f"per is {per!r}: it must be a number above 0, how much of the column a part has at most")
    numbers, column = _numbers(manifest, by, "explode records")
    totals = _checked(np.ceil(numbers / width), "explode records")
    positions, starts = np.repeat(np.arange(manifest.num_samples), totals), np.cumsum(totals) - totals
    parts = np.stack((np.arange(len(positions)) - starts[positions], totals[positions]), axis=1).astype(np.uint32)
    step = {"explode": column, **({"per": width} if width != 1 else {})}
    return _view(manifest, positions, step, parts, allow_empty=allow_empty)


def _checked(counts: npt.NDArray[np.float64], what: str) -> Int64s:
    """Return counts as int64. Raises `ArgumentError` for counts that no view can have."""
    if not (counts >= 0).all() or counts.sum() >= MOST_IN_A_SHARD:
        raise ArgumentError(
            f"to {what}, counts must be 0 or more, and sum to less than {MOST_IN_A_SHARD:,}: they are "
            f"{counts.min():,.0f} to {counts.max():,.0f}, and sum to {counts.sum():,.0f}"
        )
    return counts.astype(np.int64)


def refresh(
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    allow_elsewhere: bool = False,
    allow_empty: bool = False,
) -> list[tuple[Path, Manifest]]:
    """Make a saved view again by its recorded steps, of the samples that its data set has now.

    Views that it was made of are made again, too. Returns the paths that were written, and their views.

    Raises `ArgumentError` for a step that cannot be repeated, such as a list of keys that was no file.
    """
    from wdsdist.shards.open import open as open_data

    own = check_path("path", path).absolute()
    named = storage.named(storage_options, [str(own)])
    _, origin, header = view_file.read(str(own), named, allow_elsewhere=allow_elsewhere)
    current = open_data(origin, storage_options=storage_options, allow_elsewhere=allow_elsewhere)
    views: list[tuple[Path, Manifest]] = []
    for step in header["made_by"]:
        parent = Path(str(step.get("view") or own))
        if parent != own and current.picks is not None and view_file.is_view(str(parent), named):
            views.append((parent, current))
        current = _again(current, step, allow_elsewhere=allow_elsewhere, allow_empty=allow_empty)
    views.append((own, current))
    for location, view in views:  # all are made before the first is written
        view_file.save(view, location)
    return views


def _again(data: Manifest, step: dict[str, Any], *, allow_elsewhere: bool, allow_empty: bool) -> Manifest:
    """Return the view that a recorded step makes of a data set.

    Raises `IndexFormatError` for a list in a store, unless the user allows it, as for the data set of a view.
    """
    options: dict[str, Any] = {name: step[name] for name in ("where", "sample", "seed", "by", "per") if name in step}
    options["allow_empty"] = allow_empty
    match step:
        case {"split": dict(shares), "part": str(part)}:
            return split(data, dict(shares), **options)[list(shares).index(part)]
        case {"repeat": times}:
            return repeat(data, times, **options)
        case {"explode": by}:
            return explode(data, by, **options)
    for name in ("keys", "exclude"):
        if note := step.get(name):
            options |= {name: note.get("list", note["from"]), "on": note["on"]}
            if isinstance(options[name], str) and storage.is_remote(options[name]) and not allow_elsewhere:
                raise IndexFormatError(
                    f"the view was made with the list {storage.shown(options[name])}: if you know it and want it, pass "
                    f"{given('allow_elsewhere', True)}"
                )
    return select(data, **options)


def _numbers(manifest: Manifest, values: npt.ArrayLike, what: str) -> tuple[npt.NDArray[np.float64], str | float]:
    """Return repeat counts or lengths, float64 [samples], of a number, column or array, and their note for the view.

    A view cannot be made again by an array, which it does not hold.
    """
    if isinstance(values, str):
        column = columns.column(manifest, values)
        if str(column.type) == "large_string":
            raise ArgumentError(f"the column {values!r} holds strings: to {what}, it must have a number for each")
        if column.null_count:
            raise ArgumentError(
                f"the column {values!r} has no value for {counted(column.null_count, 'sample')}: to {what}, it must "
                f"have a number for each; choose the others, as in data.select('\"{values}\" IS NOT NULL')"
            )
        return to_numpy(column).astype(np.float64), values
    number = as_number(values)
    if number is not None:
        return np.full(manifest.num_samples, number, np.float64), number
    numbers = np.zeros(0)
    with contextlib.suppress(TypeError, ValueError):
        numbers = np.asarray(values, np.float64)
    if values is None or numbers.shape != (manifest.num_samples,):
        raise ArgumentError(
            f"to {what}, give a number, a column, or an array with a number for each of the {manifest.num_samples:,} "
            f"samples, in the order of data.column('key')"
        )
    return numbers, f"{counted(len(numbers), 'number')}, one a sample"


def _view(
    manifest: Manifest, positions: Int64s, step: dict[str, Any], parts: Any = None, *, allow_empty: bool
) -> Manifest:
    """Return the view of the samples at increasing positions of a data set or view.

    ``parts`` says the part of its record that each sample is; without it each stays the part that it was.
    """
    if not len(positions) and not allow_empty:
        which = f"the part {step['part']!r}" if "part" in step else "the view"
        raise ArgumentError(
            f"{which} would have no sample of {manifest.num_samples:,}: allow that with {given('allow_empty', True)}",
            argument="allow_empty",
        )
    before = manifest.picks
    stored = positions if before is None else before.positions()[positions]
    if parts is None and before is not None and before.parts is not None:
        parts = before.parts[positions]
    picks = Picks.of_positions(manifest.whole.counts, stored, parts)
    about = {**step, "samples_before": manifest.num_samples, "samples_after": len(positions)}
    if before is not None and before.path:
        about["view"] = before.path
    return manifest.chosen(picks, (*manifest.made_by, about))


def _points(manifest: Manifest, choice: str, seed: int, by: str = "key") -> npt.NDArray[np.float64]:
    """Return float64 [samples] from 0 up to but not including 1: a hash of each value of a column.

    It depends on the kind of the choice, and on how many such choices a view comes from: the same hash would put all of
    a part on one side.
    """
    turn = sum(choice in step and step.get("seed") == seed and step.get("by", by) == by for step in manifest.made_by)
    start = f"{choice}\0{turn}\0".encode()
    chunks = columns.column(manifest, by).cast("large_string").fill_null("").chunks
    strings = (string for chunk in chunks for string in chunk.to_pylist())
    hashes = (xxhash.xxh3_64_intdigest(start + string.encode(), seed) for string in strings)
    return (np.fromiter(hashes, np.uint64, manifest.num_samples) >> np.uint64(11)).astype(np.float64) * 2.0**-53
