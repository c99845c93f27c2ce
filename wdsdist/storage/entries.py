"""What lies under a location, with sizes and stamps."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wdsdist.storage.clients import asked, filesystem, persist
from wdsdist.storage.deadline import Deadline
from wdsdist.storage.options import StorageOptions
from wdsdist.storage.streams import stamp_of
from wdsdist.storage.urls import split

_TOGETHER = 16  # requests at once


@dataclass(frozen=True, slots=True)
class Entry:
    """A remote file or object."""

    name: str
    """Its path below what was listed, as the store spells it."""
    size: int
    """Bytes; -1 where the store does not say."""
    stamp: str
    """What the store gives to tell one content from another: an ETag, a digest, a time; empty where nothing."""
    is_folder: bool = False


def listing(location: str, options: StorageOptions | None = None) -> list[Entry]:
    """Return all files below a remote folder, however deep; none where there is no such folder."""

    def find() -> list[Entry]:
        client, path = filesystem(location, options)
        root = path.rstrip("/") + "/"
        found = client.find(path, detail=True).items()
        entries = [_entry(name[len(root) :], info) for name, info in found if name.startswith(root)]
        unsized = [entry for entry in entries if entry.size < 0]
        with concurrent.futures.ThreadPoolExecutor(_TOGETHER) as pool:  # listings of web servers tell no sizes
            infos = pool.map(lambda entry: client.info(root + entry.name), unsized)
            known = {entry.name: _entry(entry.name, info) for entry, info in zip(unsized, infos, strict=True)}
        return sorted((known.get(entry.name, entry) for entry in entries), key=lambda entry: entry.name)

    try:
        return persist(location, find)
    except FileNotFoundError:
        return []


def entry(location: str, options: StorageOptions | None = None, *, deadline: Deadline | None = None) -> Entry:
    """Return what is known of one remote file. Raises ``FileNotFoundError`` where there is none."""

    def info() -> Entry:
        client, path = filesystem(location, options, retries=deadline is None)
        return _entry(split(location)[1], asked(client, "info", path, deadline))

    return persist(location, info, deadline=deadline)


def _entry(name: str, info: Mapping[str, Any]) -> Entry:
    size = -1 if info.get("size") is None else int(info["size"])
    return Entry(name, size, stamp_of(info), info.get("type") == "directory")
