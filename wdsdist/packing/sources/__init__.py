"""What people download, as numbered samples that can be packed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from wdsdist import storage
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.packing.options import Options
from wdsdist.packing.sources import archive, files, idx, python, remote, table, webdataset
from wdsdist.packing.sources.python import Made
from wdsdist.packing.sources.source import Candidate, Source

__all__ = ["find"]

_AS_IT_LOOKS = Options()
_TABLE = frozenset({"columns", "root"})
_FOLDERS = frozenset({"key", "class_folders"})


class Kind(NamedTuple):
    """One kind of source."""

    name: str
    """As in ``kind=`` and ``--from``."""
    description: str
    """Which sources are of this kind, for messages: ``"a folder of files"``."""
    find: Callable[[Any, Options], Source | None]
    """Detects and lists a source of this kind; returns ``None`` for another kind, or if nothing exists.

    It is called with a `Candidate`, which is local, unless the kind `takes_all`. If ``options.kind`` names this kind,
    the name or content of the source need not show it.
    """
    options: frozenset[str] = frozenset()
    """The options of sources that it takes; the others are refused."""
    takes_all: bool = False
    """Whether ``find`` takes what the caller has given, also a URL or an object."""


KINDS = (
    # Before all kinds that look at an index.json or at files.
    Kind(
        "webdataset",
        "WebDataset shards, by their folder, a pattern or a list",
        webdataset.find,
        frozenset({"key"}),
        True,
    ),
    # Before all kinds that look at paths.
    Kind("python", "a data set or an iterable of Python", python.find, frozenset({"encode"}), True),
    Kind("idx", "an IDX set such as train-images-idx3-ubyte.gz", idx.find),
    Kind("hf", "a folder that datasets' save_to_disk wrote", table.find_saved, _TABLE),
    Kind("parquet", "Parquet files", table.find, _TABLE),
    Kind("arrow", "Arrow files", table.find, _TABLE),
    Kind("csv", "a manifest in CSV", table.find, _TABLE),
    Kind("tsv", "a manifest in TSV", table.find, _TABLE),
    Kind("jsonl", "a manifest in JSON Lines", table.find, _TABLE),
    Kind("zip", "a .zip archive", archive.find_zip, _FOLDERS),
    Kind("tar", "a .tar archive, plain or compressed", archive.find_tar, _FOLDERS),
    # The last one: any folder is one.
    Kind("folder", "a folder of files", files.find_folder, _FOLDERS),
)
"""In the order in which they are tried: the first that recognises a source lists it. Kinds may share a finder."""


def find(source: str | os.PathLike[str] | Made, options: Options = _AS_IT_LOOKS, **more: Any) -> Source:
    """Recognise a source and list its samples.

    Args:
        source: a path, a URL, a pattern or list of shards, or what Python makes, as `wdsdist.pack` takes it.
        options: what is said about it; by default, it is what it looks like.
        more: options that replace some of ``options``.

    Raises:
        NotFoundError: there is no such source.
        SourceError: the source is empty, ambiguous, damaged or of an unknown kind.
        ArgumentError: there is no such kind, or an option that sources of this kind do not take.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (root / "0001.txt").write_text("hello"), (root / "0001.cls").write_text("7")
    >>> source = find(root)
    >>> source.kind, len(source), source.contents.sizes.tolist()
    ('folder', 1, [2048])
    """
    options, candidate = replace(options, **more), Candidate.of(source)
    if options.split is not None and candidate is not None and candidate.names is not None:
        return find(candidate.path / options.split, replace(options, split=None))
    kinds = [kind for kind in KINDS if options.kind in (None, kind.name)]
    if not kinds:
        names = ", ".join(kind.name for kind in KINDS)
        raise ArgumentError(f"kind is {options.kind!r}: it must be one of {names}", argument="kind")
    listed = None
    for kind in {kind.find: kind for kind in kinds}.values():
        if listed is None and (kind.takes_all or candidate is not None):
            listed = kind.find(source if kind.takes_all else candidate, options)
    if listed is None and isinstance(source, str) and storage.is_remote(source):
        listed = remote.find(source, options)
    if listed is not None:
        of_kind = "python" if listed.kind in ("dataset", "iterable") else listed.kind
        takes = [kind.options for kind in KINDS if kind.name == of_kind]  # none if it is fetched first, and found again
        for name in ("key", "class_folders", "columns", "root", "encode"):
            if takes and getattr(options, name) and name not in takes[0]:
                takers = " or ".join(kind.name for kind in KINDS if name in kind.options)
                raise ArgumentError(
                    f"{name} is {getattr(options, name)!r}, but {listed.location} is of the kind {listed.kind!r}: only "
                    f"sources of the kind {takers} take it",
                    argument=name,
                )
        return listed
    *others, last = (kind.description for kind in reversed(kinds))
    accepted = f"{'; '.join(others)}; or {last}" if others else last
    if candidate is not None and not candidate.path.exists():
        raise NotFoundError(f"{candidate.path} does not exist: what can be packed is {accepted}")
    is_open = options.kind is None or candidate is None
    what = "of no kind that can be packed" if is_open else f"not of the kind {options.kind!r}"
    if candidate is not None and candidate.path.suffix.lower() == ".json":
        accepted += f". A JSON list of objects becomes JSON Lines by `jq -c '.[]' {candidate.path.name} > rows.jsonl`"
    raise SourceError(f"{candidate.path if candidate else repr(source)} is {what}: that is {accepted}")
