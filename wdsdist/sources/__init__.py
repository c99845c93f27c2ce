"""What people download, as numbered samples that can be packed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from wdsdist import storage
from wdsdist.errors import ArgumentError, SourceError, SourceNotFoundError
from wdsdist.sources import folder, idx, python
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
    Stream,
    payload_size,
    sample_size,
)
from wdsdist.sources.items import Encode
from wdsdist.sources.python import Made

__all__ = [
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
    "Stream",
    "find",
    "payload_size",
    "sample_size",
]

_ACCEPTED = "a folder of files, or an IDX set such as train-images-idx3-ubyte.gz"


def find(
    source: str | os.PathLike[str] | Made,
    *,
    class_folders: bool | None = None,
    encode: Encode | str | None = None,
    on_error: OnError = "raise",
) -> Source | Stream:
    """Recognise what lies at ``source`` and list its samples.

    Args:
        source: a folder of files; or an IDX set, by its images file, by a prefix such as ``mnist/train``, or by the
            folder that holds it alone; or what Python makes, see `wdsdist.sources.python`.
        class_folders: whether the folders in ``source`` are the classes of the samples below them; by default, when
            it looks so: two folders or more, an image in every sample, no file beside the folders, no ``cls`` yet.
        on_error: whether a sample that cannot be packed is an error, or is left out and told by ``left_out``.
        encode: for what Python makes, a function from an item to a sample dict.

    Raises:
        SourceNotFoundError: nothing lies there.
        SourceError: what lies there is empty, ambiguous, damaged or of an unknown kind.
        ArgumentError: ``class_folders=True`` for a source that has no folders, ``encode`` for files.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "0001.txt").write_text("hello"), (root / "0001.cls").write_text("7")
    >>> found = find(root)
    >>> found.kind, len(found), found.stored_sizes().tolist()
    ('folder', 1, [2048])
    """
    made = python.find(source, encode=encode, on_error=on_error)
    if made is not None:
        if class_folders:
            raise ArgumentError(f"class_folders is True, but {made.location} is no folder: make a cls field instead")
        return made
    if encode is not None:
        raise ArgumentError(f"encode is for items that Python makes, but {source} names files: leave it out")
    location = storage.normalise(cast("str | os.PathLike[str]", source))
    if storage.is_remote(location):
        raise SourceError(f"{storage.shown(location)} is a URL: download it, then pack the local copy")
    path = Path(location)
    numbers = idx.find(path)
    if numbers is not None:
        if class_folders:
            raise ArgumentError(f"class_folders is True, but {path} is an IDX set: its labels file holds the classes")
        return numbers
    if path.is_dir():
        return folder.find(path, class_folders=class_folders, on_error=on_error)
    if path.exists():
        raise SourceError(_unknown(path))
    raise SourceNotFoundError(f"{path} does not exist{idx.hint(path)}: what can be packed is {_ACCEPTED}")


def _unknown(path: Path) -> str:
    if folder.is_tar(path.name):
        return (
            f"{path} is a tar file already: run `wdsdist index {path}` if its members are named as samples, or unpack "
            f"it and pack the folder"
        )
    return f"{path} is of no kind that can be packed: that is {_ACCEPTED}"
