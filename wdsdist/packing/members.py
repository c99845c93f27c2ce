"""Members before they are packed: their data, which samples can be stored, and where these lie in a shard.

Data is read straight to where a tar is put together. Members whose bytes are not what their extension says, such as a
web page named .jpg, are found by their first bytes. What begins like a web page, JSON, a pointer of Git LFS, a PDF or a
zip is not an image, sound, video or array; what begins like a web page is not JSON. Whether the rest decodes,
``check_decode=True`` finds out.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import IMAGE_TYPES, MEDIA_TYPES, RARE_IMAGE_TYPES, last_part
from wdsdist.errors import SourceError, WdsdistError, given
from wdsdist.packing.options import OnError
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.tar.member_names import is_text, split_name
from wdsdist.shards.tar.reader import BLOCK
from wdsdist.shards.tar.writer import PLAIN_NAME, SIZE_LIMIT, header, stored_size

_AGAIN = "pack again once the source is at rest"
# Without O_NONBLOCK, a pipe in the place of a file that was listed would be waited for until somebody writes to it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_SUSPECT = re.compile(r"[.\n\0\\]|__|//|^/|/$|^$")
"""What an ASCII key holds that readers might cut elsewhere, or that leads to another folder."""

HEAD = 16
"""Bytes of a member that are compared with its extension; shorter members are not checked."""
SUSPECT_BYTES = np.isin(np.arange(256), list(b"\xef \t\r\n<{[v%P"))
"""bool [256]: the first bytes of members that `content_problem` has to look at."""
_BINARY = {*IMAGE_TYPES, *RARE_IMAGE_TYPES, *MEDIA_TYPES, "npy"}
_MARKUP = rb"(?:\xef\xbb\xbf)?\s*<(?:!--|(?:!doctype|\?xml|html|head|body|svg|error)\b)"
_PAGE = re.compile(_MARKUP, re.IGNORECASE)
_OTHERS = re.compile(
    _MARKUP + rb"|(?:\xef\xbb\xbf)?\s*(?:\{\s*\"|\[\s*[\{\[\"])|version https:|%PDF-|PK\x03\x04", re.IGNORECASE
)


class FilePayload(NamedTuple):
    """A member whose data is a file, or a part of one such as an archive, read only when it is written."""

    path: str
    size: int
    """File size in bytes when the source was listed: another size later is an error."""
    offset: int | None = None
    """Where a part starts; ``None`` for a whole file."""


Payload = bytes | FilePayload | SourceError
"""The data of a member, or what is wrong with it: its sample is an error, or is left out."""
Sample = tuple[str, list[tuple[str, Payload]]]
"""A key, and its members as (extension, payload) in the order in which they are written."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples that a function makes whenever they are iterated over: small and picklable, as its arguments are."""

    make: Callable[..., Iterator[Sample]]
    arguments: tuple[Any, ...] = field(repr=False)
    """They may hold credentials."""

    def __iter__(self) -> Iterator[Sample]:
        return self.make(*self.arguments)


def or_skip() -> str:
    """Return the beginning of a remedy for a sample that cannot be packed."""
    return f"leave such samples out with {given('on_error', 'skip')}, or "


class LeftOut(NamedTuple):
    """A sample that is not packed because of ``on_error="skip"``."""

    key: str
    reason: str
    """It names no path outside the source, so moving the source changes nothing."""

    @classmethod
    def of(cls, key: str, error: object, root: str) -> LeftOut:
        """Return a sample with its error, without the advice to leave it out and without the path of the source."""
        reason = str(error).replace(or_skip(), "").replace(root, "")
        return cls(key.encode("utf-8", "backslashreplace").decode(), reason)


def broken(key: str, error: SourceError) -> Sample:
    """Return the placeholder of a sample that cannot be made, which is an error, or is left out with this reason."""
    return key, [("broken", SourceError(str(error)))]  # a new one, whose traceback holds no data


def numbered(number: int) -> str:
    """Return the key of a sample that has none of its own."""
    return f"{number:09d}"


