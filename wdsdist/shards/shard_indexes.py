"""The indexes of the shards of a data set, local or remote: read on demand, several remote ones at once."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from wdsdist import storage
from wdsdist.errors import IndexFormatError, NotFoundError, StorageError
from wdsdist.shards import index as shard_files
from wdsdist.shards import local_index
from wdsdist.shards.index import ShardIndex

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_AT_ONCE, _AHEAD = 16, 64
"""Remote indexes that are fetched at once, and that are fetched before the first of them is used."""


def shard_index(
    manifest: Manifest, number: int, *, deadline: storage.Deadline | None = None, keep: bool = True
) -> ShardIndex:
    """Return the index of a shard, local or remote, without its members' bytes if it has an index.

    Args:
        manifest: the data set.
        number: of the shard.
        deadline: of the requests for a remote index.
        keep: whether to keep a remote index in memory.

    Raises what `wdsdist.open` raises for a shard, and `ShardDamagedError` for the index of another shard.
    """
    manifest, number = manifest.part(number)
    location, shown = manifest.location(number), manifest.shown_name(number)
    if (known := manifest.kept.get(location)) is not None:
        return known
    if storage.is_remote(location):
        index = _remote_index(manifest, number, deadline)
    else:
        path = storage.local_path(location)
        index = local_index.shard_index(path, listed_in=manifest.base, key_rule=manifest.key_rule)
    manifest.check_index(number, index, shown)
    if keep and storage.is_remote(location):
        manifest.kept.add(location, index)
    return index


def shard_indexes(manifest: Manifest, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, ShardIndex]]:
    """Yield the number and the index of some shards, in order; remote ones are fetched ahead, several at once.

    By default of all shards that have samples. Raises what `shard_index` raises.
    """
    numbers = np.flatnonzero(manifest.counts).tolist() if numbers is None else list(numbers)
    if not any(storage.is_remote(manifest.location(number)) for number in numbers):
        yield from ((number, shard_index(manifest, number)) for number in numbers)
        return
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as executor:
        for start in range(0, len(numbers), _AHEAD):
            part = numbers[start : start + _AHEAD]
            yield from zip(part, executor.map(functools.partial(shard_index, manifest), part), strict=True)


def _remote_index(manifest: Manifest, number: int, deadline: storage.Deadline | None) -> ShardIndex:
    location, base, options = manifest.location(number), manifest.base, manifest.client_options
    places = storage.join(base, shard_files.index_name(location, base)), storage.beside(location, shard_files.SUFFIX)
    wrong = b""

    def accept(content: bytes, _: str) -> ShardIndex:
        nonlocal wrong
        try:
            return shard_files.loads(content, storage.shown(place))
        except IndexFormatError as error:
            if content == wrong:  # the store holds it so
                raise
            wrong = content
            raise storage.Failure("broken", str(error)) from None

    for place in dict.fromkeys(places):
        try:
            return storage.read_until(place, accept, options, deadline=deadline)
        except FileNotFoundError:
            pass
        except StorageError as error:
            if "?" not in location or error.kind in storage.PASSING:  # a signature is for the shard alone
                raise
    from wdsdist.shards import scan_remote

    size = int(manifest.sizes[number])
    try:
        return scan_remote.index_remote(
            location, size if size >= 0 else None, options, key_rule=manifest.key_rule, deadline=deadline
        )
    except FileNotFoundError as error:
        raise NotFoundError(f"shard {manifest.shown_name(number)} does not exist") from error


def extensions_in(manifest: Manifest) -> list[str]:
    """Return the extensions of a data set: as its packer noted, or else of its first shard."""
    noted = manifest.extra.get("fields")
    if isinstance(noted, list):
        return [str(extension).lower() for extension in noted]
    filled = np.flatnonzero(manifest.whole.counts)
    extensions = shard_index(manifest, int(filled[0])).extensions if len(filled) else ()
    return sorted({extension.lower() for extension in extensions})
