"""The ways to spell which shards are meant: paths, URLs, brace patterns, globs, ``a.tar::b.tar``, lists in a file."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, StorageError
from wdsdist.shards.manifest import Manifest, check_location
from wdsdist.shards.manifest.allowed_locations import SCHEMES, ElsewhereError
from wdsdist.shards.tar.naming import is_tar

Location = str | os.PathLike[str]
Shards = Location | Iterable[Location] | Manifest
_Options = Mapping[str, Any] | storage.StorageOptions | None

_MOST_BYTES = 64 << 20
_BEFORE_PATH = re.compile(r"^[^:]+://[^/]*")
"""The part of a URL before its path."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"|]+|(?:/|\./)[^\s'\"|]+\.tar[^\s'\"|]*")


def expand(
    shards: Location | Iterable[Location],
    storage_options: Mapping[str, Any] | storage.StorageOptions | None = None,
    *,
    allow_elsewhere: bool = False,
) -> list[str]:
    """Expand globs, brace patterns, ``::`` lists and list files to the locations of shards; other names stay.

    Args:
        shards: a path or URL; a brace pattern such as ``{00..09}.tar`` or a glob such as ``*.tar``; several joined by
            ``::``, as webdataset takes them; ``@list.txt`` or ``list.txt``, a file with a location in each line; or
            a list of these. What exists under a name is meant by it, whatever letters it has.
        storage_options: for the stores of remote globs and lists.
        allow_elsewhere: let a list name what does not lie below its own folder.

    Raises:
        ArgumentError: ``pipe:``, or another value that is not a location.
        NotFoundError: a glob matches nothing, or a list does not exist.
        IndexFormatError: a list names a location that it may not.
        StorageError: a list or a store cannot be read.
    """
    if not isinstance(shards, (str, os.PathLike, Iterable)):
        raise ArgumentError(f"shards is {shards!r}: it must be a path, a URL or a list of them")
    listed = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    expanded: list[str] = []
    for item in listed:
        if not isinstance(item, (str, os.PathLike)):
            raise ArgumentError(f"shards holds {item!r}: it must be a path, a URL or a list of them")
        for text in _parts(os.fspath(item)):
            expanded += _expanded(text, storage_options, allow_elsewhere=allow_elsewhere)
    if not expanded:
        raise NotFoundError("the list of shards is empty: name a folder, a brace pattern or some tars")
    return expanded


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern or list of tars rather than the location of one thing.

    >>> [is_pattern(text) for text in ("a-*.tar", "a.tar::b.tar", "@list.txt", "list.txt", "*.parquet", "a.tar")]
    [True, True, True, True, False, False]
    """
    if _is_list(text) or _exists(text):
        return _is_list(text)
    is_several = "{" in text or text.startswith("@") or len(_parts(text)) > 1
    return is_several or (_has_magic(text) and is_tar(storage.split(text)[1]))


def _is_list(text: str) -> bool:
    return text.lower().endswith(".txt") and not os.path.isdir(text)  # noqa: PTH112 - it may be a URL


def _exists(text: str) -> bool:
    return not storage.is_remote(text) and os.path.lexists(storage.normalise(text))


def _parts(text: str) -> list[str]:
    """Split locations that are joined by ``::``, but no chain of file systems of fsspec."""
    parts = text.split("::")
    is_list = all(is_tar(storage.split(part)[1]) and storage.scheme(part) in SCHEMES for part in parts)
    return parts if is_list and not _exists(text) else [text]


def _expanded(text: str, options: _Options, *, allow_elsewhere: bool) -> list[str]:
    _refuse_command(text)
    is_there = _exists(text)
    if (text.startswith("@") and not is_there) or _is_list(text):
        return _of_list(storage.normalise(text.removeprefix("@")), options, allow_elsewhere=allow_elsewhere)
    if is_there:
        return [storage.normalise(text)]
    return [found for one in _of_braces(text) for found in _of_glob(one, options)]


def _refuse_command(text: str) -> None:
    if text.startswith("pipe:"):
        found = _URL.search(text)
        example = storage.shown(found[0]) if found else "s3://bucket/00000.tar"
        raise ArgumentError(
            f"{text.partition(' ')[0]} ... is a command, and none is run: name the shards by their path or URL, such "
            f"as {example}, and pass what their store needs as storage_options"
        )


def _of_braces(text: str) -> list[str]:
    if "{" not in text:
        return [text]
    import braceexpand

    try:
        return list(braceexpand.braceexpand(text))
    except ValueError:
        return [text]  # no pattern: a name, most likely of nothing, which is an error that shows it


def _has_magic(text: str) -> bool:
    # In a URL a question mark begins the query, and brackets may stand around the address of the host.
    return glob.has_magic(_BEFORE_PATH.sub("", text).partition("?")[0] if storage.is_remote(text) else text)


def _of_glob(text: str, options: _Options) -> list[str]:
    location = storage.normalise(text)
    if not _has_magic(location) or _exists(text):
        return [location]
    if storage.is_remote(location):
        found = _remote_glob(location, storage.named(options, [location]))
    else:
        found = sorted(glob.glob(location, recursive=True))  # noqa: PTH207 - of an absolute pattern
    if not found:
        raise NotFoundError(f"nothing matches {storage.shown(location)}: check the pattern")
    return [one for one in found if is_tar(storage.split(one)[1])] or found


def _remote_glob(pattern: str, options: storage.StorageOptions) -> list[str]:
    """Return the sorted URLs that match a URL with ``*`` or ``[...]`` in its path."""
    folder = re.split(r"(?<=[^:/])/[^/]*[*\[]", pattern, maxsplit=1)[0]
    names = pattern[len(folder) + 1 :].split("/")
    regex = "/".join(".*" if name == "**" else fnmatch.translate(name)[4:-3].replace(".*", "[^/]*") for name in names)
    entries = storage.list(folder, options, recursive=len(names) > 1 or "**" in names)
    return [storage.join(folder, entry.name) for entry in entries if re.fullmatch(regex, entry.name)]


def _of_list(location: str, options: _Options, *, allow_elsewhere: bool) -> list[str]:
    """Return the locations in the lines of a text file, relative to its folder, without blank lines and comments."""
    bound = storage.named(options, [location])
    where = storage.shown(location)
    try:
        size = storage.stat(location, bound).size if storage.is_remote(location) else Path(location).stat().st_size
        if size > _MOST_BYTES:
            raise ArgumentError(f"{where} has {size:,} bytes, and a list of shards {_MOST_BYTES:,} at most")
        # As bytes: texts are cut at further characters, which names may hold.
        lines = [line.decode("utf-8") for line in storage.read(location, bound).removeprefix(BOM_UTF8).splitlines()]
    except FileNotFoundError:
        raise NotFoundError(f"{where} does not exist") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{where} is not a list of shards: it is not UTF-8") from None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {error.strerror}") from error
    folder = storage.split(location)[0]
    found = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            _refuse_command(line)
            try:
                check_location(folder, line, elsewhere=allow_elsewhere)
            except ValueError as error:
                may = ": if you trust the list, allow_elsewhere=True"
                advice = may if isinstance(error, ElsewhereError) else ""
                raise IndexFormatError(
                    f"{where}, line {number}, {storage.shown(line)!r:.100} {error}{advice}"
                ) from None
            found.append(storage.normalise(storage.join(folder, line)))
    if not found:
        raise NotFoundError(f"{where} is not a data set, and lists no shard")
    return found
