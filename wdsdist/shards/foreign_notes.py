"""Notes of other tools beside their tars: sample counts, which open a data set without an index pass, and splits.

Read are timm's ``_info.json``, Megatron-Energon's ``.nv-meta``, wids' and VILA's ``wids-meta.json``, the ``sizes.json``
of open_clip and DataComp, and open_lm's ``manifest.jsonl``. They come with the data: names in them stay below their
folder, and their counts are believed only until a shard is opened.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist.errors import IndexNotFoundError, StorageError
from wdsdist.shards.manifest import check_location
from wdsdist.shards.tar import is_tar

_MOST_BYTES = 64 << 20
_MOST_TARS = 1 << 20
_SPLIT = frozenset({"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"})
_LONGEST = 1000  # letters of a pattern
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_WORD = re.compile(r"[a-z]+")

_log = logging.getLogger("wdsdist")

Counts = dict[str, int]
"""Samples by tar."""
Splits = dict[str, Counts]
"""Counts by split; the name is empty where a tool has none."""


@dataclass(frozen=True, slots=True)
class ForeignNotes:
    """What a tool noted of the tars in a folder."""

    file: str
    """Name of its file below the folder."""
    splits: Splits
    """Those with a tar, which lies below the folder."""

    @property
    def counts(self) -> Counts:
        """The counts of all splits together."""
        return {name: count for counts in self.splits.values() for name, count in counts.items()}


def find(folder: str, options: storage.StorageOptions) -> ForeignNotes | None:
    """Return the first notes beside some tars that can be used; ``None`` where there are none.

    Raises `IndexNotFoundError` with the reason for notes that cannot be used, `StorageError` where a store cannot be
    read.
    """
    for file, parse in _KNOWN.items():
        content = _read(folder, file, options)
        if content is None:
            continue
        try:
            splits = {name: counts for name, counts in parse(content, folder, options).items() if counts}
            for name, count in itertools.chain.from_iterable(counts.items() for counts in splits.values()):
                _check(folder, name, count)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise IndexNotFoundError(
                f"{storage.shown(folder)} holds no index.json, and its {file} cannot stand in ({reason}): run "
                f"`wdsdist index {storage.shown(folder)}`"
            ) from None
        if splits:
            return ForeignNotes(file, splits)
    return None


def find_splits(folder: str, names: Iterable[str], options: storage.StorageOptions) -> dict[str, list[str]]:
    """Return the tars of a folder by the split that notes or their names put them in; those of none have an empty one.

    >>> find_splits("/none", ["in-train-00.tar", "in-train-01.tar", "in-validation-00.tar"], storage.named({}, []))
    {'train': ['in-train-00.tar', 'in-train-01.tar'], 'validation': ['in-validation-00.tar']}
    """
    of_name = _noted_splits(folder, options)
    if len(set(of_name.values())) < 2:
        of_name = {}
    found: dict[str, list[str]] = {}
    for name in names:
        words = _WORD.findall(name.lower())
        split = of_name.get(name, "") if of_name else next((word for word in words if word in _SPLIT), "")
        found.setdefault(split, []).append(name)
    return found


def warn_of_splits(folder: str, names: Iterable[str], options: storage.StorageOptions, advice: str) -> None:
    """Log a warning where the tars of a folder, which are about to become one data set, look like several splits."""
    splits = {split: tars for split, tars in find_splits(folder, names, options).items() if split}
    if len(splits) > 1:
        counts = ", ".join(f"{split} ({len(tars):,} of the tars)" for split, tars in splits.items())
        where = storage.shown(folder)
        _log.warning("%s holds what look like splits, %s: they become one data set; %s", where, counts, advice)


def _noted_splits(folder: str, options: storage.StorageOptions) -> dict[str, str]:
    """Return the split of each tar in a folder by the notes in it, or above it, where Megatron-Energon writes them."""
    above, own = storage.split(folder)
    for place, prefix in ((folder, ""), (above, f"{own}/")):
        try:
            notes = find(place, options) if place else None
        except IndexNotFoundError as error:
            reason = str(error).partition(": run ")[0]
            _log.warning("%s: tars are indexed or packed without regard to that file", reason)
            return {}
        except StorageError:
            return {}
        if notes:
            splits = notes.splits.items()
            return {name.removeprefix(prefix): split for split, counts in splits for name in counts}
    return {}


def _read(folder: str, file: str, options: storage.StorageOptions) -> bytes | None:
    """Return the content of a file below a folder; ``None`` where there is none, or one that is too large."""
    location = storage.join(folder, file)
    try:
        if storage.is_remote(folder):
            fits = storage.entry(location, options).size <= _MOST_BYTES
        else:
            status = Path(location).stat()
            fits = stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_BYTES
        return storage.read(location, options) if fits else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if storage.is_remote(folder):
            raise
        raise StorageError(f"{location} cannot be read: {error.strerror}") from error


def _check(folder: str, name: str, count: object) -> None:
    if not is_tar(storage.split(name)[1]):
        raise ValueError(f"{name!r} is no tar")
    try:
        check_location(folder, name)
    except ValueError as error:
        raise ValueError(f"{storage.shown(name)!r} {error}") from None
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 1 << 62:
        raise ValueError(f"{name!r} has the count {count!r:.50}")


def _pairs(pairs: Iterable[tuple[str, int]]) -> Counts:
    found: Counts = {}
    for name, count in pairs:
        if found.setdefault(name, count) != count:
            raise ValueError(f"{name!r} has two counts")
    return found


def _timm(content: bytes, *_: object) -> Splits:
    splits = json.loads(content)["splits"]
    return {
        str(split): _pairs(zip(one["filenames"], one["shard_lengths"], strict=True)) for split, one in splits.items()
    }


def _wids(content: bytes, *_: object) -> Splits:
    return {"": _pairs((entry["url"], entry["nsamples"]) for entry in json.loads(content)["shardlist"])}


def _sizes(content: bytes, *_: object) -> Splits:
    return {"": dict(json.loads(content))}


def _open_lm(content: bytes, *_: object) -> Splits:
    rows = map(json.loads, content.decode().splitlines())
    counts = ((row["shard"], row["num_sequences" if "num_sequences" in row else "num_chunks"]) for row in rows)
    return {"": _pairs((f"{shard}.tar", count) for shard, count in counts)}


def _energon(content: bytes, folder: str, options: storage.StorageOptions) -> Splits:
    import yaml

    counts: Counts = dict(json.loads(content)["shard_counts"])
    try:
        splits = yaml.safe_load(_read(folder, ".nv-meta/split.yaml", options) or b"")
    except yaml.YAMLError as error:
        raise ValueError(f"split.yaml is no YAML: {error}") from None
    if splits is None:
        return {"": counts}
    if splits.get("exclude"):
        raise ValueError("split.yaml excludes samples or tars")
    found: Splits = {}
    for split, patterns in splits["split_parts"].items():
        names = itertools.chain.from_iterable(map(_expanded, patterns))
        found[str(split)] = {name: counts[name] for name in itertools.islice(names, _MOST_TARS)}
    return found


def _expanded(pattern: str) -> Iterable[str]:
    """Expand a brace pattern of a file from outside, whose ranges must not fill the memory."""
    import braceexpand

    ranges = [abs(int(stop) - int(start)) + 1 for start, stop in _RANGE.findall(pattern)]
    if len(pattern) > _LONGEST or math.prod(ranges) > _MOST_TARS:
        raise ValueError(f"split.yaml holds the pattern {pattern!r:.50}, of more than {_MOST_TARS:,} tars")
    return braceexpand.braceexpand(pattern)


_KNOWN: Mapping[str, Callable[[bytes, str, storage.StorageOptions], Splits]] = {
    "_info.json": _timm,
    ".nv-meta/.info.json": _energon,
    "wids-meta.json": _wids,
    "sizes.json": _sizes,
    "manifest.jsonl": _open_lm,
}
