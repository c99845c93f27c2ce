"""What a system under comparison offers, whatever its own words for it are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from peers.kinds import Kind


@dataclass(frozen=True, slots=True)
class Remote:
    """Where the packed data are to be had from, instead of from a local folder."""

    server: str
    """The address of a web server that also answers as an S3 store."""
    folder: str
    """Of the packed data on it: the bucket, and what follows it."""
    cache: str
    """A local folder for copies, empty at first."""
    is_s3: bool = False
    """Whether to read by S3 what can be read by HTTP too."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be loaded, and how."""

    kind: Kind
    files: Path
    """The folder of files that all systems start from."""
    packed: Path
    """The system's own form of them."""
    workers: int
    samples: int
    remote: Remote | None = None


class Session(Protocol):
    """A data set and its loader, ready to be iterated."""

    def epoch(self, number: int) -> Iterator[Any]:
        """Return the batches of the next epoch: lists or columns of byte strings, or one tensor."""

    def state(self) -> Any:
        """Return where the last iteration stands."""

    def resume(self, state: Any) -> Iterator[Any]:
        """Return the batches that were left."""


class System(Protocol):
    """One system."""

    name: str
    distributions: tuple[str, ...]
    """Distributions whose versions the report gives."""
    settings: dict[str, str]
    """In words, for the report: "pack", "load", "shuffle", "resume"."""

    def load(self) -> None:
        """Import it, so that no measurement pays for that."""

    def pack(self, job: Job) -> None:
        """Write ``job.packed`` from ``job.files``."""

    def open(self, job: Job) -> Session:
        """Make data set and loader."""


class LoaderSession:
    """A loader whose state, where it has one, is that of torchdata's protocol."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def epoch(self, number: int) -> Iterator[Any]:
        return iter(self.loader)

    def state(self) -> Any:
        return self.loader.state_dict()

    def resume(self, state: Any) -> Iterator[Any]:
        self.loader.load_state_dict(state)
        return iter(self.loader)


def loader_options(workers: int) -> dict[str, Any]:
    """Return what is the same for every system that takes torch's arguments."""
    return {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": False}


def as_list(batch: list[Any]) -> list[Any]:
    """Collate byte strings: leave them as they are."""
    return batch


def stack(batch: list[Any]) -> torch.Tensor:
    """Collate rows or images into one tensor."""
    return torch.stack([torch.as_tensor(item) for item in batch])


def shards(packed: Path, pattern: str = "*.tar") -> list[str]:
    """Return the paths of a packed data set's shards, in order."""
    return sorted(str(path) for path in packed.glob(pattern))
