"""Export the index of another tool: NVIDIA DALI, Megatron-Energon, wids or timm.

Sources: DALI's `wds2idx`, index version v1.2; Megatron-Energon's "Dataset Format on Disk" and its `TarIndexReader`;
the wids shard index, version 1; timm's `reader_wds`.
"""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.files import atomic_write, lies_in, writing
from wdsdist._util.pools import pool
from wdsdist.errors import ArgumentError, DestinationError, SampleError, ShardDamagedError, StorageError
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.open import Location, Shards
from wdsdist.shards.open import open as open_shards
from wdsdist.shards.shard_indexes import local_index
from wdsdist.shards.tar import FIRST_DOT

_ENERGON_VERSION = "7.4.1"
"""The release of this format; Energon converts the files of older ones."""
_SPLITS = ("train", "val", "test")
FORMATS = ("dali", "energon", "wids", "timm")
"""The formats that `export` writes."""


def export(
    shards: Shards,
    format: str,  # noqa: A002 - what everyone calls it
    *,
    output: Location | None = None,
    split: str = "train",
    workers: int | None = None,
) -> list[Path]:
    """Write the index that another tool needs for a data set, and return its files.

    Args:
        shards: what `wdsdist.open` takes.
        format: ``"dali"`` (an ``.idx`` for each tar), ``"energon"`` (``.nv-meta`` and a ``.tar.idx`` for each tar),
            ``"wids"`` (``wids.json``) or ``"timm"`` (``_info.json``).
        output: the folder to write into; by default the folder of the shards. Energon needs them there.
        split: the name of the split, for formats with splits: ``"train"``, ``"val"`` or ``"test"`` for Energon, any
            name for timm.
        workers: processes that read; by default one per core.

    DALI, Energon and wids read members in place, so they cannot read compressed shards. timm streams tars, so it can
    read shards compressed by gzip.

    Raises `ArgumentError` for a format that does not exist or cannot hold the data set, `DestinationError` if the
    folder cannot be written, and what `wdsdist.open` raises.

    >>> import tempfile, wdsdist
    >>> folder = Path(tempfile.mkdtemp()) / "shards"
    >>> manifest = wdsdist.pack([{"__key__": "0001", "txt": "hello"}], folder)
    >>> [path.name for path in export(manifest, "dali")]
    ['shard-000000.idx']
    >>> (folder / "shard-000000.idx").read_text()
    'v1.2 1\\ntxt 512 5 0001.txt\\n'
    """
    if format not in FORMATS:
        raise ArgumentError(f"format is {format!r}: it can be {', '.join(map(repr, FORMATS))}", argument="format")
    manifest = open_shards(shards)
    if manifest.whole is not manifest:
        raise ArgumentError(f"{format} lists whole shards, not the samples of a view: `wdsdist pack` the view first")
    for number, shard in enumerate(manifest.shards):
        if shard.is_compressed and not (format == "timm" and re.search(r"gz(?:\?|$)", shard.name, re.IGNORECASE)):
            name = manifest.shown_name(number)
            raise ArgumentError(f"{format} cannot read {name}, which is compressed: decompress it to a plain .tar")
    if manifest.key_rule != FIRST_DOT and format != "dali":
        rule = manifest.key_rule
        raise ArgumentError(f"{format} cuts names at the first dot, not by {rule!r}: `wdsdist pack` the data set first")
    extra = manifest.extra
    if format != "dali" and (extra.get("scattered") or extra.get("on_error") == "skip"):
        raise ArgumentError(
            f"{format} reads whole tars from start to end, but some of {storage.shown(manifest.base)} hold scattered "
            f"or damaged samples: `wdsdist pack` them first"
        )
    target = storage.normalise(output) if output is not None else manifest.base
    if storage.is_remote(target):
        raise ArgumentError(f"{storage.shown(target)} is remote: name a local folder for the index as output")
    files = _files(manifest, format, Path(target), split, workers)
    for path in files:
        if not lies_in(path, Path(target)):
            raise DestinationError(f"{path.parent} is a link out of {target}, and nothing is written there: remove it")
    for path, content in files.items():
        with writing(path, "; name another output folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as stream:
                stream.write(content)
    return list(files)


def _files(manifest: Manifest, format: str, folder: Path, split: str, workers: int | None) -> dict[Path, bytes]:  # noqa: A002
    """Return the content of each file of an index in a folder."""
    numbers = range(len(manifest.counts))
    locations = [manifest.location(number) for number in numbers]
    is_beside = all(storage.split(location)[0] == str(folder) for location in locations)
    names = [storage.split(location)[1] for location in locations] if is_beside else locations
    counts: list[int] = manifest.counts.tolist()
    if format == "wids":
        shards = [
            {"url": name, "nsamples": shard.num_samples, **({"filesize": shard.size} if shard.size >= 0 else {})}
            for name, shard in zip(names, manifest.shards, strict=True)
        ]
        about = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": manifest.name, "shardlist": shards}
        return {folder / "wids.json": _json(about)}
    if format == "timm":
        about = {"name": split, "num_samples": manifest.num_samples, "filenames": names, "shard_lengths": counts}
        return {folder / "_info.json": _json({"splits": {split: about}})}
    for location in locations:
        if storage.is_remote(location):
            raise StorageError(f"{storage.shown(location)} is remote: this index is made from local shards")
    if format == "energon" and not is_beside:
        raise ArgumentError(f"Energon looks for its index beside the shards, not in {folder}: leave output out")
    if format == "energon" and split not in _SPLITS:
        raise ArgumentError(f"split is {split!r}: Energon knows {', '.join(map(repr, _SPLITS))}")
    paths = [storage.local_path(location) for location in locations]
    bases = [manifest.part(number)[0].base for number in numbers]  # indexes may lie there too
    make = _sample_starts if format == "energon" else _dali_lines
    with pool(workers, len(paths)) as executor:
        contents = list(executor.map(make, paths, bases))
    if format == "dali":
        targets = [(path.parent if is_beside else folder) / f"{path.stem}.idx" for path in paths]
        if len(set(targets)) < len(targets):
            raise ArgumentError(f"some shards have the same name: their indexes need folders other than {folder}")
        return dict(zip(targets, contents, strict=True))
    # JSON is YAML, and needs no package.
    splits = {"split_parts": {part: names if part == split else [] for part in _SPLITS}, "exclude": []}
    info = {"energon_version": _ENERGON_VERSION, "shard_counts": dict(zip(names, counts, strict=True))}
    return {
        **{path.with_name(f"{path.name}.idx"): content for path, content in zip(paths, contents, strict=True)},
        folder / ".nv-meta" / "split.yaml": _json(splits),
        folder / ".nv-meta" / ".info.json": _json(info),
    }


def _sample_starts(path: Path, folder: str) -> bytes:
    """Return the offset of each sample's first header, and of the closing blocks: int64 [n + 1], as bytes."""
    index = local_index(path, listed_in=folder)
    firsts = frozenset(index.offsets[index.sample_starts[:-1]].tolist())
    starts: list[int] = []
    with contextlib.suppress(tarfile.TarError), tarfile.open(path, "r:") as tar:
        for entry in iter(tar.next, None):
            tar.members.clear()  # type: ignore[attr-defined]  # each takes a kilobyte
            if entry.offset_data in firsts:
                starts.append(entry.offset)
        starts.append(tar.offset)
    if len(starts) <= index.num_samples:
        raise ShardDamagedError(f"shard {path} does not hold what its index says: run `wdsdist verify` on its folder")
    return np.array(starts, np.int64).tobytes()


def _dali_lines(path: Path, folder: str) -> bytes:
    index = local_index(path, listed_in=folder)
    lines = [f"v1.2 {index.num_samples}"]
    for sample in range(index.num_samples):
        key = index.key(sample)
        words = []
        for extension, offset, size in index.members(sample):
            name = f"{key}.{extension}"
            if re.search(r"[ \t-\r]", name):
                raise SampleError(f"{path} holds {name!r}: DALI's index separates by blanks, so no name may hold one")
            words += [extension, str(offset), str(size), name]
        lines.append(" ".join(words))
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()
