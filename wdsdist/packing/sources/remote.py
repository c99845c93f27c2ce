"""Sources behind a URL: the files of a folder, fetched by the processes that write them, or tables and archives, once.

An archive or a table is read at many places, so it becomes a temporary local file first, beside the shards; the tables
of a folder become a temporary folder.
"""

from __future__ import annotations

import fnmatch
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from wdsdist import storage
from wdsdist.errors import ArgumentError, NotFoundError, SourceError, StorageError
from wdsdist.packing.payloads import BrokenPayload, FilePayload, Payload, Sample
from wdsdist.packing.sources.archive import Tree
from wdsdist.packing.sources.listed_source import Taken
from wdsdist.packing.sources.source import Source, SourceOptions, deferred
from wdsdist.packing.sources.table import PARQUET, STATE, check_splits, is_table
from wdsdist.shards.manifest import check_location

FindLocal = Callable[[Path, SourceOptions], Source]
"""Recognises and lists what lies at a local path."""

_TOGETHER = 16  # requests at once, of each process that writes
_MOST_AHEAD = 64 << 20  # bytes of members that are fetched before they are written


@dataclass(frozen=True, slots=True)
class RemoteSamples:
    """Some samples of a remote folder."""

    taken: Taken
    urls: dict[int, str] = field(repr=False)
    """Of the samples' files, by their number in the listing."""
    options: storage.StorageOptions = field(repr=False)

    def __iter__(self) -> Iterator[Sample]:
        ahead: deque[tuple[str, list[tuple[str, Future[Payload]]]]] = deque()
        sizes: deque[int] = deque()
        pool = ThreadPoolExecutor(_TOGETHER)
        try:
            for key, members in self.taken.samples(lambda _, size, place: FilePayload(self.urls[place], size)):
                ahead.append((key, [(extension, pool.submit(self._fetched, one)) for extension, one in members]))
                sizes.append(sum(payload.size for _, payload in members if isinstance(payload, FilePayload)))
                while len(ahead) > _TOGETHER or sum(sizes) > _MOST_AHEAD:
                    sizes.popleft()
                    yield _arrived(*ahead.popleft())
            while ahead:
                yield _arrived(*ahead.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _fetched(self, wanted: Payload) -> Payload:
        """Return the bytes of a file. A store that does not answer is an error of packing, not of the sample."""
        if not isinstance(wanted, FilePayload):
            return wanted
        where = storage.shown(wanted.path)
        try:
            data = storage.read(wanted.path, self.options)
        except FileNotFoundError:
            return BrokenPayload(f"{where} has vanished since it was listed: pack again once the source stays as it is")
        if len(data) != wanted.size:
            reason = f"{where} has {len(data):,} bytes, but had {wanted.size:,} when it was listed"
            return BrokenPayload(f"{reason}: pack again once the source stays as it is", wanted.size)
        return data


def _arrived(key: str, members: list[tuple[str, Future[Payload]]]) -> Sample:
    return key, [(extension, one.result()) for extension, one in members]


def find(url: str, options: SourceOptions, find_local: FindLocal) -> Source:
    """List the samples at a URL.

    A URL whose name has an extension is that of a file, unless the store says that it is a folder; it is fetched when
    its samples are first needed, and found by ``find_local`` then.

    Raises `NotFoundError` where nothing lies there and `StorageError` where the store does not answer.
    """
    location = storage.normalise(url)
    folder, _, pattern = location.rpartition("/")
    if re.search(r"[*\[]", pattern) and is_table(pattern):
        listed = storage.list(folder, _bound(location, options), recursive=True)
        entries = [one for one in listed if is_table(one.name) and fnmatch.fnmatchcase(one.name, pattern)]
        if entries:
            return _tables(folder, pattern, entries, options, find_local)
        if all(one.name != pattern for one in listed):  # brackets may stand in a name
            raise NotFoundError(f"{storage.shown(location)} matches no file")
    if not url.endswith("/") and Path(storage.split(location)[1]).suffix:
        try:
            entry = storage.stat(location, _bound(location, options))
        except FileNotFoundError as error:
            raise NotFoundError(f"{storage.shown(location)} does not exist") from error
        if not entry.is_folder:
            return _fetched(storage.shown(location), {location: entry}, entry.name, options, find_local)
    return _folder(location, options, find_local)


def _bound(url: str, options: SourceOptions) -> storage.StorageOptions:
    """Return the options of clients for the store of the source: what its listing names elsewhere gets none."""
    return storage.named(options.storage_options, [url])


def _fetched(
    where: str, files: Mapping[str, storage.Entry], name: str, options: SourceOptions, find_local: FindLocal
) -> Source:
    """Return the source of files, by their URLs, that are fetched into a folder: of one of them by its name, or of all.

    ``where`` names them in errors, which do not name the temporary folder.
    """
    state = "\0".join([*map(str, files.values()), str(options.kind), options.state(), str(options.columns)])
    if options.root is not None:
        state += f"\0{options.root}"

    def make(scratch: Path) -> Source:
        for url, entry in files.items():
            _fetch(url, entry, scratch / entry.name, options)
        try:
            return find_local(scratch / name, replace(options, scratch=scratch))
        except (SourceError, ArgumentError) as error:  # which may name files that are not beside these
            problem = str(error).replace(f"{scratch}/", "").replace(str(scratch), where)
            raise type(error)(f"{where}, of which nothing but {name or 'the tables'} was fetched: {problem}") from error

    return deferred("remote", where, state, options.scratch, make)


def _tables(
    url: str, pattern: str, entries: Iterable[storage.Entry], options: SourceOptions, find_local: FindLocal
) -> Source:
    """Return the tables of a remote folder as one, with what `save_to_disk` of ``datasets`` notes of them.

    Raises `SourceError` for tables of several splits, before they are fetched.
    """
    where = storage.shown(storage.join(url, pattern))
    wanted = sorted((one for one in entries if is_table(one.name) or one.name == STATE), key=lambda one: one.name)
    for entry in wanted:
        if problem := _misnamed(url, entry.name):
            raise SourceError(f"{where}: {problem}")
    check_splits(where, storage.shown(url), [one.name for one in wanted])
    if len({Path(one.name).suffix.lower() in PARQUET for one in wanted if one.name != STATE}) > 1:
        raise SourceError(f"{where} holds Parquet and Arrow files: name those of one kind, as in '*.parquet'")

    return _fetched(where, {storage.join(url, one.name): one for one in wanted}, "", options, find_local)


def _fetch(url: str, entry: storage.Entry, path: Path, options: SourceOptions) -> None:
    """Fetch one file of the source; raise `StorageError` where it has not the size that the store says."""
    where = storage.shown(url)
    try:
        storage.fetch(url, path, _bound(url, options))
    except NotFoundError as error:
        raise NotFoundError(f"{where} does not exist") from error
    if entry.size not in (-1, path.stat().st_size):
        raise StorageError(f"{where} has {entry.size:,} bytes but gave {path.stat().st_size:,}: try again")


def _folder(url: str, options: SourceOptions, find_local: FindLocal) -> Source:
    if options.split is not None:
        return _folder(storage.join(url, options.split), replace(options, split=None), find_local)
    where, bound = storage.shown(url), _bound(url, options)
    entries = storage.list(url, bound, recursive=True)
    holds_tables = any(is_table(one.name) for one in entries) and options.kind in (None, "parquet", "arrow", "hf")
    if holds_tables and all(is_table(one.name, or_note=True) for one in entries):
        return _tables(url, "", entries, options, find_local)
    if options.kind not in (None, "folder"):
        raise SourceError(f"{where} is a remote folder, not of the kind {options.kind!r}")
    if not entries:
        raise NotFoundError(f"{where} does not exist, holds no file, or cannot be reached")
    tree = Tree(where, options.on_error, keep_root=True)
    for number, entry in enumerate(entries):
        problem = "" if entry.size >= 0 else "has a size that its store does not give: download it first"
        tree.add(entry.name, max(entry.size, 0), number, problem or _misnamed(url, entry.name))

    def samples(taken: Taken) -> RemoteSamples:
        urls = {place: storage.join(url, entries[place].name) for place in taken.places}
        return RemoteSamples(taken, urls, bound)

    state = "\0".join(["folder", *(entry.stamp for entry in entries)])
    return tree.source("folder", options, samples, state=state)


def _misnamed(url: str, name: str) -> str:
    """Return why a store may not list a file under this name, or an empty string."""
    try:
        check_location(url, name)
    except ValueError as error:
        return f"{error}, or so its store says: download it first"
    return ""
