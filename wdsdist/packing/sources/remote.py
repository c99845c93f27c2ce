"""Sources behind a URL: the files of a folder, fetched by the processes that write them, or tables and archives, once.

An archive or a table is read at many places, so it becomes a temporary local file first, beside the shards; the tables
of a folder become a temporary folder.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from wdsdist import storage
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.packing.members import Payload, Sample
from wdsdist.packing.options import Options
from wdsdist.packing.sources.files import Files, file_samples
from wdsdist.packing.sources.listing import ListedSample
from wdsdist.packing.sources.source import Source, deferred
from wdsdist.packing.sources.table import STATE, together
from wdsdist.packing.tables.table import kind_of
from wdsdist.shards.manifest import check_location
from wdsdist.storage import engine

_TOGETHER = 16  # requests at once, of each process that writes
_ADVICE = "since it was listed: pack again once the source stays as it is"
_MOST_AHEAD = 64 << 20  # bytes of members that are fetched before they are written


def _samples(folder: str, options: storage.StorageOptions, samples: Iterable[ListedSample]) -> Iterator[Sample]:
    """Yield samples of a remote folder, whose files are fetched a little before."""
    read, ahead = functools.partial(_fetched, folder, options), deque[tuple[int, Future[Sample]]]()
    pool = ThreadPoolExecutor(_TOGETHER)
    try:
        for sample in samples:
            size = sum(file[1] for _, file in sample[1] if isinstance(file, tuple))
            ahead.append((size, pool.submit(next, file_samples(read, None, [sample]))))
            while len(ahead) > _TOGETHER or sum(size for size, _ in ahead) > _MOST_AHEAD:
                yield ahead.popleft()[1].result()
        while ahead:
            yield ahead.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _fetched(folder: str, options: storage.StorageOptions, path: str, size: int, _: int) -> Payload:
    """Return the bytes of a file. A store that does not answer is an error of packing, not of the sample."""
    location = storage.join(folder, path)
    shown = storage.shown(location)
    try:
        data = storage.read(location, options)
    except FileNotFoundError:
        return SourceError(f"{shown} has vanished {_ADVICE}")
    if len(data) != size:
        return SourceError(f"{shown} has changed from {size:,} to {len(data):,} bytes {_ADVICE}")
    return data


def find(url: str, options: Options) -> Source:
    """List the samples at a URL.

    A URL whose name has an extension names a file, unless the store says that it is a folder; it is fetched when
    its samples are first needed.

    Raises `NotFoundError` if nothing lies there and `StorageError` if the store does not answer.
    """
    location = storage.normalise(url)
    # What the listing of the source names elsewhere gets no options of clients.
    bound = storage.named(options.storage_options, [location])
    folder, _, pattern = location.rpartition("/")
    if not re.search(r"[*\[]", pattern) or kind_of(pattern) is None:
        folder, pattern = location, ""
        if not url.endswith("/") and Path(storage.split(location)[1]).suffix:
            entry = storage.stat(location, bound)
            if not entry.is_folder:
                return _deferred(storage.shown(location), {location: entry}, entry.name, options, bound)
        if options.split is not None:
            folder, options = storage.join(location, options.split), replace(options, split=None)
    shown, entries = storage.shown(folder), storage.list(folder, bound, recursive=True)
    names = {entry.name: entry for entry in entries}
    if pattern in names:  # brackets may stand in a name
        return _deferred(storage.shown(location), {location: names[pattern]}, pattern, options, bound)
    if table := together(storage.shown(location), shown, names, pattern, options.kind):
        notes = [STATE] if STATE in names and not pattern else []
        files = {storage.join(folder, name): names[name] for name in (*table[1], *notes)}
        return _deferred(storage.shown(location), files, "", options, bound)
    if pattern:
        raise NotFoundError(f"{storage.shown(location)} matches no file")
    if options.kind not in (None, "folder"):
        raise SourceError(f"{shown} is a remote folder, not of the kind {options.kind!r}")
    if not entries:
        raise NotFoundError(f"{shown} does not exist, holds no file, or cannot be reached")
    listing = Files(shown)
    for number, entry in enumerate(entries):
        problem = "" if entry.size >= 0 else "has a size that its store does not give: download it first"
        if "//" in f"/{entry.name}" or "/./" in f"/{entry.name}":
            problem = "has a name with empty parts: rename it"
        try:
            check_location(folder, entry.name)
        except ValueError as error:
            problem = f"{error}, or so its store says: download it first"
        listing.add_name(entry.name, max(entry.size, 0), number, problem)
    state = "\0".join(["folder", *(entry.stamp for entry in entries)])
    return listing.source("folder", options, _samples, folder, bound, state=state)


def _deferred(
    shown: str, files: Mapping[str, storage.Entry], name: str, options: Options, bound: storage.StorageOptions
) -> Source:
    """Return the source of files, by their URLs, that are fetched into a folder: of one of them by its name, or of all.

    ``shown`` names them in errors, which do not name the temporary folder.
    """
    about = [str(options.kind), options.state(), str(options.columns), str(options.root)]

    def make(scratch: Path) -> Source:
        for url, entry in files.items():
            before = storage.stat(url, bound)
            engine.fetch(url, scratch / entry.name, bound, size=before.size)
            if before.size != entry.size or storage.stat(url, bound) != before:
                raise SourceError(f"{storage.shown(url)} has changed {_ADVICE}")
        from wdsdist.packing import sources

        try:
            return sources.find(scratch / name, replace(options, scratch=scratch))
        except (SourceError, ArgumentError) as error:  # which may name files that are not beside these
            problem = str(error).replace(f"{scratch}/", "").replace(str(scratch), shown)
            raise type(error)(f"{shown} (nothing but {name or 'the tables'} was fetched): {problem}") from error

    return deferred("remote", shown, "\0".join([*map(str, files.values()), *about]), options.scratch, make)
