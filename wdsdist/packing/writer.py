"""Write one shard and the index beside it, each whole or not at all, and recognise those that are whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wdsdist import shardindex, storage
from wdsdist.errors import DestinationError, IndexFormatError, SourceError, WdsdistError
from wdsdist.packing.place import Place
from wdsdist.shardindex import ShardIndex, ShardIndexBuilder
from wdsdist.sources import FilePayload, Payload, RangePayload, Samples, payload_size
from wdsdist.tarformat import END, header, padding

_CHUNK = 4 << 20  # bytes of a large file that are read at once
_BATCH = 1 << 20
_AGAIN = "pack again once the source is at rest"


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """What the manifest needs to know of a shard."""

    name: str
    num_samples: int
    size: int
    sha256: str
    extensions: tuple[str, ...]
    payload_bytes: int
    """Bytes of all members, without headers and padding."""


def write_shard(place: Place, name: str, samples: Samples) -> WrittenShard:
    """Write a tar of the samples, then its index.

    Raises:
        SourceError: a file has changed or vanished since it was listed.
        DestinationError: the place cannot be written.
    """
    try:
        with place.create(name) as stream:
            index = _write_tar(stream.write, samples, storage.shown(place.at(name)))
        # The index comes second: a tar that has one is whole.
        with place.create(name + shardindex.SUFFIX) as stream:
            stream.write(shardindex.dumps(index))
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(
            f"{storage.shown(place.at(name))} cannot be written: {error.strerror or error}"
        ) from error
    return _summary(name, index)


def whole_shard(
    place: Place, name: str, *, found: int | None, size: int | None, num_samples: int
) -> WrittenShard | None:
    """Return what is known of a shard that an earlier run wrote whole, or ``None`` where it did not.

    ``found`` is the size that it has, or ``None`` where it is not there; ``size`` is what it must have, or ``None``
    where that is known only from its index.
    """
    if found is None:
        return None
    try:
        index = shardindex.loads(place.read(name + shardindex.SUFFIX), storage.shown(place.at(name)))
    except (FileNotFoundError, IndexFormatError):
        return None
    if found != index.size or size not in (None, found) or index.num_samples != num_samples:
        return None
    return _summary(name, index)


def _write_tar(write: Callable[[bytes], object], samples: Samples, label: str) -> ShardIndex:
    builder = ShardIndexBuilder(label)
    out = _Digested(write)
    for key, members in samples:
        for extension, payload in members:
            size = payload_size(payload)
            out.put(header(f"{key}.{extension}", size))
            builder.add(key, extension, out.position, size)
            for piece in _pieces(payload):
                out.put(piece)
            out.put(padding(size))
    out.put(END)
    return builder.finish(size=out.position, sha256=out.finish())


class _Digested:
    """Writes bytes, and digests them, a megabyte at a time: small members would cost more in calls than in work."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._digest = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._written = 0
        self.position = 0

    def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self.position += len(data)
        if self.position - self._written >= _BATCH:
            self._flush()

    def finish(self) -> str:
        self._flush()
        return self._digest.hexdigest()

    def _flush(self) -> None:
        data = b"".join(self._pieces)
        self._digest.update(data)
        self._write(data)
        self._pieces.clear()
        self._written = self.position


def payload_bytes(payload: Payload) -> bytes:
    """Return all of a member's data. Raises `SourceError` where it cannot be read, or has changed."""
    return payload if isinstance(payload, bytes) else b"".join(_read(payload))


def _pieces(payload: Payload) -> Iterator[bytes]:
    if isinstance(payload, bytes):
        yield payload
    else:
        yield from _read(payload)


def _read(file: FilePayload | RangePayload) -> Iterator[bytes]:
    """Yield the bytes of a file or a part of one, piece by piece, and make sure that it has as many as expected."""
    try:
        with open(file.path, "rb", buffering=0) as stream:  # noqa: PTH123 - half the cost of Path.open
            found = os.fstat(stream.fileno()).st_size
            if isinstance(file, RangePayload):
                found = min(file.size, max(0, found - file.offset))
                stream.seek(file.offset)
            left = file.size if found == file.size else 0
            while left and (piece := stream.read(min(left, _CHUNK))):
                left -= len(piece)
                yield piece
    except FileNotFoundError as error:
        raise SourceError(f"{file.path} has vanished since it was listed: {_AGAIN}") from error
    except OSError as error:
        raise SourceError(f"{file.path} cannot be read: {error.strerror}") from error
    if found == file.size and not left:
        return
    what = f"bytes at {file.offset:,}" if isinstance(file, RangePayload) else "bytes"
    raise SourceError(f"{file.path} has {found - left:,} {what}, but had {file.size:,} when it was listed: {_AGAIN}")


def _summary(name: str, index: ShardIndex) -> WrittenShard:
    return WrittenShard(name, index.num_samples, index.size, index.sha256, index.extensions, int(index.sizes.sum()))
