"""Where indexes are written: beside the tars, or in a folder of their own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    DestinationExistsError,
    IndexFormatError,
    NotFoundError,
    StorageError,
    printable,
)
from wdsdist.shards.index import index_name
from wdsdist.shards.manifest import Manifest, index_json
from wdsdist.shards.tar.naming import is_tar

NAME_A_FOLDER = "name a local folder for the indexes as output"


def prepare(folder: str, locations: Sequence[str]) -> None:
    """Create the folders for the indexes of tars that lie elsewhere, after checks of their names."""
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
                f"the options of its store as storage_options"
            )
    for parent in {Path(folder, index_name(location, folder)).parent for location in locations}:
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DestinationError(f"{parent} cannot be made ({error.strerror})") from error


def refuse_tar_name(argument: str, folder: str) -> None:
    """Raise `ArgumentError` for a folder to write to with the name of a tar, by which it could not be opened."""
    if is_tar(storage.split(folder)[1]):
        raise ArgumentError(
            f"{argument} is {storage.shown(folder)}: it must be a folder, so give it no name of a tar",
            argument=argument,
        )


def known(folder: str, file_name: str, locations: Sequence[str], options: storage.StorageOptions) -> Manifest | None:
    """Return the data set of the index.json that is to be replaced; ``None`` if there is no readable one.

    Raises `DestinationExistsError` if it lists further tars, which readers of the folder would lose, and
    `NotFoundError` if some of the tars belong to an append that was not finished.
    """
    location = storage.join(folder, file_name)
    try:
        manifest = index_json.load(location, options, allow_elsewhere=True)
    except (NotFoundError, IndexFormatError, StorageError):
        return None
    listed = {manifest.location(number) for number in range(len(manifest.counts))}
    others = sorted(listed - set(locations))
    if (other := next((tar for tar in others if _exists(tar, options)), None)) is not None:
        raise DestinationExistsError(
            f"{storage.shown(location)} lists {len(others):,} other tars, such as {storage.shown(other)}: index all "
            f"together, or write a second index with name= (index-NAME.json) or into another folder with output=, or "
            f"delete that file first"
        )
    try:
        jobs = json.loads(storage.read(storage.join(folder, index_json.PACK_RECORD), options))["jobs"]
        before = jobs[-1]["listed"]
    except (FileNotFoundError, StorageError, ValueError, LookupError, TypeError):
        before = None
    if file_name == index_json.FILE_NAME and before == len(manifest.counts) < len(locations):
        raise NotFoundError(
            f"{storage.shown(folder)} has not been appended to to the end: run the same `wdsdist pack --append` again, "
            f"or delete {index_json.PACK_RECORD} there to index all tars as they are"
        )
    return manifest


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
        storage.put(location, content, options)
    except (StorageError, NotFoundError) as error:
        raise DestinationError(f"{error}: {NAME_A_FOLDER}") from error


def _exists(location: str, options: storage.StorageOptions) -> bool:
    try:
        storage.stat(location, options)
    except FileNotFoundError:
        return False
    except StorageError:  # a store that cannot be asked
        pass
    return True


def _report_name(file_name: str) -> str:
    return f"{file_name.removesuffix('.json')}-report.jsonl"
