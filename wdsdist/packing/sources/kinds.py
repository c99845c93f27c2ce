"""The kinds of source that there are: how each is recognised, and which options it takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist.packing.sources.base import OnError, Source, Stream
from wdsdist.packing.sources.items import Encode


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the caller says about a source; ``None`` leaves it to what the source looks like."""

    kind: str | None = None
    """The kind that it must be, whatever it looks like."""
    class_folders: bool | None = None
    """Whether the folders in it are the classes of the samples below them; by default, when it looks so: two folders
    or more, an image in every sample, no file beside the folders, no ``cls`` yet."""
    columns: Mapping[str, str] | None = None
    """Of a table, what becomes of its columns; see `wdsdist.packing.sources.mapping`."""
    root: str | os.PathLike[str] | None = None
    """Of a table, the local folder that the paths in it start from, and must lie below; by default its own."""
    allow_outside: bool = False
    """Of a table, whether the paths in it may lead out of there."""
    encode: Encode | str | None = None
    """For what Python makes, a function from an item to a sample dict."""
    on_error: OnError = "raise"
    """Whether a sample that cannot be packed is an error, or is left out and told by ``left_out``."""
    scratch: Path | None = None
    """Where a source may keep a large temporary file while it is packed; by default, the system's temporary folder."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Passed to fsspec where the source is a URL; kept out of every message, for they may hold credentials."""

    allow_elsewhere: bool = False
    """Whether the ``index.json`` of shards may name some outside its own folder."""

    def given(self) -> list[str]:
        """Return the names of the options that are for sources of some kinds only and ask for something."""
        return [name for name in ("class_folders", "columns", "root", "allow_outside", "encode") if getattr(self, name)]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of source."""

    name: str
    """As in ``kind=`` and ``--from``."""
    description: str
    """Which sources are of this kind, for messages: ``"a folder of files"``."""
    find: Callable[[object, SourceOptions], Source | Stream | None]
    """Lists a source of this kind; returns ``None`` for what is none, or does not exist.

    Where ``options.kind`` is set, it is this kind: then a name or a content that proves nothing is no reason for
    ``None``.
    """
    options: frozenset[str] = frozenset()
    """The fields of `SourceOptions` that it heeds; the others are refused."""


def at_path(find: Callable[[Path, SourceOptions], Source | None]) -> Callable[[object, SourceOptions], Source | None]:
    """Make a ``find`` for local paths into one for anything that is given as a source."""

    def found(source: object, options: SourceOptions) -> Source | None:
        path = path_of(source)
        return None if path is None else find(path, options)

    return found


def path_of(source: object) -> Path | None:
    """Return the absolute path that a source is, or ``None`` for a URL and for what is no path at all.

    >>> path_of("/data/train/"), path_of("s3://bucket/train"), path_of([1, 2])
    (PosixPath('/data/train'), None, None)
    """
    if not isinstance(source, (str, os.PathLike)):
        return None
    location = storage.normalise(source)
    return None if storage.is_remote(location) else Path(location)
