"""What people download, as numbered samples that can be packed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from wdsdist import storage
from wdsdist.errors import ArgumentError, NotFoundError, SourceError, given
from wdsdist.packing.options import Options
from wdsdist.packing.sources import archive, files, idx, python, remote, table, webdataset
from wdsdist.packing.sources.python import Made
from wdsdist.packing.sources.source import Candidate, Source
from wdsdist.shards.open import refuse_command

_AS_IT_LOOKS = Options()


class Kind(NamedTuple):
    """One kind of source."""

    description: str
    """Which sources are of this kind, for messages: ``"a folder of files"``."""
    find: Callable[[Any, Options], Source | None]
    """Detects and lists a source of this kind; returns ``None`` for another kind, or if nothing exists.

    It is called with a `Candidate`, which is local, unless it is one of `_OF_ALL`. If ``options.kind`` names this kind,
    the name or content of the source need not show it.
    """
    options: frozenset[str] = frozenset()
    """The options of sources that it takes; the others are refused."""


_OF_TABLES, _OF_FILES = frozenset({"columns", "root"}), frozenset({"key", "class_folders"})
KINDS = {
    # Before all kinds that look at an index.json or at files.
    "webdataset": Kind("WebDataset shards, by their folder, a pattern or a list", webdataset.find, frozenset({"key"})),
    # Before all kinds that look at paths.
    "python": Kind("a data set or an iterable of Python", python.find, frozenset({"encode"})),
    "idx": Kind("an IDX set such as train-images-idx3-ubyte.gz", idx.find),
    "hf": Kind("a folder that datasets' save_to_disk wrote", table.find_saved, _OF_TABLES),
    "parquet": Kind("Parquet files", table.find, _OF_TABLES),
    "arrow": Kind("Arrow files", table.find, _OF_TABLES),
    "csv": Kind("a manifest in CSV", table.find, _OF_TABLES),
    "tsv": Kind("a manifest in TSV", table.find, _OF_TABLES),
    "jsonl": Kind("a manifest in JSON Lines", table.find, _OF_TABLES),
    "zip": Kind("a .zip archive", archive.find_zip, _OF_FILES),
    "tar": Kind("a .tar archive, plain or compressed", archive.find_tar, _OF_FILES),
    # The last one: any folder is one.
    "folder": Kind("a folder of files", files.find_folder, _OF_FILES),
}
"""By name, as in ``kind=`` and ``--from``, in the order in which they are tried: the first that recognises a source
lists it."""
_OF_ALL = (webdataset.find, python.find)
"""What is called with all that callers give, also a URL or an object."""


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
    if isinstance(source, str):
        refuse_command(source)
    options, candidate = replace(options, **more), Candidate.of(source)
    if options.split is not None and candidate is not None and candidate.names is not None:
        return find(candidate.path / options.split, replace(options, split=None))
    kinds = {name: kind for name, kind in KINDS.items() if options.kind in (None, name)}
    if not kinds:
        raise ArgumentError(f"kind is {options.kind!r}: it must be one of {', '.join(KINDS)}", argument="kind")
    listed = None
    for finder in dict.fromkeys(kind.find for kind in kinds.values()):
        if listed is None and (finder in _OF_ALL or candidate is not None):
            listed = finder(source if finder in _OF_ALL else candidate, options)
    if listed is None and isinstance(source, str) and storage.is_remote(source):
        listed = remote.find(source, options)
    if listed is not None:
        # None if it is fetched first, and found again.
        own = KINDS.get("python" if listed.kind in ("dataset", "iterable") else listed.kind)
        for name in ("key", "class_folders", "columns", "root", "encode"):
            if own is not None and getattr(options, name) and name not in own.options:
                takers = ", ".join(taker for taker, kind in KINDS.items() if name in kind.options)
                what = f"{listed.location} is of the kind {listed.kind!r}, and {given(name, getattr(options, name))}"
                raise ArgumentError(f"{what} is for these kinds alone: {takers}", argument=name)
        return listed
    *others, last = (kind.description for kind in reversed(kinds.values()))
    accepted = f"{'; '.join(others)}; or {last}" if others else last
    if candidate is not None and not candidate.path.exists():
        raise NotFoundError(f"{candidate.path} does not exist")
    is_open = options.kind is None or candidate is None
    what = "of no kind that can be packed" if is_open else f"not of the kind {options.kind!r}"
    if candidate is not None and candidate.path.suffix.lower() == ".json":
        accepted += f". A JSON list of objects becomes JSON Lines by `jq -c '.[]' {candidate.path.name} > rows.jsonl`"
    raise SourceError(f"{candidate.path if candidate else repr(source)} is {what}: that is {accepted}")
