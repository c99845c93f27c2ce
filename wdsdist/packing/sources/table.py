"""A table whose rows are samples, and what all tables have in common; how their files are read is their own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.base import Blocks, LeftOut
from wdsdist.packing.sources.mapping import Layout
from wdsdist.packing.sources.paths import Root
from wdsdist.packing.sources.rows import Listing, Rows, RowSamples


class Stamp(NamedTuple):
    """A file as it was when the source was listed."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Stamp:
        """Look a file up."""
        status = Path(path).stat()
        return cls(os.fspath(path), status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise `SourceError` where the file is not what it was."""
        try:
            if Stamp.of(self.path) == self:
                return
        except FileNotFoundError as error:
            raise SourceError(f"{self.path} has vanished since it was listed: pack again once it is back") from error
        except OSError as error:
            raise SourceError(f"{self.path} cannot be read: {error.strerror}") from error
        raise SourceError(f"{self.path} has changed since it was listed: pack again once it is at rest")


@dataclass(frozen=True, slots=True, eq=False)
class TableSource:
    """All rows of a table, in its order."""

    kind: str
    location: str
    home: str
    """The folder that the table lies in."""
    root: Root
    """Where paths in the table start."""
    layout: Layout
    files: tuple[Stamp, ...]
    """Those that the table lies in."""
    digest: str
    """Of the files that its rows name."""
    sizes: Int64s
    """int64 [rows]: bytes that each takes in a tar."""
    file_sizes: Int64s
    """int64 [members that are files, rows]: as in `RowSamples`."""
    take_rows: Callable[[Int64s], Rows]
    kept: Int64s | None
    """int64 [samples]: the rows that can be packed; all where there is none."""
    left_out: tuple[LeftOut, ...]
    """The other rows."""
    has_exact_sizes: bool = True
    groups: Blocks | None = None
    """Runs of rows that are read together."""

    @property
    def blocks(self) -> Blocks | None:
        if self.groups is None or self.kept is None:
            return self.groups
        return self.groups._replace(cuts=np.searchsorted(self.kept, self.groups.cuts))

    def __len__(self) -> int:
        return len(self.sizes) if self.kept is None else len(self.kept)

    def fingerprint(self) -> str:
        notes, classes = self.layout.notes(), self.layout.classes
        state = hashlib.sha256(f"{self.kind}\0{notes}\0{classes}\0{self.digest}\n".encode("utf-8", "surrogatepass"))
        for file in self.files:
            name = os.path.relpath(file.path, self.home)
            state.update(f"{name}\0{file.size}\0{file.mtime_ns}\n".encode("utf-8", "surrogatepass"))
        for one in self.left_out:
            state.update(f"{one.key}\0{one.reason}\n".encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    def extra(self) -> dict[str, Any]:
        classes = {"classes": list(self.layout.classes)} if self.layout.classes is not None else {}
        return {**classes, "columns": self.layout.notes()}

    def stored_sizes(self) -> Int64s:
        return self.sizes if self.kept is None else self.sizes[self.kept]

    def take(self, indices: Int64s) -> RowSamples:
        rows = np.asarray(indices if self.kept is None else self.kept[indices], np.int64)
        sizes = self.file_sizes[:, rows] if self.file_sizes.size else np.zeros((0, len(rows)), np.int64)
        return RowSamples(self.take_rows(rows), self.layout, self.root, rows, np.ascontiguousarray(sizes))


def listed(listing: Listing, again: Callable[[], Iterable[Any]], place: Callable[[int], str]) -> Listing:
    """Return a listing once it is whole: its keys differ, and it is not empty.

    Raises `SourceError` for a table without a row to pack, and for two rows with one key unless such are left out.
    """
    if not listing.sizes:
        raise SourceError(f"{place(0)}: the table holds no row that could be a sample: is it the right file?")
    listing.check_keys(again, place)
    if len(listing.wrong) == len(listing.sizes):
        why = listing.wrong[0].reason
        raise SourceError(f"no row of the table in {listing.root.folder} can be packed, for instance: {why}")
    return listing
