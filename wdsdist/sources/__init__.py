"""What people download, as numbered samples that can be packed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from wdsdist import storage
from wdsdist.errors import ArgumentError, SourceError, SourceNotFoundError
from wdsdist.sources import folder, idx, remote, tars, webdataset, zips
from wdsdist.sources.base import (
    BrokenPayload,
    FilePayload,
    LeftOut,
    OnError,
    Payload,
    RangePayload,
    Sample,
    Samples,
    Source,
    payload_size,
)
from wdsdist.sources.kinds import Kind, SourceOptions, at_path, path_of

__all__ = [
    "BrokenPayload",
    "FilePayload",
    "KINDS",
    "LeftOut",
    "OnError",
    "Payload",
    "RangePayload",
    "Sample",
    "Samples",
    "Source",
    "find",
    "payload_size",
]

KINDS = (
    Kind("idx", "an IDX set such as train-images-idx3-ubyte.gz", at_path(idx.find)),
    Kind("zip", "a .zip archive", at_path(zips.find), frozenset({"class_folders"})),
    Kind("tar", "a .tar archive, plain or compressed", at_path(tars.find), frozenset({"class_folders"})),
    Kind("webdataset", "WebDataset shards, by their folder, a pattern or a list", webdataset.find),
    # The last one: any folder is one.
    Kind("folder", "a folder of files", at_path(folder.find), frozenset({"class_folders"})),
)
"""In the order in which they are tried: the first that recognises a source lists it."""


def find(
    source: str | os.PathLike[str],
    *,
    kind: str | None = None,
    class_folders: bool | None = None,
    columns: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
    scratch: Path | None = None,
) -> Source:
    """Recognise what lies at ``source`` and list its samples.

    Args:
        source: a folder of files; an IDX set, by its images file, by a prefix such as ``mnist/train``, or by the
            folder that holds it alone; a ``.zip`` or a ``.tar``, plain or compressed; WebDataset shards, by their
            folder, a pattern or a list; or a URL of any of these.
        kind: the name of one of `KINDS`, which ``source`` is taken for; by default, the first that recognises it.
        class_folders: whether the folders in ``source`` are the classes of the samples below them; by default, when
            it looks so: two folders or more, an image in every sample, no file beside the folders, no ``cls`` yet.
        columns: of a table, what becomes of its columns; see `wdsdist.sources.mapping`.
        on_error: whether a sample that cannot be packed is an error, or is left out and told by ``left_out``.
        scratch: where a source that must be unpacked or fetched keeps a temporary file; by default, where the system
            keeps such.

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
    options = SourceOptions(kind=kind, class_folders=class_folders, columns=columns, on_error=on_error, scratch=scratch)
    return _find(source, options)


def _find(source: str | os.PathLike[str], options: SourceOptions) -> Source:
    for candidate in _candidates(options.kind):
        found = candidate.find(source, options)
        if found is not None:
            _check_options(candidate, found, options)
            return found
    if isinstance(source, str) and storage.is_remote(source):
        return remote.find(source, options, _find)
    raise _not_found(source, options.kind)


def _candidates(kind: str | None) -> list[Kind]:
    chosen = [candidate for candidate in KINDS if kind in (None, candidate.name)]
    if not chosen:
        raise ArgumentError(f"kind is {kind!r}: it must be one of {', '.join(known.name for known in KINDS)}")
    return chosen


def _check_options(kind: Kind, found: Source, options: SourceOptions) -> None:
    for name in options.given():
        if name not in kind.options:
            takers = " or ".join(known.name for known in KINDS if name in known.options)
            raise ArgumentError(
                f"{name} is {getattr(options, name)!r}, but {found.location} is of the kind {kind.name!r}: only "
                f"sources of the kind {takers} take it"
            )


def _not_found(source: str | os.PathLike[str], kind: str | None) -> SourceError | SourceNotFoundError:
    """Return the error for what no kind recognises."""
    path = path_of(source)
    accepted = ", or ".join(known.description for known in reversed(_candidates(kind)))
    if path is None:
        return SourceError(f"{source!r} is nothing that can be packed: that is {accepted}")
    if not path.exists():
        return SourceNotFoundError(f"{path} does not exist{idx.hint(path)}: what can be packed is {accepted}")
    if kind is not None:
        return SourceError(f"{path} is not of the kind {kind!r}: that is {accepted}")
    return SourceError(f"{path} is of no kind that can be packed: that is {accepted}")
