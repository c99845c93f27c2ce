"""Where indexes are written: beside the tars, or in a folder of their own that may mirror the folders of the tars."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist._util.files import atomic_write
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    DestinationExistsError,
    IndexFormatError,
    NotFoundError,
    StorageError,
    printable,
)
from wdsdist.shards.manifest import Manifest, index_json, index_name
from wdsdist.shards.tar.naming import is_tar

NAME_A_FOLDER = "name a local folder for the indexes as output"


def prepare(folder: str, locations: Sequence[str]) -> str | None:
    """Create the folder for the indexes of tars that lie elsewhere, after checks of their names.

    Returns the folder around all tars, whose folders are to be mirrored; ``None`` if no two tars have the same name.
    """
    if storage.is_remote(folder):
        raise ArgumentError(f"output is {storage.shown(folder)}: it must be a local folder", argument="output")
    refuse_tar_name("output", folder)
    for location, count in Counter(locations).most_common(1):
        if count > 1:
            raise IndexFormatError(f"{storage.shown(location)} is named {count} times: name each tar once")
    for location in locations:
        if storage.shown(location) != printable(location):
            raise ArgumentError(
                f"the URL of {storage.shown(location)} holds a password or a query, which index.json would keep: pass "
                f"what the store needs as storage_options"
            )
    names = {storage.split(location)[1] for location in locations}
    mirrors = None if len(names) == len(locations) else _folder_around(locations)
    for parent in {Path(folder, index_name(location, mirrors)).parent for location in locations}:
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DestinationError(f"{parent} cannot be made ({error.strerror})") from error
    return mirrors


def refuse_tar_name(argument: str, folder: str) -> None:
    """Raise `ArgumentError` for a folder to write to with the name of a tar, by which it could not be opened."""
    if is_tar(storage.split(folder)[1]):
        raise ArgumentError(
            f"{argument} is {storage.shown(folder)}: it is to be a folder, so give it no name of a tar",
            argument=argument,
        )


def known(folder: str, file_name: str, locations: Sequence[str], options: storage.StorageOptions) -> Manifest | None:
    """Return the data set of the index.json that is to be replaced; ``None`` if there is no readable one.

    Raises `DestinationExistsError` if it lists further tars, which would be lost to whoever opens the folder.
    """
    try:
        found = index_json.load(storage.join(folder, file_name), options, allow_elsewhere=True)
    except (NotFoundError, IndexFormatError, StorageError):
        return None
    listed = {found.location(number) for number in range(len(found.counts))}
    others = sorted(listed - set(locations))
    if storage.is_remote(folder) and others:
        there = {entry.name for entry in storage.list(folder, options)} if not storage.is_read_only(folder) else set()
        others = [location for location in others if storage.split(location)[1] in there]
    else:
        others = [location for location in others if storage.is_remote(location) or Path(location).exists()]
    if others:
        raise DestinationExistsError(
            f"{storage.shown(storage.join(folder, file_name))} lists {len(others):,} other tars, such as "
            f"{storage.shown(others[0])}: index all together, or write a second index with name= (index-NAME.json) or "
            f"into another folder with output=, or delete that file first"
        )
    if file_name == index_json.FILE_NAME:
        _refuse_unfinished(found, folder, len(locations), options)
    return found


def kept_notes(known: Manifest | None, manifest: Manifest) -> dict[str, Any]:
    """Return the notes of the index.json that is to be replaced which a scan of the tars cannot find.

    Notes on how the data set has grown are kept if the shards that it had are the first of the new one.
    """
    if known is None:
        return {}
    before = len(known.counts)
    names = ["classes"]
    grown = {}
    if 0 < before <= len(manifest.counts) and manifest.fingerprints([before]) == [known.fingerprint]:
        names.append("appended")
        lengths = sorted({*known.generations, len(manifest.counts)})
        grown = {"generations": lengths} if len(lengths) > 1 else {}
    return {**{name: known.extra[name] for name in names if name in known.extra}, **grown}


def save(
    manifest: Manifest,
    folder: str,
    file_name: str,
    left_out: Sequence[Mapping[str, str | None]],
    options: storage.StorageOptions,
) -> None:
    """Write the report of what was left out, if anything was, and then the index.json."""
    report = storage.join(folder, _report_name(file_name))
    if left_out:
        write(report, b"".join(json.dumps(line).encode() + b"\n" for line in left_out), options)
    else:
        storage.delete(report, options)
    write(storage.join(folder, file_name), index_json.dumps(manifest), options)


def report(manifest: Manifest, name: str | None) -> str:
    """Return where the report of what was left out lies, for messages."""
    return storage.shown(storage.join(manifest.base, _report_name(index_json.file_name(name))))


def write(location: str, content: bytes, options: storage.StorageOptions) -> None:
    """Write a file atomically. Raises `DestinationError` if it cannot be written."""
    try:
        if storage.is_remote(location):
            storage.put(location, content, options)
        else:
            with atomic_write(Path(location)) as stream:
                stream.write(content)
    except StorageError as error:
        raise DestinationError(f"{error}: {NAME_A_FOLDER}") from error
    except OSError as error:
        raise DestinationError(f"{location} cannot be written ({error.strerror}): {NAME_A_FOLDER}") from error


def _folder_around(locations: Sequence[str]) -> str:
    """Return the folder around all tars, textually; empty if only the root of the file system is."""
    paths = [location.split("/")[:-1] for location in locations]
    common = next((n for n, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), min(map(len, paths)))
    if not common:
        raise IndexFormatError("shards of the same name lie here and in a store: index one of the two at a time")
    return "/".join(paths[0][:common])


def _refuse_unfinished(known: Manifest, folder: str, tars: int, options: storage.StorageOptions) -> None:
    """Raise `NotFoundError` if some of the tars belong to an append that was not finished."""
    if tars <= len(known.counts):
        return
    try:
        jobs = json.loads(storage.read(storage.join(folder, index_json.PACK_RECORD), options))["jobs"]
        before = jobs[-1]["listed"]
    except (FileNotFoundError, StorageError, ValueError, LookupError, TypeError):
        return
    if before == len(known.counts):
        raise NotFoundError(
            f"{storage.shown(folder)} has not been appended to to the end: run the same `wdsdist pack --append` again, "
            f"or delete {index_json.PACK_RECORD} there if all tars are to be indexed as they are"
        )


def _report_name(file_name: str) -> str:
    return f"{file_name.removesuffix('.json')}-report.jsonl"
