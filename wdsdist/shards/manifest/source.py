"""`Shard` and `Source`: one shard, and one data set that shards belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wdsdist import storage
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.tar.naming import is_compressed

if TYPE_CHECKING:
    from wdsdist.shards.view_file import Picks


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a data set."""

    name: str
    """Path relative to the manifest, or a full location."""
    num_samples: int
    size: int
    """Bytes; -1 where unknown."""
    sha256: str
    """Hexadecimal digest; empty where unknown."""
    tar_size: int = -1
    """Bytes of the decompressed tar of a compressed shard; -1 if unknown."""

    @classmethod
    def of(cls, name: str, index: ShardIndex) -> Shard:
        """Return the shard that an index describes."""
        file = index.file
        return cls(name, index.num_samples, file.size, file.sha256, index.size if index.stored else -1)

    @property
    def is_compressed(self) -> bool:
        """Whether it has to be decompressed before it is read, by its name."""
        return is_compressed(storage.split(self.name)[1])


@dataclass(frozen=True, eq=False)
class Source:
    """One data set whose shards a manifest lists: where it lies, how it is reached, and which of it is chosen."""

    base: str
    """The folder or URL that shard names are relative to."""
    name: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """Notes of the packer, such as ``classes`` and ``source``."""
    client_options: storage.StorageOptions | None = field(default=None, repr=False)
    """The options of clients, bound to the stores that the user named; in no message: they may hold credentials."""
    is_named: bool = False
    """Whether the user named the shards, in a list or to `wdsdist.index`, so that they may lie outside the base and be
    repaired there."""
    version: str = ""
    """SHA-256 of the ``index.json`` that a store gave; empty if the manifest comes from elsewhere."""
    origin: str = ""
    """The path or URL of the ``index.json``, or an empty string."""
    label: str = ""
    """The value of ``"__dataset__"`` in the samples, if several data sets are joined."""
    picks: Picks | None = None
    """The chosen samples of a view; ``None`` if all samples of the shards are taken."""
    made_by: tuple[dict[str, Any], ...] = ()
    """Provenance of a view, step by step: the request, and the samples before and after."""
    is_staged: bool = False
    """Whether local shards are read through the cache too, as for a slow mount."""


SEVERAL = Source("/")
"""Stands for the source of a manifest that lists several data sets."""
