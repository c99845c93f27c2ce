"""The ways to spell which shards are meant: paths, URLs, brace patterns, globs, ``a.tar::b.tar``, lists in a file."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from wdsdist import storage
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, given
from wdsdist.shards.manifest import Manifest, check_location
from wdsdist.shards.manifest.allowed_locations import SCHEMES, ElsewhereError
from wdsdist.shards.tar.naming import is_tar

Location = str | os.PathLike[str]
Shards = Location | Iterable[Location] | Manifest
_Options = Mapping[str, Any] | storage.StorageOptions | None

_BEFORE_PATH = re.compile(r"^[^:]+://[^/]*")
"""The part of a URL before its path."""


def expand(
    shards: Location | Iterable[Location],
    storage_options: Mapping[str, Any] | storage.StorageOptions | None = None,
    *,
    allow_elsewhere: bool = False,
) -> list[str]:
    """Expand globs, brace patterns, ``::`` lists and list files to the locations of shards; other names stay.

    Args:
        shards: a path or URL; a brace pattern such as ``{00..09}.tar`` or a glob such as ``*.tar``; several joined by
            ``::``, as webdataset takes them; ``@list.txt``, a file with a location in each line; or a list of these.
            A name that exists is that file or folder, whatever letters it has.
        storage_options: for the stores of remote globs and lists.
        allow_elsewhere: let a list name locations outside its own folder.

    Raises:
        ArgumentError: ``pipe:``, or another value that is not a location.
        NotFoundError: a glob matches nothing, or a list does not exist.
        IndexFormatError: a list names a location that it may not.
        StorageError: a list or a store cannot be read.
    """
    expanded: list[str] = []
    is_one = isinstance(shards, (str, os.PathLike)) or not isinstance(shards, Iterable)
    items: list[Any] = [shards] if is_one else list(shards)  # type: ignore[arg-type]
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise ArgumentError(f"shards {'is' if is_one else 'holds'} {item!r}: name a path, a URL or a list of them")
        for name in _parts(os.fspath(item)):
            refuse_command(name)
            if _exists(name):
                expanded.append(storage.normalise(name))
            elif name.startswith("@"):
                expanded += _of_list(storage.normalise(name[1:]), storage_options, allow_elsewhere=allow_elsewhere)
            else:
                patterns = [name]
                if "{" in name:
                    import braceexpand

                    with contextlib.suppress(ValueError):  # it is not a pattern: an error will show the name
                        patterns = list(braceexpand.braceexpand(name))
                for pattern in patterns:
                    expanded += matching(pattern, storage.named(storage_options, [storage.normalise(pattern)]))
    if not expanded:
        raise NotFoundError("the list of shards is empty: name a folder, a brace pattern or some tars")
    return expanded


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern or list of tars rather than the location of one file or folder.

    >>> [is_pattern(name) for name in ("a-*.tar", "a.tar::b.tar", "@list.txt", "*.parquet", "a.tar")]
    [True, True, True, False, False]
    """
    if _exists(name):
        return False
    is_glob = _has_magic(name) and is_tar(storage.split(name)[1])
    return is_glob or "{" in name or name.startswith("@") or len(_parts(name)) > 1


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


def _of_list(location: str, options: _Options, *, allow_elsewhere: bool) -> list[str]:
    """Return the locations in the lines of a text file, relative to its folder, without blank lines and comments."""
    where = storage.shown(location)
    try:
        lines = storage.read(location, storage.named(options, [location])).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ArgumentError(f"{where} is not a list of shards: it is not UTF-8") from None
    folder = storage.split(location)[0]
    locations = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        refuse_command(line)
        try:
            check_location(folder, line, elsewhere=allow_elsewhere)
        except ValueError as error:
            advice = f": if you trust the list, {given('allow_elsewhere', True)}"
            reason = f"{error}{advice if isinstance(error, ElsewhereError) else ''}"
            raise IndexFormatError(f"{where}, line {number}, {storage.shown(line)!r:.100} {reason}") from None
        locations.append(storage.normalise(storage.join(folder, line)))
    return locations
