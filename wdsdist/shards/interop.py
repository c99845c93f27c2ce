"""Folders of tars without an ``index.json``: list the tars, open them by the counts of another tool, find the splits.

Read are timm's ``_info.json``, Megatron-Energon's ``.nv-meta`` and wids' ``wids-meta.json``. They come with the data:
names in them stay below their folder, and their counts are believed only until a shard is opened.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from wdsdist import storage
from wdsdist.errors import NotFoundError, StorageError
from wdsdist.shards.manifest import Manifest, Shard, index_json
from wdsdist.shards.tar import is_tar

_MOST_BYTES = 64 << 20
_MOST_TARS = 1 << 20
_LONGEST = 1000  # letters of a pattern
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"})
_WORD = re.compile(r"[a-z]+")

_log = logging.getLogger("wdsdist")

Counts = Iterable[tuple[str, int]]
"""Tars and their samples."""


def tars_in(folder: str, options: storage.StorageOptions | None = None) -> list[str]:
    """Return the locations of the tars in a folder, without hidden files, such as unfinished ones.

    Raises `NotFoundError` for a folder that packing has not finished: shards are missing.
    """
    names = [entry.name for entry in _entries(folder, options)]
    if index_json.PACK_RECORD in names and index_json.FILE_NAME not in names:
        raise NotFoundError(
            f"{storage.shown(folder)} has not been packed to the end: run the same `wdsdist pack` again, which writes "
            f"the rest, or delete {index_json.PACK_RECORD} there to keep only the shards that it holds"
        )
    return [storage.join(folder, name) for name in names if is_tar(name)]


def _entries(folder: str, options: storage.StorageOptions | None) -> list[storage.Entry]:
    """Return what a folder holds, but no hidden tars; nothing of the web."""
    entries = [] if storage.is_read_only(folder) else storage.list(folder, options)
    return [entry for entry in entries if not (entry.name.startswith(".") and is_tar(entry.name))]


def load(folder: str, options: storage.StorageOptions, *, is_whole: bool = True) -> Manifest:
    """Return the manifest of a folder by the counts of another tool.

    ``is_whole`` is whether its tars must be one data set, and all be counted. Raises `NotFoundError` if they are not,
    or if the folder holds no counts.
    """
    file, splits = find(folder, options)
    if not splits:
        raise _no_index(folder, options) if is_whole else NotFoundError(f"{storage.shown(folder)} holds no counts")
    counts = {name: count for part in splits.values() for name, count in part.items()}
    where = storage.shown(folder)
    if is_whole and len(splits) > 1:
        raise NotFoundError(
            f"{where} holds the splits {', '.join(splits)}, as its {file} says: run `wdsdist index {where} --splits`, "
            f"which makes a data set of each, or name the tars of one by a pattern"
        )
    sizes = {
        f"{below}/{entry.name}" if below else entry.name: entry.size
        for below in sorted({name.rpartition("/")[0] for name in counts})
        for entry in _entries(storage.join(folder, below) if below else folder, options)
        if is_tar(entry.name) and not entry.is_folder
    }
    differing = counts.keys() ^ sizes.keys() if is_whole and sizes else set()
    if differing:
        raise NotFoundError(
            f"{where} holds no index.json, and its {file} does not count what lies there: {len(differing):,} "
            f"tars, such as {min(differing)}, are in only one of the two: run `wdsdist index {where}` once"
        )
    return Manifest.of(
        folder,
        [Shard(name, count, sizes.get(name, -1), "") for name, count in counts.items()],
        name=storage.split(folder)[1],
        extra={"source": {"kind": "tar"}, "counts_from": file},
        client_options=options,
    )


def _no_index(location: str, options: storage.StorageOptions) -> NotFoundError:
    """Return the error for a location without an index.json and counts, with advice."""
    where = storage.shown(location)
    if storage.is_read_only(location):
        return NotFoundError(f"{where} has no index.json: a web server lists no folder, so name index.json or the tars")
    names = [entry.name for entry in _entries(location, options)]
    try:
        if not names:  # a bucket has no empty folders
            storage.stat(location, options)
    except FileNotFoundError:
        return NotFoundError(f"{where} does not exist")
    if named := [name for name in names if name.startswith("index-") and name.endswith(".json")]:
        return NotFoundError(f"{where} holds several data sets: name one, such as {where}/{named[0]}")
    if not (tars := tars_in(location, options)):
        inner = () if storage.is_remote(location) else Path(storage.local_path(location)).glob("*/index.json")
        known = " or ".join(sorted(f"{where}/{path.parent.name}" for path in itertools.islice(inner, 4)))
        advice = f"name a data set in it{known and f', such as {known}'}, or pack its files"
        return NotFoundError(f"{where} holds neither tars nor an index.json: {advice}")
    return NotFoundError(
        f"{where} holds {len(tars):,} tar files but no index.json: run `wdsdist index {where}` "
        f"once for tars, or make a data set of files by `wdsdist pack {where} DEST`"
    )


def find(folder: str, options: storage.StorageOptions) -> tuple[str, dict[str, dict[str, int]]]:
    """Return the name of the first index of another tool beside some tars, and the samples of each tar by split.

    The name of a split is empty if the tool has no splits; each split has a tar. Raises `NotFoundError` with the reason
    for an index that cannot be used, and `StorageError`.
    """
    for file, parse in _KNOWN.items():
        content = _read(folder, file, options)
        if content is None:
            continue
        try:
            splits = {}
            for split, counts in parse(content, folder, options).items():
                listed = [{"url": name, "nsamples": count} for name, count in counts]
                samples = {shard.name: shard.num_samples for shard in index_json.entries(listed, folder)}
                if other := next((name for name in samples if not is_tar(storage.split(name)[1])), None):
                    raise ValueError(f"{other!r} is not a tar")
                if samples:
                    splits[split] = samples
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise NotFoundError(
                f"{storage.shown(folder)} holds no index.json, and its {file} cannot be used ({reason}): run "
                f"`wdsdist index {storage.shown(folder)}` once"
            ) from None
        if splits:
            return file, splits
    return "", {}


def find_splits(folder: str, names: Sequence[str], options: storage.StorageOptions) -> dict[str, list[str]]:
    """Return the tars of a folder by split: as timm or Energon say, or by a word in their names; "" for no split.

    >>> find_splits("/none", ["in-train-00.tar", "in-train-01.tar", "in-validation-00.tar"], storage.named({}, []))
    {'train': ['in-train-00.tar', 'in-train-01.tar'], 'validation': ['in-validation-00.tar']}
    """
    above, own = storage.split(folder)
    for location, prefix in ((folder, ""), (above, f"{own}/")):  # Energon writes its notes above the tars
        try:
            _, counted = find(location, options)
        except StorageError:  # a store may refuse to look there
            continue
        if len(counted) > 1:
            splits = {split: [name.removeprefix(prefix) for name in tars] for split, tars in counted.items()}
            if others := sorted({*names}.difference(*splits.values())):
                splits[""] = others
            return splits
    splits = {}
    for name in names:
        split = next((word for word in _WORD.findall(name.lower()) if word in _SPLITS), "")
        splits.setdefault(split, []).append(name)
    return splits


def warn_of_splits(folder: str, names: Sequence[str], options: storage.StorageOptions, advice: str) -> None:
    """Log a warning if the tars of a folder, which are about to become one data set, look like several splits."""
    where = storage.shown(folder)
    try:
        splits = {split: tars for split, tars in find_splits(folder, names, options).items() if split}
    except NotFoundError as error:
        _log.warning("%s: its tars are taken without regard to that file", str(error).partition(": run ")[0])
        return
    if len(splits) > 1:
        counts = ", ".join(f"{split} ({len(tars):,} of the tars)" for split, tars in splits.items())
        _log.warning("%s holds what look like splits, %s: they become one data set; %s", where, counts, advice)


def _read(folder: str, file: str, options: storage.StorageOptions) -> bytes | None:
    """Return the content of a file below a folder; ``None`` if there is no such file, or it is too large."""
    location = storage.join(folder, file)
    try:
        return storage.read(location, options) if storage.stat(location, options).size <= _MOST_BYTES else None
    except FileNotFoundError:
        return None


def _timm(content: bytes, *_: object) -> dict[str, Counts]:
    return {
        str(split): zip(tars["filenames"], tars["shard_lengths"], strict=True)
        for split, tars in json.loads(content)["splits"].items()
    }


def _wids(content: bytes, *_: object) -> dict[str, Counts]:
    return {"": [(entry["url"], entry["nsamples"]) for entry in json.loads(content)["shardlist"]]}


def _energon(content: bytes, folder: str, options: storage.StorageOptions) -> dict[str, Counts]:
    import yaml

    counts = dict(json.loads(content)["shard_counts"])
    try:
        splits = yaml.safe_load(_read(folder, ".nv-meta/split.yaml", options) or b"")
    except yaml.YAMLError as error:
        raise ValueError(f"split.yaml is not YAML: {error}") from None
    if splits is None:
        return {"": counts.items()}
    if splits.get("exclude"):
        raise ValueError("split.yaml excludes samples or tars")
    parts: dict[str, Counts] = {}
    for split, patterns in splits["split_parts"].items():
        names = itertools.chain.from_iterable(map(_expanded, patterns))
        parts[str(split)] = [(name, counts[name]) for name in itertools.islice(names, _MOST_TARS)]
    return parts


def _expanded(pattern: str) -> Iterable[str]:
    """Expand a brace pattern of a file from outside, whose ranges must not fill the memory."""
    import braceexpand

    ranges = [abs(int(stop) - int(start)) + 1 for start, stop in _RANGE.findall(pattern)]
    if len(pattern) > _LONGEST or math.prod(ranges) > _MOST_TARS:
        raise ValueError(f"split.yaml holds the pattern {pattern!r:.50}, of more than {_MOST_TARS:,} tars")
    return braceexpand.braceexpand(pattern)


_KNOWN: Mapping[str, Callable[[bytes, str, storage.StorageOptions], dict[str, Counts]]] = {
    "_info.json": _timm,
    ".nv-meta/.info.json": _energon,
    "wids-meta.json": _wids,
}
