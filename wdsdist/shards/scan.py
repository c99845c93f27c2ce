"""Build the index of a tar: map a local tar, and read only the headers of a remote one if that is faster.

A compressed tar is decompressed into a temporary file first. Its index says where the members lie in the tar, and of
which compressed file.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.files import mapped, sha256
from wdsdist._util.host import temporary_dir
from wdsdist.errors import ShardDamagedError, StorageError, given
from wdsdist.shards import checksums
from wdsdist.shards.index import ShardIndex, Stored
from wdsdist.shards.shard_indexes import regular
from wdsdist.shards.tar import FIRST_DOT, LAST_DOT, is_compressed
from wdsdist.shards.tar.member_names import check_extensions, split_name, why_skipped
from wdsdist.shards.tar.reader import Readable, entries
from wdsdist.storage import compression, engine

_FIRST = 1 << 20
"""Bytes of the first request for a remote tar."""
_REQUEST = 16 << 10
"""Least bytes of a request for a header, because another, small member may follow."""
_WORTH_A_REQUEST = 2 << 20
"""Bytes that each request must save on average: in its latency the store could send a megabyte or two."""
_TRIED = 4
"""Requests after which their average is checked."""


def scan_shard(
    path: Path, *, label: str = "", tar_size: int = -1, skip: bool = False, key_rule: str = FIRST_DOT
) -> ShardIndex:
    """Scan a whole tar, compressed or not, and return its index, digest and checksums included, as `from_tar` makes it.

    ``label`` is its name in errors, by default its path; ``tar_size`` the bytes of the tar in a compressed one.
    """
    label = label or str(path)
    regular(path)
    with decompressed(path, label=label, tar_size=tar_size) as tar:
        data = mapped(tar)
        try:
            content: Any = data.obj  # whose slices are bytes
            index = from_tar(content, label=label, skip=skip, key_rule=key_rule)
        except ShardDamagedError:
            if tar == path and (codec := compression.codec_of(path)):
                raise ShardDamagedError(
                    f"{label} is compressed by {codec}, but its name does not say so: rename it, as to .tar.gz or "
                    f".tar.zst, or decompress it"
                ) from None
            raise
        sums = checksums.of_data(data, index.offsets, index.sizes)
        index = replace(index, sha256=hashlib.sha256(data).hexdigest(), checksums=sums)
        return index if tar == path else replace(index, stored=Stored(path.stat().st_size, sha256(path)))


@contextlib.contextmanager
def decompressed(path: Path, *, label: str = "", tar_size: int = -1) -> Iterator[Path]:
    """Give the path of a tar; if it is compressed by its name, the path of a decompressed temporary file."""
    if not is_compressed(path.name):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        tar = Path(folder) / "shard.tar"
        compression.unpack(path, tar, size=tar_size, label=label)
        yield tar


def scan_remote(
    location: str,
    size: int,
    options: storage.StorageOptions | None = None,
    *,
    skip: bool = False,
    key_rule: str = FIRST_DOT,
    deadline: storage.Deadline | None = None,
) -> ShardIndex:
    """Return the index of a remote tar of ``size`` bytes, -1 if unknown; without a digest if only headers were read.

    Each header locates the next one, so the requests are sequential.

    Raises `NotFoundError`, `StorageError`, and `ShardDamagedError` for a tar that cannot be read without losing
    samples.
    """
    label = storage.shown(location)
    name = storage.split(location)[1]
    if size > 2 * _FIRST and not is_compressed(name):
        try:
            ranges = _Ranges(size, partial(storage.read, location, options, deadline=deadline))
            return from_tar(ranges, label=label, skip=skip, key_rule=key_rule)
        except (_TooFineError, StorageError):  # or a store without range requests: it may give the whole file
            pass
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        path = Path(folder) / name
        engine.fetch(location, path, options, size=size if size >= 0 else None, deadline=deadline)
        return scan_shard(path, label=label, skip=skip, key_rule=key_rule)


class _TooFineError(Exception):
    """The members are too small for one request each."""


class _Ranges:
    """A remote file as a buffer whose parts are fetched on access, once each."""

    def __init__(self, size: int, read: Callable[..., bytes]) -> None:
        self._size = size
        self._read = read
        self._start, self._part = 0, b""  # what was fetched last
        self._requests = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(self._size)
        if not self._start <= start <= stop <= self._start + len(self._part):
            is_near_end = start >= self._size - _FIRST
            if self._requests >= _TRIED and not is_near_end and start < self._requests * _WORTH_A_REQUEST:
                raise _TooFineError
            least = _REQUEST if self._requests else _FIRST
            self._requests += 1
            self._start, self._part = start, self._read(start=start, stop=min(max(stop, start + least), self._size))
        return self._part[start - self._start : stop - self._start]


def from_tar(tar: Readable, *, label: str, skip: bool = False, key_rule: str = FIRST_DOT) -> ShardIndex:
    """Build the index of a tar in a buffer, whose samples may be scattered over it, without digest and checksums.

    Readers would lose or mix a sample with the same extension twice, or with a member named like an entry that they
    add: with ``skip`` it is left out.

    Raises `ShardDamagedError` for such a sample or a tar that cannot be read without losing samples, and
    `ArgumentError` if there are more extensions than fields can be.
    """
    samples: dict[str, int] = {}  # the number of each by its key
    extensions: dict[str, int] = {}  # as stored
    owners, ids, offsets, sizes = list[int](), list[int](), list[int](), list[int]()  # of each member
    skipped = Counter[str]()
    try:
        for kind, name, offset, length in entries(tar, label=label):
            parts = None if kind else split_name(name, key_rule, is_stored=True)
            if parts is None:
                skipped[kind or why_skipped(name)] += 1
                continue
            key, extension = parts
            owners.append(samples.setdefault(key, len(samples)))
            ids.append(extensions.setdefault(extension, len(extensions)))
            offsets.append(offset)
            sizes.append(length)
    except (ShardDamagedError, ValueError) as error:
        reason = str(error) if isinstance(error, ShardDamagedError) else f"{label}: {error}"
        advice = "" if skip else f": fetch it again, or index the others with {given('on_error', 'skip')}"
        raise ShardDamagedError(f"{reason}{advice}") from None
    order = np.argsort(np.array(owners, np.int64), kind="stable")
    owner, kind_of, starts, lengths = np.array((owners, ids, offsets, sizes), np.int64)[:, order]
    keys, stored = list(samples), list(extensions)
    left_out: dict[str, str] = {}
    for member in _ambiguous(owner, kind_of, stored):
        key, extension = keys[owner[member]], stored[kind_of[member]]
        if _is_reserved(extension):
            problem, advice = f"member {key}.{extension} has the name of an entry that readers add", ", or rename it"
        else:
            problem = f"sample {key!r} has two members with extension {extension.lower()!r}"
            advice = f", or if dots are part of the keys give {given('key', LAST_DOT)}"
        if not skip:
            way = f"index with {given('on_error', 'skip')} to leave its sample out"
            raise ShardDamagedError(f"{label}: {problem}: {way}{advice}")
        left_out.setdefault(key, problem)
    if left_out:
        is_kept = ~np.isin(owner, [samples[key] for key in left_out])
        owner, kind_of, starts, lengths = (each[is_kept] for each in (owner, kind_of, starts, lengths))
    counts = np.bincount(owner, minlength=1)
    encoded = [key.encode("utf-8", "surrogateescape") for key in keys if key not in left_out]
    used, firsts = np.unique(kind_of, return_index=True)
    used = used[np.argsort(firsts)]
    places = np.zeros(len(stored), np.uint32)
    places[used] = np.arange(len(used))
    index = ShardIndex(
        size=len(tar),
        sha256="",
        extensions=tuple(stored[number] for number in used.tolist()),
        sample_starts=np.append(0, np.cumsum(counts[counts > 0])),
        offsets=starts,
        sizes=lengths,
        extension_ids=places[kind_of],
        key_starts=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(encoded), np.uint8),
        skipped=dict(skipped),
        left_out=tuple((key.encode("utf-8", "backslashreplace").decode(), why) for key, why in left_out.items()),
        key_rule=key_rule,
    )
    check_fields(label, [index])
    return index


def _ambiguous(owner: Int64s, kinds: Int64s, extensions: list[str]) -> list[int]:
    """Return the members that readers would lose or mix.

    Args:
        owner: int64 [members]: the number of the sample of each.
        kinds: int64 [members]: the number of its extension.
        extensions: as stored; readers know them in lower case.
    """
    numbers: dict[str, int] = {}
    lower = np.array([numbers.setdefault(name.lower(), len(numbers)) for name in extensions], np.int64)
    is_reserved = np.array([*map(_is_reserved, extensions)], np.bool_)
    fields = owner * len(numbers) + lower[kinds]
    order = np.argsort(fields, kind="stable")
    twice = order[1:][np.diff(fields[order]) == 0]
    return sorted({*twice.tolist(), *np.flatnonzero(is_reserved[kinds]).tolist()})


def _is_reserved(extension: str) -> bool:
    return extension[:2] == "__" == extension[-2:]


def check_fields(label: str, indexes: Iterable[ShardIndex]) -> None:
    """Raise `ArgumentError` if the extensions of a data set show that its names are cut at the wrong dot."""
    names: dict[str, str] = {}
    rule = FIRST_DOT
    for index in indexes:
        rule = index.key_rule
        ids, members = np.unique(index.extension_ids, return_index=True)
        samples = np.searchsorted(index.sample_starts, members, side="right") - 1
        for number, sample in zip(ids.tolist(), samples.tolist(), strict=True):
            extension = index.extensions[number]
            if extension not in names:
                names[extension] = f"{index.key(sample)}.{extension}"
    check_extensions(label, names, rule)