def payload_size(payload: Payload) -> int:
    """Return the bytes of a member's data."""
    return len(payload) if isinstance(payload, bytes) else payload.size if isinstance(payload, FilePayload) else 0


def sample_size(sample: Sample) -> int:
    """Return the bytes that a sample takes in a tar.

    >>> sample_size(("000", [("cls", b"7"), ("txt", b"seven")]))
    2048
    """
    key, members = sample
    return sum(stored_size(f"{key}.{extension}", payload_size(payload)) for extension, payload in members)


def read_all(
    payloads: Sequence[Payload], sizes: Sequence[int], view: memoryview, starts: Sequence[int]
) -> dict[int, SourceError]:
    """Read the data of members to where each starts in ``view``, which has one byte more than they need.

    Returns what is wrong with those that cannot be read, or that have another size than they were listed with. Bytes
    behind such a member may be overwritten.
    """
    failed: dict[int, SourceError] = {}
    for number, (payload, size, start) in enumerate(zip(payloads, sizes, starts, strict=True)):
        try:
            if isinstance(payload, FilePayload) and payload.offset is None:
                # Three calls for a file: asking for a byte too many tells its size as well as fstat does.
                descriptor = os.open(payload.path, _FLAGS)
                try:
                    count = os.readv(descriptor, (view[start : start + size + 1],))
                finally:
                    os.close(descriptor)
                if count == size:
                    continue
            elif isinstance(payload, bytes):
                view[start : start + size] = payload
                continue
            # A part of a file, or a file that a network file system gives in pieces, or that has changed.
            with opened(payload) as read:
                stop = start + size
                while start < stop:
                    start += read(view[start:stop])
        except OSError as error:
            failed[number] = _unreadable(payload, error)
        except SourceError as error:
            failed[number] = error
    return failed


@contextmanager
def opened(payload: Payload) -> Iterator[Callable[[memoryview], int]]:
    """Open a member's data; yield a function that reads its next bytes into a buffer, and returns how many it read.

    Raises `SourceError` if it cannot be read; for another size than it was listed with, before anything is read.
    """
    if isinstance(payload, SourceError):
        raise payload
    if isinstance(payload, bytes):
        yield io.BytesIO(payload).readinto
        return
    position = payload.offset or 0
    end = position + payload.size

    def read(view: memoryview) -> int:
        nonlocal position
        try:
            count = os.preadv(descriptor, (view[: end - position],), position)
        except OSError as error:
            raise _unreadable(payload, error) from error
        if not count and position < end:  # cut while it was read
            raise _resized(payload, payload.size - (end - position))
        position += count
        return count

    try:
        descriptor = os.open(payload.path, _FLAGS)
    except OSError as error:
        raise _unreadable(payload, error) from error
    try:
        size = os.fstat(descriptor).st_size
        if payload.offset is not None:
            size = min(payload.size, max(0, size - position))
        if size != payload.size:
            raise _resized(payload, size)
        yield read
    finally:
        os.close(descriptor)


def whole(payload: Payload) -> bytes:
    """Return all of a member's data. Raises `SourceError` if it cannot be read, or has changed."""
    size = payload_size(payload)
    content = memoryview(bytearray(size + 1))
    for error in read_all([payload], [size], content, [0]).values():
        raise error
    return content[:size].tobytes()


def _unreadable(payload: Payload, error: OSError) -> SourceError:
    path = payload.path if isinstance(payload, FilePayload) else "a member"
    if isinstance(error, FileNotFoundError):
        return SourceError(f"{path} has vanished since it was listed: {_AGAIN}")
    return SourceError(f"{path} cannot be read: {error.strerror}")


def _resized(payload: FilePayload, size: int) -> SourceError:
    what = "bytes" if payload.offset is None else f"bytes at {payload.offset:,}"
    return SourceError(f"{payload.path} has {size:,} {what}, but had {payload.size:,} when it was listed: {_AGAIN}")


