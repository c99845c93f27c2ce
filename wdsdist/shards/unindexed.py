"""Folders without an ``index.json``: open them by the counts of another tool, or say what to do with them.

Read are timm's ``_info.json``, Megatron-Energon's ``.nv-meta``, wids' and VILA's ``wids-meta.json``, the ``sizes.json``
of open_clip and DataComp, and open_lm's ``manifest.jsonl``. They come with the data: names in them stay below their
folder, and their counts are believed only until a shard is opened.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
import math
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from wdsdist import storage
from wdsdist.errors import IndexFormatError, NotFoundError, StorageError
from wdsdist.shards.manifest import Manifest, Shard, check_location, index_json
from wdsdist.shards.tar import is_tar

_FIRST_PART = re.compile(r"\.t(?:ar|gz)(?:\.\w+)?[._-](?:part[._-]?)?(?:a+|0*[01])", re.IGNORECASE)
_LOOKS, _DEPTH = 50, 3
"""Folders that a hint looks into, and how deep."""
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


def by_foreign_counts(
    folder: str, options: storage.StorageOptions, locations: Sequence[str] | None = None
) -> Manifest | None:
    """Return the manifest of a folder without ``index.json`` by the counts of another tool; ``None`` without these.

    Of ``locations``, where given, all must be counted. Raises `NotFoundError` where the counts are not of the tars
    that lie there, or of several splits.
    """
    notes = find(folder, options)
    if notes is None or (locations and not {storage.split(one)[1] for one in locations} <= notes.counts.keys()):
        return None
    where = storage.shown(folder)
    if locations is None and len(notes.splits) > 1:
        raise NotFoundError(
            f"{where} holds the splits {', '.join(notes.splits)}, as its {notes.file} says: run `wdsdist index {where} "
            f"--splits`, which makes a data set of each, or name the tars of one by a pattern"
        )
    counts = notes.counts
    names = list(counts) if locations is None else [storage.split(one)[1] for one in locations]
    sizes = _sizes_of_tars(folder, names, options)
    if locations is None and sizes:
        missing = [name for name in names if name not in sizes]
        extra = sorted(sizes.keys() - set(names))
        for problem, wrong in (("are in it alone", missing), ("are not in it", extra)):
            if wrong:
                raise NotFoundError(
                    f"{where} holds no index.json, and its {notes.file} does not count what lies "
                    f"there: {len(wrong):,} tars, such as {wrong[0]}, {problem}: run `wdsdist index {where}`"
                )
    return Manifest.of(
        folder,
        [Shard(name, counts[name], sizes.get(name, -1), "") for name in names],
        name=storage.split(folder)[1],
        extra={"source": {"kind": "tar"}, "counts_from": notes.file},
        storage_options=dict(options.given),
        stores=options.stores,
    )


def _sizes_of_tars(folder: str, names: Sequence[str], options: storage.StorageOptions) -> dict[str, int]:
    """Return the size of each tar in the folders of some tars, by its name; none on the web, which may not list any."""
    if storage.is_read_only(folder):
        return {}
    found = {}
    for below in sorted({name.rpartition("/")[0] for name in names}):
        for entry in storage.list(storage.join(folder, below) if below else folder, options):
            if is_tar(entry.name) and not entry.name.startswith(".") and not entry.is_folder:
                found[f"{below}/{entry.name}" if below else entry.name] = entry.size
    return found


def no_index(location: str, options: storage.StorageOptions) -> NotFoundError:
    """Return the error for a location that is no data set, with what to do."""
    where = storage.shown(location)
    if storage.is_read_only(location):
        return NotFoundError(f"{where} has no index.json: a web server lists no folder, so name index.json or the tars")
    names = _names(location, options)
    if not names and not _exists(location, options):  # a bucket has no folders, but what lies in them
        return NotFoundError(f"{where} does not exist")
    if not storage.is_remote(location) and not Path(location).is_dir():
        return NotFoundError(f"{where} is neither a folder, an index.json nor a .tar file")
    own = [name for name in names if name.startswith("index-") and name.endswith(".json")]
    if own:
        return NotFoundError(f"{where} holds several data sets: name one, such as {where}/{own[0]}")
    tars = len(tars_in(location, options))
    if tars:
        return NotFoundError(f"{where} holds {tars:,} tar files but no index.json: run `wdsdist index {where}`")
    return NotFoundError(
        f"{where} holds no index.json and no tar files: it is not a data set{tars_below(location, options)}"
    )


def _names(folder: str, options: storage.StorageOptions | None) -> list[str]:
    return [] if storage.is_read_only(folder) else [entry.name for entry in storage.list(folder, options)]


def _exists(location: str, options: storage.StorageOptions) -> bool:
    try:
        storage.stat(location, options)
    except FileNotFoundError:
        return False
    return True


def tars_below(location: str, options: storage.StorageOptions) -> str:
    """Return a hint at the folders below one that hold tars; an empty text where none are found in a short search."""
    found: list[str] = []
    todo = collections.deque([(location, 0)])
    for _ in range(_LOOKS):
        if not todo:
            break
        folder, depth = todo.popleft()
        names = [name for name in _names(folder, options) if not name.startswith(".")]
        if folder != location and any(map(is_tar, names)):
            found.append(folder)
        elif depth < _DEPTH:
            todo += [(storage.join(folder, name), depth + 1) for name in names if not PurePath(name).suffix]
    if not found:
        parts = [name for name in _names(location, options) if _FIRST_PART.search(name)]
        if parts:
            return f": {parts[0]} is part of a tar that was split: join the parts by `cat`, or run `wdsdist pack`"
        return f". `wdsdist pack {storage.shown(location)} DEST` makes a data set of files"
    where, first = storage.shown(location), storage.shown(found[0])
    if len(found) == 1:
        return f". Tars lie in {first}: name that"
    pattern = where + "/*" * (first.removeprefix(where).count("/")) + "/*.tar"
    return (
        f". Tars lie in {len(found)} folders below it, such as {first}: name one of them, or index all as one data set "
        f"by `wdsdist index '{pattern}' --output DIR`"
    )


def tars_in(folder: str, options: storage.StorageOptions | None = None) -> list[str]:
    """Return the locations of the tars in a folder, without hidden files, such as unfinished ones.

    Raises `NotFoundError` for a folder that packing has not finished, where shards are missing.
    """
    names = _names(folder, options)
    if index_json.PACK_RECORD in names and index_json.FILE_NAME not in names:
        raise NotFoundError(
            f"{storage.shown(folder)} has not been packed to the end: run the same `wdsdist pack` again, which writes "
            f"the rest, or delete {index_json.PACK_RECORD} there if what it holds is to be all"
        )
    tars = [name for name in names if is_tar(name) and not name.startswith(".")]
    if storage.is_remote(folder):
        check_names(folder, tars)
    return [storage.join(folder, name) for name in tars]


def check_names(folder: str, names: list[str], *, elsewhere: bool = False) -> None:
    """Raise `IndexFormatError` for the first tar whose name an ``index.json`` in the folder may not hold."""
    for name in names:
        try:
            check_location(folder, name, elsewhere=elsewhere)
        except ValueError as error:
            raise IndexFormatError(f"the tar {storage.shown(name)!a} {error}: rename it") from None


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

    Raises `NotFoundError` with the reason for notes that cannot be used, `StorageError` where a store cannot be
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
            raise NotFoundError(
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
        except NotFoundError as error:
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
            fits = storage.stat(location, options).size <= _MOST_BYTES
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
    rows = map(json.loads, content.splitlines())
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
