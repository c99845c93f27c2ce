"""What people download, as numbered samples that can be packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from wdsdist import storage
from wdsdist.errors import ArgumentError, NotFoundError, SourceError, given
from wdsdist.packing.options import Options
from wdsdist.packing.sources import archive, files, idx, python, remote, table, webdataset
from wdsdist.packing.sources.source import Candidate, Source
from wdsdist.shards.open import refuse_command

Finder = Callable[[Any, Options], Source | None]
"""Detects and lists a source of its kind; returns ``None`` for another kind, or if nothing exists.

It is called with a `Candidate`, which is local, unless it is one of `_OF_ALL`. If ``options.kind`` names its kind, the
name or content of the source need not show it.
"""
_OF_TABLES, _OF_FILES = ("columns", "root"), ("key", "class_folders")
KINDS: dict[str, tuple[Finder, tuple[str, ...]]] = {
    "webdataset": (webdataset.find, ("key",)),  # before all kinds that look at an index.json or at files
    "python": (python.find, ("encode",)),  # before all kinds that look at paths
    "idx": (idx.find, ()),
    **dict.fromkeys(("parquet", "arrow", "csv", "tsv", "jsonl"), (table.find, _OF_TABLES)),
    "zip": (archive.find_zip, _OF_FILES),
    "tar": (archive.find_tar, _OF_FILES),
    "folder": (files.find_folder, _OF_FILES),  # the last one: any folder is one
}
"""The finder of each kind, by its name as in ``kind=`` and ``--from``, and which options of sources it takes. The first
that recognises a source lists it."""
_OF_ALL = (webdataset.find, python.find)
"""What is called with all that callers give, also a URL or an object."""


def find(source: Any, options: Options | None = None, **more: Any) -> Source:
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
    if isinstance(source, str):
        refuse_command(source)
    options, candidate = replace(options or Options(), **more), Candidate.of(source)
    if options.split is not None and candidate is not None and candidate.names is not None:
        return find(candidate.path / options.split, replace(options, split=None))
    if options.kind not in (None, *KINDS):
        raise ArgumentError(f"kind is {options.kind!r}: it must be one of {', '.join(KINDS)}", argument="kind")
    listed = None
    for finder in dict.fromkeys(finder for name, (finder, _) in KINDS.items() if options.kind in (None, name)):
        if listed is None and (finder in _OF_ALL or candidate is not None):
            listed = finder(source if finder in _OF_ALL else candidate, options)
    if listed is None and isinstance(source, str) and storage.is_remote(source):
        listed = remote.find(source, options)
    if listed is None:
        if candidate is not None and not candidate.path.exists():
            raise NotFoundError(f"{candidate.path} does not exist")
        kind = (
            f"not of the kind {options.kind!r}"
            if options.kind
            else f"of no kind that can be packed ({', '.join(KINDS)})"
        )
        problem = f"{candidate.path if candidate else repr(source)} is {kind}"
        if candidate is not None and candidate.path.suffix.lower() == ".json":
            problem += (
                f". A JSON list of objects becomes JSON Lines by `jq -c '.[]' {candidate.path.name} > rows.jsonl`"
            )
        raise SourceError(problem)
    # A source that is fetched first is found again, with these options.
    _, own = KINDS.get("python" if listed.kind in ("dataset", "iterable") else listed.kind, (None, None))
    for name in ("key", "class_folders", "columns", "root", "encode"):
        if own is not None and getattr(options, name) and name not in own:
            takers = ", ".join(taker for taker, (_, options_of) in KINDS.items() if name in options_of)
            what = f"{listed.location} is of the kind {listed.kind!r}, and {given(name, getattr(options, name))}"
            raise ArgumentError(f"{what} is for these kinds alone: {takers}", argument=name)
    return listed