def check_key(key: Any) -> None:
    """Raise `SourceError` for a value that cannot be a key: a key becomes the path of files when a tar is unpacked.

    >>> check_key("a.d/1")
    >>> check_key("../1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wdsdist.errors.SourceError: sample '../1' cannot be packed: a key is a string, a path of parts that ...
    """
    if isinstance(key, str) and key.isascii() and not _SUSPECT.search(key):
        return
    is_path = isinstance(key, str) and is_text(key) and "\0" not in key and split_name(f"{key}.x") == (key, "x")
    if not is_path or "" in key.split("/") or {".", ".."} & set(re.split(r"[/\\]", key)):
        raise SourceError(
            f"sample {_short(key)} cannot be packed: a key is a string, a path of parts that are not empty, . or .., "
            f"without a dot in the last part, a part like __this__, a line break or a NUL, in valid Unicode"
        )


def check_extensions(key: str, extensions: Sequence[Any]) -> None:
    """Raise `SourceError` for a sample whose members readers would not find, or not tell apart."""
    lower: set[str] = set()
    for extension in extensions:
        is_name = isinstance(extension, str) and is_text(extension) and extension[:1] != "." and "\0" not in extension
        if not is_name or split_name(f"x.{extension}") != ("x", extension) or re.fullmatch("__.*__", extension):
            problem = "is not an extension that readers would find, such as 'jpg'"
        elif extension.lower() in lower:
            problem = "is there twice, in capitals or not, which readers take for the same"
        else:
            lower.add(extension.lower())
            continue
        raise SourceError(f"sample {_short(key)} has a member {extension!r}, which {problem}: rename it")
    if not extensions:
        raise SourceError(f"sample {_short(key)} has no member, so that readers would miss it: leave it out")


def content_problem(name: str, head: bytes) -> str:
    """Check the magic bytes of a member against its extension; return the problem, or an empty string.

    >>> content_problem("1.jpg", b"<!DOCTYPE html><")[:33], content_problem("1.txt", b"<!DOCTYPE html><")
    ("1.jpg begins with '<!DOCTYPE html", '')
    >>> content_problem("1.jpg", b"<!-- not found -")[:24]
    "1.jpg begins with '<!-- "
    """
    extension = last_part(name)
    other = _PAGE if extension == "json" else _OTHERS if extension in _BINARY else None
    if other is None or len(head) < HEAD or not other.match(head):
        return ""
    return (
        f"{name} begins with {head.decode('utf-8', 'replace')!r}, which is not what its extension says: "
        f"{or_skip()}replace it"
    )


@dataclass(slots=True)
class Batch:
    """Samples that are written together; one list for each of their properties costs least."""

    samples: list[Sample] = field(default_factory=list)
    kinds: list[tuple[str, ...]] = field(default_factory=list)
    """The extensions of each sample."""
    names: list[str] = field(default_factory=list)
    """For each member, like the next lists."""
    payloads: list[Payload] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    headers: dict[int, bytes] = field(default_factory=dict)
    """For members that need more than a plain header, by their number."""
    stored: int = 0
    """Bytes of all samples in the tar."""


