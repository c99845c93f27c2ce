"""What people download, as numbered samples that can be packed."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from wdsdist import storage
from wdsdist.errors import ArgumentError, SourceError, SourceNotFoundError
from wdsdist.packing.sources import columnar, folder, idx, python, remote, tars, textual, webdataset, zips
from wdsdist.packing.sources.base import (
    Blocks,
    BrokenPayload,
    FilePayload,
    LeftOut,
    OnError,
    Payload,
    RangePayload,
    Sample,
    Samples,
    Source,
    Stream,
    blocks_of,
    is_stream,
    payload_size,
    sample_size,
)
from wdsdist.packing.sources.items import Encode
from wdsdist.packing.sources.kinds import Kind, SourceOptions, at_path, path_of
from wdsdist.packing.sources.python import Made

__all__ = [
    "KINDS",
    "Blocks",
    "BrokenPayload",
    "Encode",
    "FilePayload",
    "LeftOut",
    "Made",
    "OnError",
    "Payload",
    "RangePayload",
    "Sample",
    "Samples",
    "Source",
    "SourceOptions",
    "Stream",
    "blocks_of",
    "find",
    "is_stream",
    "payload_size",
    "sample_size",
]

_AS_IT_LOOKS = SourceOptions()
_TABLE = frozenset({"columns", "root", "allow_outside"})
_FOLDERS = frozenset({"class_folders"})

KINDS = (
    Kind("webdataset", "WebDataset shards, by their folder, a pattern or a list", webdataset.find),
    # Before all that looks at paths: what Python holds is none.
    Kind("python", "a data set or an iterable of Python", python.find, frozenset({"encode"})),
    Kind("idx", "an IDX set such as train-images-idx3-ubyte.gz", at_path(idx.find)),
    Kind("hf", "a folder that datasets' save_to_disk wrote", at_path(columnar.find_saved), _TABLE),
    Kind("parquet", "Parquet files", at_path(partial(columnar.find, kind="parquet")), _TABLE),
    Kind("arrow", "Arrow files", at_path(partial(columnar.find, kind="arrow")), _TABLE),
    Kind("csv", "a manifest in CSV", at_path(partial(textual.find, kind="csv")), _TABLE),
    Kind("tsv", "a manifest in TSV", at_path(partial(textual.find, kind="tsv")), _TABLE),
    Kind("jsonl", "a manifest in JSON Lines", at_path(partial(textual.find, kind="jsonl")), _TABLE),
    Kind("zip", "a .zip archive", at_path(zips.find), _FOLDERS),
    Kind("tar", "a .tar archive, plain or compressed", at_path(tars.find), _FOLDERS),
    # The last one: any folder is one.
    Kind("folder", "a folder of files", at_path(folder.find), _FOLDERS),
)
"""In the order in which they are tried: the first that recognises a source lists it."""


def find(
    source: str | os.PathLike[str] | Made,
    options: SourceOptions = _AS_IT_LOOKS,
    **given: Any,
) -> Source | Stream:
    """Recognise what lies at ``source`` and list its samples.

    Args:
        source: a folder of files; an IDX set, by its images file, by a prefix such as ``mnist/train``, or by the
            folder that holds it alone; a manifest in text; Parquet or Arrow files, one, a folder of them, or a pattern
            such as ``data/train-*.parquet``; a folder that ``datasets`` saved; a ``.zip`` or a ``.tar``, plain or
            compressed; WebDataset shards, by their folder, a pattern or a list; a URL of any of these; or what Python
            makes, see `wdsdist.packing.sources.python`.
        options: what is said about it; by default, it is what it looks like.
        given: fields of ``options``, in place of those in it.

    Raises:
        SourceNotFoundError: nothing lies there.
        SourceError: what lies there is empty, ambiguous, damaged or of an unknown kind.
        ArgumentError: there is no such kind, or an option that sources of this kind do not take.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "0001.txt").write_text("hello"), (root / "0001.cls").write_text("7")
    >>> found = find(root)
    >>> found.kind, len(found), found.stored_sizes().tolist()
    ('folder', 1, [2048])
    """
    return _find(source, replace(options, **given))


def _find(source: object, options: SourceOptions) -> Source | Stream:
    for candidate in _candidates(options.kind):
        found = candidate.find(source, options)
        if found is not None:
            _check_options(candidate, found, options)
            return found
    if isinstance(source, str) and storage.is_remote(source):
        return remote.find(source, options, _find_file)
    raise _not_found(source, options.kind)


def _find_file(path: Path, options: SourceOptions) -> Source:
    return cast("Source", _find(path, options))  # no path is a stream


def _candidates(kind: str | None) -> list[Kind]:
    chosen = [candidate for candidate in KINDS if kind in (None, candidate.name)]
    if not chosen:
        raise ArgumentError(f"kind is {kind!r}: it must be one of {', '.join(known.name for known in KINDS)}")
    return chosen


def _check_options(kind: Kind, found: Source | Stream, options: SourceOptions) -> None:
    for name in options.given():
        if name not in kind.options:
            takers = " or ".join(known.name for known in KINDS if name in known.options)
            raise ArgumentError(
                f"{name} is {getattr(options, name)!r}, but {found.location} is of the kind {kind.name!r}: only "
                f"sources of the kind {takers} take it"
            )


def _not_found(source: object, kind: str | None) -> SourceError | SourceNotFoundError:
    """Return the error for what no kind recognises."""
    path = path_of(source)
    *others, last = (known.description for known in reversed(_candidates(kind)))
    accepted = f"{'; '.join(others)}; or {last}" if others else last
    if not isinstance(source, (str, os.PathLike)):
        return SourceError(f"{source!r} is of no kind that can be packed: that is {accepted}")
    if path is None:
        return SourceError(f"{source!r} is nothing that can be packed: that is {accepted}")
    if not path.exists():
        return SourceNotFoundError(f"{path} does not exist{idx.hint(path)}: what can be packed is {accepted}")
    if kind is not None:
        return SourceError(f"{path} is not of the kind {kind!r}: that is {accepted}")
    return SourceError(f"{path} is of no kind that can be packed: that is {accepted}")
