"""Views: samples that are chosen by their columns or by a hash of their keys, repeated, or exploded into parts."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s, Uint64s
from wdsdist._util.validation import as_number, check_column, check_integer, check_path, counted
from wdsdist.curation import arrays, columns, key_lists, query, view_file
from wdsdist.curation.picks import MOST_IN_A_SHARD, Picks
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Keys = Iterable[Any] | str | os.PathLike[str]

_SPLIT, _SAMPLE, _REPEAT = b"split", b"sample", b"repeat"
"""Keep the hashes for different choices apart."""


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
    seed = check_integer("seed", seed, 0, 2**64 - 1)
    amount = as_number(sample)
    if isinstance(amount, int):
        check_integer("sample", amount, 0)
    elif sample is not None and (amount is None or not 0 < amount <= 1):
        raise ArgumentError(f"sample is {sample!r}: it must be a share above 0 and up to 1.0, or a number of samples")
    is_chosen = np.ones(manifest.num_samples, np.bool_)
    step: dict[str, Any] = {}
    if where is not None:
        is_chosen &= query.is_true(manifest, where)
        step["where"] = where
    for name, values, is_kept in (("keys", keys, True), ("exclude", exclude, False)):
        if values is not None:
            is_listed, step[name] = key_lists.is_listed(manifest, name, values, check_column("on", on))
            is_chosen &= is_listed == is_kept
    positions = np.flatnonzero(is_chosen)
    if amount is not None:  # the keys with the smallest hashes
        hashes = _hashes(manifest, "key", _SAMPLE, seed, _times_before(manifest, "sample", seed=seed))[positions]
        if amount > len(positions):
            raise ArgumentError(f"sample is {amount:,}, but only {len(positions):,} samples can be chosen from")
        is_share = isinstance(amount, float)
        chosen = np.flatnonzero(_unit(hashes) < amount) if is_share else np.argsort(hashes, kind="stable")[:amount]
        positions = np.sort(positions[chosen])
        step |= {"sample": amount, "seed": seed}
    return _view(manifest, positions, step, allow_empty=allow_empty)


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
    turn = _times_before(manifest, "split", seed=seed, by=check_column("by", by))
    points = _unit(_hashes(manifest, by, _SPLIT, seed, turn))
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
        hashes = _hashes(manifest, "key", _REPEAT, seed, _times_before(manifest, "repeat"))
        counts += _unit(hashes) < numbers - counts
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
    parts = (np.arange(len(positions)) - starts[positions]).astype(np.uint32)
    step = {"explode": column, **({"per": width} if width != 1 else {})}
    return _view(manifest, positions, step, parts, totals[positions].astype(np.uint32), allow_empty=allow_empty)


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
        current = _again(current, step, allow_empty)
    views.append((own, current))
    for location, view in views:  # all are made before the first is written
        view_file.save(view, location)
    return views


def _again(data: Manifest, step: dict[str, Any], allow_empty: bool) -> Manifest:
    """Return the view that a recorded step makes of a data set."""
    match step:
        case {"split": dict(shares), "part": str(part), "by": str(by), "seed": int(seed)}:
            views = split(data, dict(shares), by=by, seed=seed, allow_empty=allow_empty)
            return views[list(shares).index(part)]
        case {"repeat": times}:
            return repeat(data, times, seed=step.get("seed", 0), allow_empty=allow_empty)
        case {"explode": by}:
            return explode(data, by, per=step.get("per", 1), allow_empty=allow_empty)
    lists = {name: step[name] for name in ("keys", "exclude") if name in step}
    values = {name: note.get("list", note["from"]) for name, note in lists.items()}
    options = {name: step[name] for name in ("where", "sample", "seed") if name in step}
    on = next((note["on"] for note in lists.values()), "key")
    return select(data, **values, **options, on=on, allow_empty=allow_empty)


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
        return arrays.to_numpy(column).astype(np.float64), values
    number = as_number(values)
    if number is not None:
        return np.full(manifest.num_samples, number, np.float64), number
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"to {what}, give a number, a column, or an array of numbers: {error}") from error
    if numbers.shape != (manifest.num_samples,):
        raise ArgumentError(
            f"to {what}, an array must have a number for each of the {manifest.num_samples:,} samples, in the order of "
            f"data.column('key'): it has the shape {list(numbers.shape)}"
        )
    return numbers, f"{counted(len(numbers), 'number')}, one a sample"


def _view(
    manifest: Manifest,
    positions: Int64s,
    step: dict[str, Any],
    parts: npt.NDArray[np.uint32] | None = None,
    totals: npt.NDArray[np.uint32] | None = None,
    *,
    allow_empty: bool,
) -> Manifest:
    """Return the view of the samples at increasing positions of a data set or view.

    ``parts`` and ``totals`` say the part of its record that each is; without them it stays the part that it was.
    """
    if not len(positions) and not allow_empty:
        which = f"the part {step['part']!r}" if "part" in step else "the view"
        raise ArgumentError(
            f"{which} would have no sample of {manifest.num_samples:,}: change the choice, or pass allow_empty=True",
            argument="allow_empty",
        )
    before = manifest.picks
    stored = positions if before is None else before.positions()[positions]
    if parts is None and before is not None and before.parts is not None and before.totals is not None:
        parts, totals = before.parts[positions], before.totals[positions]
    picks = Picks.of_positions(manifest.whole.counts, stored, parts, totals)
    about = {**step, "samples_before": manifest.num_samples, "samples_after": len(positions)}
    if before is not None and before.path:
        about["view"] = before.path
    return manifest.chosen(picks, (*manifest.made_by, about))


def _times_before(manifest: Manifest, choice: str, **same: Any) -> int:
    """Return how many splits or random subsets with the same seed a view comes from.

    Their hash, used again, would put all of a part on one side.
    """
    steps = [step for step in manifest.made_by if choice in step]
    return sum(all(step.get(name) == value for name, value in same.items()) for step in steps)


def _hashes(manifest: Manifest, name: str, purpose: bytes, seed: int, turn: int) -> Uint64s:
    """Return uint64 [samples]: the hash of each value of a column, which depends on the arguments alone."""
    person = purpose + (b"%d" % turn if turn else b"")
    start = hashlib.blake2b(digest_size=8, person=person, salt=seed.to_bytes(8, "little"))
    hashes = []
    for chunk in columns.column(manifest, name).chunks:
        digests = bytearray()
        for string in chunk.cast("large_string").fill_null("").to_pylist():
            state = start.copy()
            state.update(string.encode())
            digests += state.digest()
        hashes.append(np.frombuffer(digests, "<u8"))
    return np.concatenate([np.zeros(0, np.uint64), *hashes])


def _unit(hashes: Uint64s) -> npt.NDArray[np.float64]:
    """Return each hash as a number from 0 up to but not including 1."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