class ShardContents:
    """Checks the samples of a shard before they are written, and notes where the written ones lie."""

    def __init__(self, root: str, on_error: OnError) -> None:
        self._root = root + "/"
        self._on_error = on_error
        self._taken: set[str] = set()
        self._kinds: dict[tuple[str, ...], tuple[str, ...]] = {}  # to keep each only once
        self._keys: list[str] = []
        self._stored_kinds: list[tuple[str, ...]] = []
        self._offsets: list[Int64s] = []
        self._sizes: list[int] = []
        self._checksums: list[npt.NDArray[np.uint32]] = []
        self._left_out: list[LeftOut] = []

    def batches(self, samples: Iterable[Sample], most: int) -> Iterator[Batch]:
        """Yield the samples that can be stored, at most so many bytes together unless a single one has more.

        Raises `SourceError` for the first sample that cannot be stored, or leaves it out.
        """
        batch = Batch()
        try:
            for sample in samples:
                try:
                    if not self._add(batch, sample, most):
                        yield batch
                        batch = Batch()
                        self._add(batch, sample, most)
                except SourceError as error:
                    self.leave_out(sample[0], error)
        except WdsdistError:
            raise
        except OSError as error:  # which would be taken for an error of the destination
            raise SourceError(f"{self._root.rstrip('/') or 'the source'} cannot be read: {error}") from error
        if batch.samples:
            yield batch

    def without(self, batch: Batch, failed: Mapping[int, SourceError]) -> Batch:
        """Return a batch less the samples of some members, or raise what is wrong with the first of these."""
        rest, member = Batch(), 0
        for key, members in batch.samples:
            wrong = next((failed[number] for number in range(member, member + len(members)) if number in failed), None)
            member += len(members)
            self._taken.discard(key)
            if wrong is None:
                self._add(rest, (key, members), batch.stored)
            else:
                self.leave_out(key, wrong)
        return rest

    def leave_out(self, key: str, error: SourceError) -> None:
        """Raise what is wrong with a sample, or note it if such samples are left out."""
        if self._on_error == "raise":
            raise error
        self._left_out.append(LeftOut.of(key, error, self._root))

    def add(self, batch: Batch, offsets: Int64s, checksums: npt.NDArray[np.uint32]) -> None:
        """Note samples that were written, where the data of their members starts, and its checksums."""
        self._keys += [key for key, _ in batch.samples]
        self._stored_kinds += batch.kinds
        self._sizes += batch.sizes
        self._offsets.append(offsets)
        self._checksums.append(checksums)

    def index(self, *, size: int, sha256: str) -> ShardIndex:
        """Return the index of the shard, given the size and digest of its tar."""
        extensions = dict.fromkeys(itertools.chain.from_iterable(dict.fromkeys(self._stored_kinds)))
        numbers = {extension: number for number, extension in enumerate(extensions)}
        keys = [key.encode() for key in self._keys]
        return ShardIndex(
            size=size,
            sha256=sha256,
            extensions=tuple(extensions),
            sample_starts=np.cumsum([0, *map(len, self._stored_kinds)], dtype=np.int64),
            offsets=np.concatenate([np.empty(0, np.int64), *self._offsets]),
            sizes=np.array(self._sizes, np.int64),
            extension_ids=np.array([numbers[each] for kind in self._stored_kinds for each in kind], np.uint32),
            key_starts=np.cumsum([0, *map(len, keys)], dtype=np.int64),
            key_bytes=np.frombuffer(b"".join(keys), np.uint8),
            left_out=tuple(self._left_out),
            checksums=np.concatenate([np.empty(0, np.uint32), *self._checksums]),
        )

    def _add(self, batch: Batch, sample: Sample, most: int) -> bool:
        """Add a sample to a batch of writes; return false if it does not fit. An empty batch takes any sample."""
        key, members = sample
        extensions = tuple([extension for extension, _ in members])
        kind = self._kinds.get(extensions)
        if kind is None:  # of extensions that readers can tell apart
            check_extensions(key, extensions)
            kind = self._kinds[extensions] = extensions
        check_key(key)
        if key in self._taken:
            raise SourceError(f"sample {_short(key)} is there twice: each needs a key of its own")
        stored = 0
        odd: dict[int, bytes] = {}
        names: list[str] = []
        sizes: list[int] = []
        payloads: list[Payload] = []
        for extension, payload in members:
            name = f"{key}.{extension}"
            size = payload_size(payload)
            if len(name) > PLAIN_NAME or size >= SIZE_LIMIT or not name.isascii():
                try:
                    head = odd[len(names)] = header(name, size)
                except ValueError as error:
                    raise SourceError(f"{_short(name)} cannot be the name of a file in a tar: rename it") from error
                stored += len(head) - BLOCK
            stored += BLOCK + size + -size % BLOCK
            names.append(name)
            sizes.append(size)
            payloads.append(payload)
        if batch.samples and batch.stored + stored > most:
            return False
        self._taken.add(key)
        if odd:
            batch.headers |= {len(batch.names) + number: head for number, head in odd.items()}
        batch.samples.append(sample)
        batch.kinds.append(kind)
        batch.names += names
        batch.sizes += sizes
        batch.payloads += payloads
        batch.stored += stored
        return True


def _short(key: Any) -> str:
    return repr(f"{key[:97]}..." if isinstance(key, str) and len(key) > 100 else key)
