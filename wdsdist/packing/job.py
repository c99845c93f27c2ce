"""The job record: what a destination was packed from and how, so that the same command can go on where it stopped.

It is written before the first shard and stays beside the finished data set. Where it is, files with the shards' names
are wdsdist's own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist.checks import check_integer
from wdsdist.packing.plan import shard_name

FILE_NAME = ".wdsdist-pack.json"

_VERSION = 2  # of the record, and of the bytes that packing writes: another one starts anew


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """The options that decide what the shards hold."""

    shard_bytes: int
    shard_samples: int | None
    shuffle_seed: int | None

    def __post_init__(self) -> None:
        check_integer("shard_bytes", self.shard_bytes, 1)
        if self.shard_samples is not None:
            check_integer("shard_samples", self.shard_samples, 1)
        if self.shuffle_seed is not None:
            check_integer("shuffle_seed", self.shuffle_seed, 0, 2**64 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One source packed with one set of options."""

    kind: str
    location: str
    """Where the source lay, for messages only: a source that is moved as it is stays the same source."""
    fingerprint: str
    options: PackOptions

    def differences(self, other: Job) -> list[str]:
        """Say in which ways this job, the one on record, is not the other one, which is asked for."""
        found = []
        if self.fingerprint != other.fingerprint:
            if (self.kind, self.location) != (other.kind, other.location):
                found.append(f"it was packed from {self.location}, not {other.location}")
            else:
                found.append(f"{self.location} has changed since it was packed")
        asked = asdict(other.options)
        found += [
            f"it has {name}={value}, not {asked[name]}"
            for name, value in asdict(self.options).items()
            if value != asked[name]
        ]
        return found


@dataclass(frozen=True, slots=True)
class Record:
    """A job as a destination keeps it."""

    job: Job
    shards: int

    def shard_names(self) -> list[str]:
        """Return the file names of all shards that the job writes."""
        return [shard_name(number, self.shards) for number in range(self.shards)]


def save(record: Record, folder: Path) -> None:
    """Write the record into a folder, whole or not at all."""
    content = {"version": _VERSION, "shards": record.shards, "job": asdict(record.job)}
    with storage.atomic_write(folder / FILE_NAME) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def load(folder: Path) -> Record | None:
    """Return the record in a folder, or ``None`` where there is none that can be read."""
    try:
        content: Any = json.loads((folder / FILE_NAME).read_bytes())
        if content["version"] != _VERSION:
            return None
        job = content["job"]
        options = PackOptions(**job.pop("options"))
        return Record(Job(**job, options=options), check_integer("shards", content["shards"], 1))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError):
        return None
