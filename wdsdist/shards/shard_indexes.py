"""The indexes of the shards of a data set: read on demand, several remote ones at once, or made by a scan."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wdsdist import storage
from wdsdist._util.files import atomic_write, lies_in, open_files_remedy, reading
from wdsdist._util.host import is_own_file, make_dirs, user_dir
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.shards.index import SUFFIX, ShardIndex, beside, dumps, load, places
from wdsdist.shards.tar import FIRST_DOT

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_AT_ONCE, _AHEAD = 16, 64
"""Remote indexes that are fetched at once, and that are fetched before the first of them is used."""
_MOST_KEPT = 4_000_000
"""Members of the remote indexes that are kept in memory, about; each takes some 40 bytes."""


def shard_index(
    manifest: Manifest, number: int, *, deadline: storage.Deadline | None = None, keep: bool = True
) -> ShardIndex:
    """Return the index of a shard, and keep a remote one in memory (``keep``); one without an index is scanned.

    Raises what `wdsdist.open` raises for a shard, and `ShardDamagedError` for the index of another shard.
    """
    manifest, number = manifest.part(number)
    location, rule = manifest.location(number), manifest.key_rule
    if not storage.is_remote(location):
        path = storage.local_path(location)
        return manifest.check_index(number, local_index(path, listed_in=manifest.base, key_rule=rule), path)
    if (known := manifest.kept.get(location)) is not None:
        return known
    options, shown = manifest.client_options, manifest.shown_name(number)

    def parse(content: bytes, _: bool) -> ShardIndex:
        return load(content, f"{shown}{SUFFIX}")

    for location_of_index in places(location, manifest.base):
        try:
            index = storage.read_until(location_of_index, parse, options, deadline=deadline)
            break
        except NotFoundError:
            pass
        except StorageError as error:
            if "?" not in location or error.kind in storage.PASSING:  # a signature is for the shard alone
                raise
    else:
        from wdsdist.shards import scan

        index = scan.scan_remote(location, int(manifest.sizes[number]), options, key_rule=rule, deadline=deadline)
    index = manifest.check_index(number, index, shown)
    if keep and len(index.offsets) * len(manifest.kept) < _MOST_KEPT:
        manifest.kept[location] = index
    return index


def shard_indexes(manifest: Manifest, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, ShardIndex]]:
    """Yield the number and the index of some shards, in order; remote ones are fetched ahead, several at once.

    By default of all shards that have samples. Raises what `shard_index` raises.
    """
    numbers = np.flatnonzero(manifest.counts).tolist() if numbers is None else list(numbers)
    if not any(storage.is_remote(manifest.location(number)) for number in numbers):
        yield from ((number, shard_index(manifest, number)) for number in numbers)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as executor:
        for start in range(0, len(numbers), _AHEAD):
            part = numbers[start : start + _AHEAD]
            yield from zip(part, executor.map(functools.partial(shard_index, manifest), part), strict=True)


def extensions_in(manifest: Manifest) -> list[str]:
    """Return the extensions of a data set: as its packer noted, or else of its first shard."""
    noted = manifest.extra.get("fields")
    if isinstance(noted, list):
        return [str(extension).lower() for extension in noted]
    filled = np.flatnonzero(manifest.whole.counts)
    extensions = shard_index(manifest, int(filled[0])).extensions if len(filled) else ()
    return sorted({extension.lower() for extension in extensions})


def local_index(path: Path, *, listed_in: str | None = None, key_rule: str = FIRST_DOT) -> ShardIndex:
    """Return the index of a local tar: beside it, in the folder of its ``index.json``, or in the user's cache.

    A tar without an index is scanned once, and its index is kept in the first of these places that can be written.

    ``listed_in`` is the folder of that ``index.json``.

    Raises `NotFoundError` if the tar does not exist, and `ShardDamagedError` if it disagrees with its index.
    """
    with reading(f"shard {path}"):
        status = regular(path)
    base = str(path.parent) if listed_in is None else listed_in
    for location in places(str(path), base):
        if storage.is_remote(location):
            continue
        try:
            index = load(Path(location))
        except OSError as error:  # it does not exist, or its name is longer than the file system allows
            if open_files_remedy(error):
                with reading(f"shard {path}"):
                    raise
            continue
        if index.file.size == status.st_size:
            return index
        how = "short of" if status.st_size < index.file.size else "longer than"
        raise ShardDamagedError(
            f"shard {path} is {abs(status.st_size - index.file.size):,} bytes {how} its index ({index.file.size:,}): "
            f"fetch or pack it again, or run `wdsdist index` if it was replaced on purpose"
        )
    # The time of the last change is part of the name: a tar that is replaced must not keep its old index.
    identity = f"{path.absolute()}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape")
    cached = None
    with contextlib.suppress(ArgumentError):  # of a user without a home directory
        cached = user_dir("cache") / "indexes" / f"{hashlib.sha256(identity).hexdigest()[:32]}{SUFFIX}"
    if cached is not None and is_own_file(cached):  # an index in the cache is trusted if this user alone can write it
        with contextlib.suppress(OSError, IndexFormatError):
            if (index := load(cached)).file.size == status.st_size:
                return index
    from wdsdist.shards import scan

    index = scan.scan_shard(path, key_rule=key_rule)
    # A link in a data set must not make us write outside it.
    is_inside = storage.is_remote(base) or lies_in(path, storage.local_path(base))
    for target, mode in ((beside(path) if is_inside else None, 0o666), (cached, 0o644)):
        with contextlib.suppress(OSError):
            if target is not None:
                make_dirs(target.parent)
                with atomic_write(target, mode) as stream:
                    stream.write(dumps(index))
                break
    return index


def regular(path: Path) -> os.stat_result:
    """Return the ``stat`` of a regular file, without opening it: opening a pipe could block indefinitely.

    Raises `ShardDamagedError` for other kinds of file, and ``FileNotFoundError``.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ShardDamagedError(f"shard {path} is a folder, pipe or device, not a file: remove it, and fetch it again")
    return status
