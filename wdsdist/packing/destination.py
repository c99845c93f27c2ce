"""Where shards are written: a local folder, or a prefix in an object store, by the same few operations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from wdsdist import storage
from wdsdist._util.files import atomic_write
from wdsdist.errors import DestinationError, StorageError


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or URL, small and picklable: it travels to the processes that write there."""

    location: str
    options: storage.StorageOptions = field(default_factory=storage.StorageOptions, repr=False)
    """For its store; kept out of every message, for they may hold credentials."""

    def __str__(self) -> str:
        return storage.shown(self.location)

    @property
    def folder(self) -> Path | None:
        """The local folder, or ``None`` where this is a URL."""
        return None if storage.is_remote(self.location) else Path(self.location)

    def at(self, name: str) -> str:
        """Return the location of one file."""
        return storage.join(self.location, name)

    def sizes(self) -> dict[str, int]:
        """Return the size of each file, by name; none where there is no such place."""
        return storage.sizes(self.location, self.options)

    def read(self, name: str) -> bytes:
        """Return a file. Raises ``FileNotFoundError`` where there is none."""
        return storage.read(self.at(name), self.options)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file that appears under its name only when it is whole.

        Raises `DestinationError` where it cannot be written.
        """
        folder = self.folder
        if folder is not None:
            with atomic_write(folder / name) as stream:
                yield stream
            return
        try:
            with storage.upload(self.at(name), self.options) as stream:
                yield stream
        except StorageError as error:
            raise DestinationError(str(error)) from error

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        storage.remove(self.at(name), self.options)
