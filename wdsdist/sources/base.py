"""What a source of samples can do, whatever people have downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from wdsdist.permutation import Int64s


@dataclass(frozen=True, slots=True)
class FilePayload:
    """A member whose data is a file, read only when it is written."""

    path: str
    size: int
    """Bytes it had when the source was listed: another size later is an error."""


Payload = bytes | FilePayload
Sample = tuple[str, list[tuple[str, Payload]]]
"""A key, and its members as (extension, payload) in the order in which they are written."""


def payload_size(payload: Payload) -> int:
    """Return the bytes of a member's data."""
    return payload.size if isinstance(payload, FilePayload) else len(payload)


class Samples(Protocol):
    """The samples of one shard: small, and picklable, for it travels to the process that writes the shard."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sample]: ...


class Source(Protocol):
    """Samples that can be packed, numbered in an order that depends on the source's content alone."""

    @property
    def kind(self) -> str:
        """``"folder"`` or ``"idx"``."""
        ...

    @property
    def location(self) -> str:
        """Where it lies, for messages."""
        ...

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of all files: another one means that the source has changed."""
        ...

    def extra(self) -> dict[str, Any]:
        """Notes for ``index.json``, such as ``classes``; they name no place, so moving the source changes nothing."""
        ...

    def stored_sizes(self) -> Int64s:
        """int64 [samples]: bytes that each sample takes in a tar."""
        ...

    def take(self, indices: Int64s) -> Samples:
        """Return some of the samples, by their numbers."""
        ...
