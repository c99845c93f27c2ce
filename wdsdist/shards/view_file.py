"""Views: the chosen samples of each shard of a data set, and files that keep them.

A file names its data set, which is opened with it. So a data set outside the file's folder is opened only if both are
local, or if the user allows it.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist import storage
from wdsdist._util.array_types import Int64s, runs
from wdsdist._util.files import atomic_write, writing
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError, given
from wdsdist.shards import array_file
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from wdsdist.shards.manifest import Manifest

_ARRAYS = {"stored_counts": "<i8", "starts": "<i8", "numbers": "<u4", "parts": "<u4"}
FORMAT = array_file.Format(b"wds-view", 1, _ARRAYS, "parts", "view")
MOST_IN_A_SHARD = 2**32
"""Samples that a shard of a view may hold: their numbers take four bytes."""


@dataclass(frozen=True, eq=False)
class Picks:
    """The chosen samples of each shard, by their numbers in it."""

    stored_counts: Int64s
    """int64 [shards]: samples that each shard holds."""
    starts: Int64s
    """int64 [shards + 1]: where the numbers of each shard start, and their total."""
    numbers: npt.NDArray[np.uint32]
    """uint32 [samples]: the chosen samples of each shard in increasing order, one shard after another."""
    path: str = ""
    """The local file that the arrays are mapped from; empty if they are in memory."""
    parts: npt.NDArray[np.uint32] | None = None
    """uint32 [samples, 2]: the number of each part, from 0, and the parts of its record; ``None`` for whole samples."""

    @classmethod
    def of_positions(
        cls, stored_counts: Int64s, positions: Int64s, parts: npt.NDArray[np.uint32] | None = None
    ) -> Picks:
        """Return the picks of samples by their increasing positions on the line of all stored samples.

        >>> picks = Picks.of_positions(np.array([3, 2]), np.array([0, 2, 2, 4]))
        >>> picks.counts.tolist(), picks.of_shard(0).tolist(), picks.of_shard(1).tolist()
        ([3, 1], [0, 2, 2], [1])
        """
        counts = np.asarray(stored_counts, np.int64)
        ends = np.cumsum(counts)
        starts = np.concatenate(([0], np.searchsorted(positions, ends))).astype(np.int64)
        numbers = (positions - np.repeat(ends - counts, np.diff(starts))).astype(np.uint32)
        return cls(counts, starts, numbers, parts=parts)

    @classmethod
    def load(cls, content: bytes | Path, label: str = "") -> tuple[Picks, dict[str, Any]]:
        """Load the picks of a view from the bytes of its file, or map a local file; return them and its header.

        Raises ``FileNotFoundError``, and `IndexFormatError` with the ``label`` if the file is not a view, or damaged.
        """
        path = str(content) if isinstance(content, Path) else ""
        label = label or path
        header, arrays = FORMAT.load(content, label)
        parts = arrays.pop("parts", None)
        picks = cls(**arrays, path=path)
        counts, starts = picks.stored_counts, picks.starts
        is_whole = (
            len(starts) == len(counts) + 1
            and starts[0] == 0
            and starts[-1] == len(picks.numbers)
            and (parts is None or len(parts) == 2 * len(picks.numbers))
            and bool((starts[1:] >= starts[:-1]).all())  # their differences may wrap around
            and bool(((counts >= 0) & (counts <= MOST_IN_A_SHARD)).all())
        )
        if is_whole and len(picks.numbers):
            filled = picks.counts > 0
            is_whole = bool((np.maximum.reduceat(picks.numbers, starts[:-1][filled]) < counts[filled]).all())
        if not is_whole or (parts is not None and bool((parts[::2] >= parts[1::2]).any())):
            raise IndexFormatError(f"{label} is a damaged view: its arrays do not fit together; make it again")
        return picks if parts is None else replace(picks, parts=parts.reshape(-1, 2)), header

    @functools.cached_property
    def counts(self) -> Int64s:
        """int64 [shards]: chosen samples of each shard, repetitions counted."""
        return np.diff(self.starts)

    @functools.cached_property
    def digest(self) -> str:
        """XXH3-128 of the choice."""
        state = xxhash.xxh3_128()
        for array in FORMAT.arrays_of(self).values():
            state.update(array.data)
        return state.hexdigest()

    def of_shard(self, shard: int) -> npt.NDArray[np.uint32]:
        """Return the chosen samples of one shard."""
        return self.numbers[self.starts[shard] : self.starts[shard + 1]]

    def positions(self) -> Int64s:
        """Return int64 [samples]: the position of each chosen sample on the line of all stored samples."""
        firsts: Int64s = np.cumsum(self.stored_counts) - self.stored_counts
        return np.repeat(firsts, self.counts) + self.numbers.astype(np.int64)

    def of_shards(self, shards: Int64s) -> Picks:
        """Return the picks of some shards, in the given order."""
        places, starts = runs(self.starts, shards)
        parts = None if self.parts is None else self.parts[places]
        return Picks(self.stored_counts[shards], starts, self.numbers[places], parts=parts)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path:  # a worker maps the file itself, so that its bytes are in memory once
            return _mapped_again, (self.path, self.digest)
        return Picks, tuple(getattr(self, field.name) for field in fields(self))


def _mapped_again(path: str, digest: str) -> Picks:
    picks, _ = Picks.load(Path(path))
    if picks.digest != digest:
        raise IndexFormatError(f"the view {path} was replaced while it was in use: start again")
    return picks


def save(manifest: Manifest, path: Path) -> Path:
    """Write a view to a file, atomically; see `Manifest.save`."""
    if manifest.picks is None:
        raise ArgumentError("this data set is not a view: choose samples with select, split or repeat before you save")
    if not manifest.origin:
        raise ArgumentError(
            "no index.json lists the shards of this view: run `wdsdist index` on them, and choose from that data set"
        )
    path = path.absolute()
    if path.is_dir():
        raise DestinationError(f"{path} is a folder: name the file of the view")
    index = manifest.origin
    if not storage.is_remote(index):
        index = os.path.abspath(index)  # noqa: PTH100 - a view beside or below its data can be moved with it
        if path.is_relative_to(Path(index).parent) or Path(index).is_relative_to(path.parent):
            index = os.path.relpath(index, path.parent)
    header = {"data": index, "fingerprint": manifest.whole.fingerprint, "made_by": list(manifest.made_by)}
    with writing(f"the view {path}", "; choose another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(FORMAT.dumps(header, manifest.picks))
    return path


def count_differing(path: str, other: str) -> int:
    """Return how many samples two saved views differ in; repetitions and parts of records count.

    Raises ``FileNotFoundError``, and `IndexFormatError` if one cannot be read, or they are of different shards.
    """
    first, second = (Picks.load(Path(name))[0] for name in (path, other))
    shared = min(len(first.stored_counts), len(second.stored_counts))
    if not np.array_equal(first.stored_counts[:shared], second.stored_counts[:shared]):
        raise IndexFormatError(f"the views {path} and {other} are of different data sets")
    stored = max(int(first.stored_counts.sum()), int(second.stored_counts.sum()))
    times = [np.bincount(picks.positions(), minlength=stored) for picks in (first, second)]
    return int(np.abs(times[0] - times[1]).sum())


def is_view(location: str, options: storage.StorageOptions, deadline: storage.Deadline | None = None) -> bool:
    """Return whether there is a view file at a path or URL. Raises `StorageError` if the store does not say."""
    try:
        return storage.read(location, options, stop=len(FORMAT.magic), deadline=deadline) == FORMAT.magic
    except OSError as error:
        if getattr(error, "kind", "") in storage.PASSING:
            raise
        return False


def load(
    location: str, options: storage.StorageOptions, open_index: Callable[[str], Manifest], *, allow_elsewhere: bool
) -> Manifest:
    """Load a view, and the data set that it is of, whose ``index.json`` a function opens.

    Raises `IndexFormatError` if the file is damaged, its data set has other samples now, or lies elsewhere and is not
    allowed.
    """
    picks, index, header = read(location, options, allow_elsewhere=allow_elsewhere)
    whole = open_index(index)
    covered = len(picks.stored_counts)
    if covered <= len(whole.counts):  # the data set may have grown since
        then = whole.prefix(covered)
        if np.array_equal(then.counts, picks.stored_counts) and then.fingerprint == header["fingerprint"]:
            return then.chosen(picks, tuple(header["made_by"]))
    raise IndexFormatError(
        f"the view {storage.shown(location)} was made of {covered:,} shards with "
        f"{int(picks.stored_counts.sum()):,} samples, which {storage.shown(whole.base)} does not have now: make it "
        f"again with `wdsdist select --refresh`"
    )


def read(location: str, options: storage.StorageOptions, *, allow_elsewhere: bool) -> tuple[Picks, str, dict[str, Any]]:
    """Return the picks of a view, the location of the ``index.json`` of its data, and its header."""
    is_remote = storage.is_remote(location)
    if not is_remote:
        location = str(storage.local_path(location).absolute())
    shown, folder = storage.shown(location), storage.split(location)[0]
    picks, header = Picks.load(storage.read(location, options) if is_remote else Path(location), shown)
    data, steps = header.get("data"), header.get("made_by")
    is_list = isinstance(steps, list) and all(isinstance(step, dict) for step in steps)
    if not (is_list and isinstance(header.get("fingerprint"), str) and isinstance(data, str) and data):
        raise IndexFormatError(f"{shown} is a damaged view: its header lacks a part; make it again")
    index = storage.join(folder, data)
    is_far = storage.is_remote(index)
    try:
        check_location(folder, data, elsewhere=allow_elsewhere or not (is_remote or is_far))
    except ElsewhereError:
        raise IndexFormatError(
            f"the view {shown} is of the data set {storage.shown(index)}, outside its own folder: if you know "
            f"where that leads and want it, open the view with {given('allow_elsewhere', True)}"
        ) from None
    except ValueError as error:
        raise IndexFormatError(f"the view {shown} names {storage.shown(data)!a}, which {error}") from None
    return picks, index if is_far else os.path.normpath(index), header
