"""Open data sets: what a user's string means, and which shards that is.

A string is a path, a URL, a brace pattern, a glob, or ``a.tar::b.tar``. A location is a folder with an
``index.json`` or the counts of another tool, such a file, a view, or a tar without an index.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from wdsdist import storage
from wdsdist._util.validation import check_flag, check_seconds
from wdsdist.errors import ArgumentError, NotFoundError, StorageError
from wdsdist.shards.manifest import Manifest, Shard, index_json
from wdsdist.shards.manifest.allowed_locations import SCHEMES
from wdsdist.shards.tar import FIRST_DOT, is_tar

Location = str | os.PathLike[str]
Shards = Location | Iterable[Location] | Manifest
_Options = Mapping[str, Any] | storage.StorageOptions | None

_BEFORE_PATH = re.compile(r"^[^:]+://[^/]*")
"""The part of a URL before its path."""


class OpenOptions(TypedDict, total=False):
    """The arguments of `open` that a `StreamingDataset` takes as well."""

    storage_options: Mapping[str, Any] | None
    download_timeout: float | None
    stage: bool
    allow_elsewhere: bool
    generation: int | None


def open(  # noqa: A001
    shards: Shards,
    *,
    storage_options: Mapping[str, Any] | None = None,
    download_timeout: float | None = None,
    stage: bool = False,
    allow_elsewhere: bool = False,
    generation: int | None = None,
    key: str = FIRST_DOT,
) -> Manifest:
    """Open a data set and return its manifest: the shards, with the number of samples in each.

    Args:
        shards: a folder or URL with an ``index.json``, or with the counts of timm (``_info.json``), Megatron-Energon
            (``.nv-meta``) or wids (``wids-meta.json``), which are checked when shards are opened; the path or URL of an
            ``index.json``; one tar; a brace pattern such as ``train-{000..127}.tar``, or a glob; ``a.tar::b.tar``; a
            list of these; a view that `Manifest.save` wrote; or a `Manifest`. Local tars that are named individually
            need no ``index.json``: tars without an index are scanned once.
        storage_options: passed to fsspec for the stores that ``shards`` names. Shards that the index lists at another
            host, bucket or scheme are read without options. A mapping such as ``{"s3://bucket": {"anon": True}}`` sets
            the options of each store.
        download_timeout: deadline in seconds for a remote ``index.json``, all retries included; by default it is
            retried until 30 seconds after the first failure.
        stage: copy local shards into the cache too, as for a slow mount.
        allow_elsewhere: let the ``index.json`` name shards outside its own folder: on other hosts, in other
            buckets, by absolute paths or ``..``. Check these names first. An index that `wdsdist.index` wrote with
            ``output=`` needs this.
        generation: for a data set that has grown, the number of the generation: 1 is the first one; by default the last
            one.
        key: the key rule of tars without an index, as `wdsdist.index` takes it.

    Raises:
        NotFoundError: a folder without ``index.json``, or a tar that does not exist.
        IndexFormatError: a damaged index, or an ``index.json`` with an entry that is invalid or lies elsewhere.
        ShardDamagedError: a tar without an index that cannot be read without losing samples.
        ArgumentError: the names in tars without an index do not fit the key rule.
    """
    if key != FIRST_DOT:
        from wdsdist.shards.tar.member_names import check_rule

        check_rule(key)
    check_flag("allow_elsewhere", allow_elsewhere)
    deadline = None
    if download_timeout is not None:
        deadline = storage.Deadline(check_seconds("download_timeout", download_timeout), "download_timeout")
    manifest = _opened(shards, storage_options, deadline, allow_elsewhere=allow_elsewhere, key=key)
    manifest = manifest if generation is None else manifest.at_generation(generation)
    return manifest.staged() if check_flag("stage", stage) else manifest


def _opened(
    shards: Shards,
    storage_options: Mapping[str, Any] | None,
    deadline: storage.Deadline | None,
    *,
    allow_elsewhere: bool,
    key: str,
) -> Manifest:
    """Open a data set in its last generation, as `open` does."""
    if isinstance(shards, Manifest):
        return shards
    locations = expand(shards, storage_options)
    load = functools.partial(index_json.load, deadline=deadline, allow_elsewhere=allow_elsewhere)
    if len(locations) != 1 or is_tar(storage.split(locations[0])[1]):
        return _open_tars(locations, storage_options, load, key=key)
    if storage.split(locations[0])[1].endswith(".json"):
        return load(locations[0], storage_options)
    # A folder with an index.json or the counts of another tool, or a view: the name does not say which.
    (location,) = locations
    refusal: NotFoundError | StorageError | None = None
    if storage.is_remote(location) and "?" in location:  # signed for one file, such as a view
        refusal = NotFoundError(f"{storage.shown(location)} is not a view: name an index.json or a tar, or sign again")
    else:
        try:
            return load(storage.join(location, index_json.FILE_NAME), storage_options)
        except NotFoundError:
            pass
        except StorageError as error:  # a bucket that lists nothing refuses objects that do not exist, as below a view
            if error.kind in storage.PASSING:
                raise
            refusal = error
    from wdsdist.shards import interop, view_file

    options = storage.named(storage_options, [location])
    if view_file.is_view(location, options, deadline):

        def open_index(path: str) -> Manifest:
            return load(path, storage.named(storage_options, [location, path]) if allow_elsewhere else options)

        return view_file.load(location, options, open_index, allow_elsewhere=allow_elsewhere)
    if refusal is not None:
        raise refusal
    return interop.load(location, options)


def _open_tars(
    locations: list[str], options: Mapping[str, Any] | None, load: Callable[..., Manifest], *, key: str
) -> Manifest:
    """Open single tars: from the ``index.json`` of their folder, the counts of another tool, or the index of each."""
    for location in locations:
        if not is_tar(storage.split(location)[1]) and (storage.is_remote(location) or Path(location).is_dir()):
            raise ArgumentError(
                f"shards lists {len(locations)} names, but {storage.shown(location)} is not a tar: a list names the "
                f"tars of one data set; open each folder by itself, or join data sets with wdsdist.concat"
            )
    folder = storage.split(locations[0])[0]
    bound = storage.named(options, [folder, *locations])

    def of_these(manifest: Manifest) -> Manifest:
        numbers = {manifest.location(number): number for number in range(len(manifest.counts))}
        return manifest.of_shards([numbers[location] for location in locations])

    with contextlib.suppress(NotFoundError, KeyError):  # no index.json, or one that does not list these tars
        return of_these(load(storage.join(folder, index_json.FILE_NAME), bound))
    from wdsdist._util.pools import pool
    from wdsdist.shards import interop
    from wdsdist.shards.scan import check_fields
    from wdsdist.shards.shard_indexes import local_index

    with contextlib.suppress(NotFoundError, KeyError):
        return of_these(interop.load(folder, bound, is_whole=False))
    remote = next((location for location in locations if storage.is_remote(location)), None)
    if remote is not None:
        raise NotFoundError(
            f"{storage.shown(folder)} has no {index_json.FILE_NAME} that lists {storage.split(remote)[1]}: "
            f"run `wdsdist index` on its shards (with `--output DIR` if the store cannot be written), and open the "
            f"folder that it writes"
        )
    with pool(None, len(locations)) as executor:
        indexes = list(executor.map(functools.partial(local_index, key_rule=key), map(Path, locations)))
    check_fields(storage.shown(folder), indexes)
    rules = {index.key_rule for index in indexes}
    if len(rules) > 1 or key not in (FIRST_DOT, *rules):
        shown = " and ".join(map(repr, sorted(rules)))
        raise ArgumentError(
            f"the tars in {folder} were not all indexed by one key rule ({shown}): run `wdsdist index` on all",
            argument="key",
        )
    (rule,) = rules
    extra = {} if rule == FIRST_DOT else {"key_rule": rule}
    return Manifest.of(folder, map(Shard.of, locations, indexes), name=Path(folder).name, extra=extra, is_named=True)


def expand(shards: Location | Iterable[Location], storage_options: _Options = None) -> list[str]:
    """Expand globs, brace patterns and ``::`` lists to the locations of shards; other names stay.

    Args:
        shards: a path or URL; a brace pattern such as ``{00..09}.tar`` or a glob such as ``*.tar``; several joined by
            ``::``, as webdataset takes them; or a list of these. A name that exists is that file or folder, whatever
            letters it has.
        storage_options: for the stores of remote globs.

    Raises:
        ArgumentError: ``pipe:``, or another value that is not a location.
        NotFoundError: a glob matches nothing.
        StorageError: a store cannot be read.
    """
    expanded: list[str] = []
    is_one = isinstance(shards, (str, os.PathLike)) or not isinstance(shards, Iterable)
    items: list[Any] = [shards] if is_one else list(shards)  # type: ignore[arg-type]
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise ArgumentError(f"shards {'is' if is_one else 'holds'} {item!r}: name a path, a URL or a list of them")
        for name in _parts(os.fspath(item)):
            refuse_command(name)
            patterns = [name]
            if "{" in name and not _exists(name):
                import braceexpand

                with contextlib.suppress(ValueError):  # it is not a pattern: an error will show the name
                    patterns = list(braceexpand.braceexpand(name))
            for pattern in patterns:
                expanded += matching(pattern, storage.named(storage_options, [storage.normalise(pattern)]))
    if not expanded:
        raise NotFoundError("the list of shards is empty: name a folder, a brace pattern or some tars")
    return expanded


def is_pattern(name: str) -> bool:
    """Return whether a name is a glob, a brace pattern or a ``::`` list of shards, not one file or folder.

    >>> [is_pattern(name) for name in ("a-*.tar", "a.tar::b.tar", "*.parquet", "a.tar")]
    [True, True, False, False]
    """
    if _exists(name):
        return False
    is_glob = _has_magic(name) and is_tar(storage.split(name)[1])
    return is_glob or "{" in name or len(_parts(name)) > 1


def _exists(name: str) -> bool:
    return not storage.is_remote(name) and os.path.lexists(storage.normalise(name))


def _parts(name: str) -> list[str]:
    """Split locations that are joined by ``::``, but no chain of file systems of fsspec."""
    parts = name.split("::")
    is_list = all(is_tar(storage.split(part)[1]) and storage.scheme(part) in SCHEMES for part in parts)
    return parts if is_list and not _exists(name) else [name]


def refuse_command(name: str) -> None:
    """Raise `ArgumentError` for a command of webdataset, without its arguments, which may hold secrets."""
    if name.startswith("pipe:"):
        raise ArgumentError(
            f"{name.partition(' ')[0]} ... is a command, which wdsdist does not run: name the shards by their path or "
            f"URL, such as s3://bucket/00000.tar, and pass the options of their store as storage_options"
        )


def _has_magic(name: str) -> bool:
    # In a URL a question mark begins the query, and brackets may stand around the address of the host.
    return glob.has_magic(_BEFORE_PATH.sub("", name).partition("?")[0] if storage.is_remote(name) else name)


def matching(name: str, options: storage.StorageOptions | None) -> list[str]:
    """Return the sorted locations that match a pattern: the tars among them, if there are any."""
    location = storage.normalise(name)
    if not _has_magic(location) or _exists(name):
        return [location]
    if storage.is_remote(location):
        folder = re.split(r"(?<=[^:/])/[^/]*[*\[]", location, maxsplit=1)[0]
        names = location[len(folder) + 1 :].split("/")
        parts = (".*" if name == "**" else fnmatch.translate(name)[4:-3].replace(".*", "[^/]*") for name in names)
        regex = re.compile("/".join(parts))
        entries = storage.list(folder, options, recursive=len(names) > 1 or "**" in names)
        locations = [storage.join(folder, entry.name) for entry in entries if regex.fullmatch(entry.name)]
    else:
        locations = sorted(glob.glob(location, recursive=True))  # noqa: PTH207 - of an absolute pattern
    if not locations:
        raise NotFoundError(f"nothing matches {storage.shown(location)}: check the pattern")
    return [location for location in locations if is_tar(storage.split(location)[1])] or locations
