"""What a source of samples can do, whatever people have downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard

from wdsdist._util.array_types import Int64s
from wdsdist.shards.tar import stored_size

OnError = Literal["raise", "skip"]
"""What becomes of a sample that cannot be packed: an error, or it is left out and reported."""


@dataclass(frozen=True, slots=True)
class FilePayload:
    """A member whose data is a file, read only when it is written."""

    path: str
    size: int
    """Bytes it had when the source was listed: another size later is an error."""


@dataclass(frozen=True, slots=True)
class RangePayload:
    """A member whose data is a part of a file, such as an archive, read only when it is written."""

    path: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BrokenPayload:
    """A member whose data is known not to be there to read: its sample is an error, or is left out."""

    reason: str
    """What is wrong, with the file or field that it is wrong with, and what to do."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A sample that is not packed, for ``on_error="skip"`` was asked for."""

    key: str
    reason: str
    """It names no place outside the source, so that moving the source changes nothing."""


Payload = bytes | FilePayload | RangePayload | BrokenPayload
Sample = tuple[str, list[tuple[str, Payload]]]
"""A key, and its members as (extension, payload) in the order in which they are written."""


def payload_size(payload: Payload) -> int:
    """Return the bytes of a member's data."""
    return len(payload) if isinstance(payload, bytes) else payload.size


def sample_size(sample: Sample) -> int:
    """Return the bytes that a sample takes in a tar.

    >>> sample_size(("000", [("cls", b"7"), ("txt", b"seven")]))
    2048
    """
    key, members = sample
    return sum(stored_size(f"{key}.{extension}", payload_size(payload)) for extension, payload in members)


class Samples(Protocol):
    """The samples of one shard: small, and picklable, for it travels to the process that writes the shard."""

    def __iter__(self) -> Iterator[Sample]: ...


class Source(Protocol):
    """Samples that can be packed, numbered in an order that depends on the source's content alone."""

    @property
    def kind(self) -> str:
        """One word, such as ``"folder"`` or ``"idx"``."""
        ...

    @property
    def location(self) -> str:
        """Where it lies, for messages."""
        ...

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Samples that were listed but cannot be packed; they are not among the numbered ones."""
        ...

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of all files: another one means that the source has changed."""
        ...

    def extra(self) -> dict[str, Any]:
        """Notes for ``index.json``, such as ``classes``; they name no place, so moving the source changes nothing."""
        ...

    @property
    def has_exact_sizes(self) -> bool:
        """Whether `stored_sizes` are known, or else estimated: the same each time, but known only when written."""
        ...

    def stored_sizes(self) -> Int64s:
        """int64 [samples]: bytes that each sample takes in a tar."""
        ...

    def take(self, indices: Int64s) -> Samples:
        """Return some of the samples, by their numbers."""
        ...


class Stream(Protocol):
    """Samples that can be had once and in one order only; how many, shows when they end."""

    @property
    def kind(self) -> str:
        """One word, such as ``"iterable"``."""
        ...

    @property
    def location(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """As of a `Source`."""
        ...

    def fingerprint(self) -> str:
        """A digest of what can be known beforehand: another one means that the source has changed."""
        ...

    def extra(self) -> dict[str, Any]:
        """Notes for ``index.json``."""
        ...

    def in_order(self) -> Iterator[Sample]:
        """Yield the samples: the same ones, in the same order, from each stream of the same source."""
        ...


def is_stream(source: Source | Stream) -> TypeGuard[Stream]:
    """Say whether samples can be had in one order only. (``isinstance`` would ask for every property's value.)"""
    return hasattr(type(source), "in_order")


class Blocks(NamedTuple):
    """Runs of samples that are read together or not at all, such as the row groups of Parquet files."""

    cuts: Int64s
    """int64 [blocks + 1]: where each starts, and the end."""
    weights: Int64s
    """int64 [blocks]: bytes of memory that each takes while its samples are read."""
    limit: int
    """Bytes of memory that there are for those that are read in turn."""


def blocks_of(source: Source) -> Blocks | None:
    """Return the blocks that a source wants to be read in; most have none, for any sample of theirs is at hand."""
    found = getattr(source, "blocks", None)
    return found if isinstance(found, Blocks) else None
